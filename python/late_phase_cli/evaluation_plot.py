"""Draws the plots of an evaluation, from the evaluation.json that eval has written.

reliability.png, and if requested entropy.png (--ood), corruption.png (--corrupt) and flatness.png
(--flatness). Those of an earlier evaluation in the folder are removed.
"""

import json
import math
import os

from late_phase_cli import plot_style
from late_phase_cli.errors import UserError

COLOURS = [
    plot_style.BLUE,
    plot_style.ORANGE,
    "#2e8b57",
    "#8b4f9f",
    "#b03a48",
    "#8a7a1f",
    "#4aa3a3",
    plot_style.GREY,
]
PANELS = 12  # at most, in a plot with a panel per row


class PlotError(UserError):
    """What is wrong with the given folder."""


def load(folder):
    path = os.path.join(folder, "evaluation.json")
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise PlotError(
            f"the folder must hold the evaluation.json of eval. Received: {path} ({error})"
        ) from error


def number(value):
    """A metric that was not a number is null."""
    return math.nan if value is None else value


def shown(evaluation):
    """The rows to draw, with their labels; single members only if there is nothing else."""
    rows = evaluation["rows"]
    rows = [row for row in rows if not row["weights"].startswith("member-")] or rows
    several = len({row["run"] for row in rows}) > 1
    return [((f"{row['run']}, " if several else "") + row["weights"], row) for row in rows]


def new_figure(panels=1, width=6.4):
    columns = min(panels, 3)
    rows = -(-panels // columns)
    size = (width if panels == 1 else 3.6 * columns, 4.2 if rows == 1 else 3.2 * rows)
    figure, axes = plot_style.pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False
    )
    for unused in axes.flat[panels:]:
        unused.set_visible(False)
    return figure, list(axes.flat[:panels])


def finish(figure, axes, title, across, up):
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    plot_style.finish_axes(axes)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)


def draw_reliability(evaluation):
    figure, (axes,) = new_figure()
    axes.plot([0, 1], [0, 1], ":", color="#999999", linewidth=1)
    for place, (label, row) in enumerate(shown(evaluation)):
        bins = [one for one in row["reliability"] if one["count"] > 0]
        axes.plot(
            [one["confidence"] for one in bins],
            [one["accuracy"] for one in bins],
            color=COLOURS[place % len(COLOURS)],
            linewidth=1.4,
            marker=".",
            markersize=6,
            label=f"{label}, ECE {number(row['ece']):.4f}",
        )
    finish(figure, axes, f"reliability, {evaluation['split']}", "confidence", "accuracy")
    return figure


def draw_entropy(evaluation):
    every = shown(evaluation)
    rows = every[:PANELS]
    figure, panels = new_figure(len(rows))
    if len(every) > len(rows):
        figure.suptitle(f"the first {len(rows)} of {len(every)}", fontsize=9)
    for axes, (label, row) in zip(panels, rows):
        ood = row["ood"]
        histograms = [(evaluation["split"], ood["own_histogram"])]
        histograms += [
            (f"{one['name']}, AUROC {number(one['auroc']):.3f}", one["histogram"])
            for one in ood["sets"]
        ]
        for place, (name, counts) in enumerate(histograms):
            edges = [ood["entropy_limit"] * i / len(counts) for i in range(len(counts) + 1)]
            total = sum(counts) or 1
            axes.stairs(
                [count / total for count in counts],
                edges,
                color=COLOURS[place % len(COLOURS)],
                linewidth=1.4,
                label=name,
            )
        axes.set_title(label, fontsize=9)
        axes.set_xlabel("entropy of the prediction")
        axes.set_ylabel("share of the images")
        plot_style.finish_axes(axes)
        axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # the legend's place
        axes.legend(frameon=False, fontsize=7, loc="upper left")
    return figure


def draw_corruption(evaluation):
    figure, (left, right) = new_figure(2)
    for place, (label, row) in enumerate(shown(evaluation)):
        corruption, colour = row["corruption"], COLOURS[place % len(COLOURS)]
        severities = range(1, len(corruption["by_severity"]) + 1)
        left.plot(
            severities,
            corruption["by_severity"],
            color=colour,
            marker=".",
            linewidth=1.4,
            label=f"{label}, mean {100 * number(corruption['mean_error']):.2f} %",
        )
        right.plot(
            list(corruption["by_corruption"].values()),
            list(corruption["by_corruption"]),
            ".",
            color=colour,
            markersize=7,
        )
    right.set_xlabel("error, mean of the severities")
    right.tick_params(axis="y", labelsize=7)
    right.invert_yaxis()
    plot_style.finish_axes(right)
    finish(figure, left, "", "severity", "error, mean of the corruptions")
    figure.suptitle(evaluation["corruption"]["source"], fontsize=9)
    return figure


def draw_flatness(evaluation):
    flatness = evaluation["flatness"]
    figure, (axes,) = new_figure()
    for place, curve in enumerate(flatness["curves"]):
        points = sorted(curve["points"], key=lambda point: point["sigma"])
        axes.errorbar(
            [one["sigma"] for one in points],
            [number(one["mean"]) for one in points],
            [number(one["standard_error"]) for one in points],
            color=COLOURS[place % len(COLOURS)],
            marker=".",
            linewidth=1.4,
            capsize=3,
            label=f"{curve['run']} {curve['weights']}",
        )
    finish(
        figure,
        axes,
        f"rise of the loss, {flatness['split']} images, {flatness['samples']} draws",
        "σ of the weights' relative noise",
        "δL",
    )
    return figure


# The plot's file -> what it is drawn from, if that exists, and what draws it.
PLOTS = {
    "reliability.png": (
        lambda evaluation: evaluation["rows"][0].get("reliability"),
        draw_reliability,
    ),
    "entropy.png": (lambda evaluation: evaluation["rows"][0].get("ood"), draw_entropy),
    "corruption.png": (lambda evaluation: evaluation["rows"][0].get("corruption"), draw_corruption),
    "flatness.png": (lambda evaluation: evaluation.get("flatness"), draw_flatness),
}


def figures_of(folder):
    """{name of the plot: figure}"""
    evaluation = load(folder)
    try:
        return {name: draw(evaluation) for name, (has, draw) in PLOTS.items() if has(evaluation)}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise PlotError(
            "evaluation.json must hold what tools/latephase eval has written. "
            f"Received: {folder}/evaluation.json ({error!r})"
        ) from error


def main(folder):
    """Returns the names of the plots."""
    figures, drawn = figures_of(folder), []
    for name in PLOTS:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.remove(path)
        if name in figures:
            plot_style.save(figures[name], path)
            drawn.append(path)
    return drawn
