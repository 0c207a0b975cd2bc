"""Draws sweep.png: the first metric of a sweep over the values of its settings."""

import os

from late_phase_cli import metric_names, plot_style, sweep_table
from matplotlib import ticker  # isort: skip (plot_style says what to do if there is no matplotlib)

COLOURS = [
    plot_style.BLUE,
    plot_style.ORANGE,
    plot_style.GREY,
    "#2e8b57",
    "#8b4f9f",
    "#b03a48",
    "#8a7a1f",
]


def lines_of(axes, points, metric):
    """{label: [(value of the last axis, mean, error)]}: the weight sets of one axis or, for a grid,
    the collapsed weights by its other axes.
    """
    lines = {}
    sets = ["collapsed"]
    if len(axes) == 1:
        sets = metric_names.in_order(
            (weights for point in points for weights in point["test"]), metric_names.WEIGHTS
        )
    for weights in sets:
        for point in points:
            one = point["test"].get(weights, {}).get(metric)
            if one is None or one["mean"] is None:
                continue
            others = ", ".join(
                f"{sweep_table.head_of(axis)} {point['values'][axis]}" for axis in axes[:-1]
            )
            label = others or metric_names.weights_name(weights)
            lines.setdefault(label, []).append(
                (point["values"][axes[-1]], one["mean"], one["standard_error"] or 0)
            )
    return lines


def draw_panel(panel, axes, points, metric, colours):
    """`colours`, by label, are the same in all panels: new ones are added here."""
    values = list(dict.fromkeys(point["values"][axes[-1]] for point in points))
    numeric = all(isinstance(value, (int, float)) for value in values)
    places = dict(zip(values, values if numeric else range(len(values))))
    least, most = min(places.values()), max(places.values())
    # Values that span decades, as learning rates do, would crowd together at one end.
    logarithmic = least > 0 and most / least >= 50
    scale, lines = metric_names.METRICS[metric].scale, lines_of(axes, points, metric)
    for i, (label, line) in enumerate(lines.items()):
        # Side by side, because error bars would hide each other.
        aside = 0.008 * (i - (len(lines) - 1) / 2)
        x = [
            places[value] * (most / least) ** aside
            if logarithmic
            else places[value] + aside * ((most - least) or 1)
            for value, _, _ in line
        ]
        means, errors = ([scale * one[k] for one in line] for k in (1, 2))
        order = sorted(range(len(x)), key=x.__getitem__)
        colour = colours.setdefault(label, COLOURS[len(colours) % len(COLOURS)])
        panel.errorbar(
            *([column[k] for k in order] for column in (x, means, errors)),
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.2,
            elinewidth=1,
            capsize=2.5,
            label=label,
        )
    if logarithmic:
        panel.set_xscale("log")
    panel.set_xticks(
        list(places.values()),
        [f"{value:g}" if isinstance(value, float) else str(value) for value in values],
    )
    panel.xaxis.set_minor_locator(ticker.NullLocator())
    panel.set_xlabel(sweep_table.head_of(axes[-1]))
    plot_style.finish_axes(panel)


def draw(results):
    """A panel per axis, or one over the last axis of a grid; None if no run has finished."""
    names = (
        name
        for point in results["points"]
        for metrics in point["test"].values()
        for name in metrics
    )
    metrics = metric_names.in_order(names, metric_names.METRICS)
    if not metrics:
        return None
    groups = sweep_table.groups_of(results)
    size = (6.4 if len(groups) == 1 else 4.8 * len(groups), 4.2)
    figure, panels = plot_style.pyplot.subplots(
        1, len(groups), figsize=size, squeeze=False, layout="constrained"
    )
    colours = {}
    for panel, (axes, points) in zip(panels[0], groups):
        draw_panel(panel, axes, points, metrics[0], colours)
    panels[0][0].set_ylabel("test " + metric_names.metric_of(metrics[0]).head)
    seeds = len(results["sweep"]["seeds"])
    figure.suptitle(
        f"{results['program']}, "
        + (
            f"mean and standard error of {seeds} seeds"
            if seeds > 1
            else f"seed {results['sweep']['seeds'][0]}"
        ),
        fontsize=10,
    )
    handles = {
        label: handle
        for panel in panels[0]
        for handle, label in zip(*panel.get_legend_handles_labels())
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=8.5,
        loc="outside lower center",
        ncols=4,
    )
    return figure


def main(folder):
    """Returns the name of the plot; None if no run has finished."""
    figure = draw(sweep_table.collect(folder))
    if figure is None:
        return []
    plot_style.save(figure, os.path.join(folder, "sweep.png"))
    return [f"{folder}/sweep.png"]
