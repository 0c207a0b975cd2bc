"""results.json, sweep.png and the table of a sweep, from its sweep.json and the runs that have finished: python -m late_phase_cli.sweep_table SWEEP"""

import json
import os
import sys

from matplotlib import ticker

from late_phase_cli import metric_names, plot_style, sweep_plan

COLOURS = [plot_style.BLUE, plot_style.ORANGE, plot_style.GREY, "#2e8b57", "#8b4f9f", "#b03a48", "#8a7a1f"]
HEADS = {"members": "K", "t0": "T0, epochs", "sigma": "σ0", "gamma": "γ"}
# Test accuracy in % of a WRN 28-10 by dataset and setting.
PAPER = {
    ("cifar100", "members"): {1: 81.35, 5: 82.44, 10: 82.87, 15: 83.01, 20: 82.86},
    ("cifar100", "sigma"): {0: 82.87, 0.25: 82.77, 0.5: 82.78, 0.75: 82.41, 1: 81.52},
    ("cifar100", "t0"): {0: 74.38, 40: 79.69, 60: 80.53, 80: 81.72, 100: 82.48, 120: 82.87, 140: 82.53, 160: 81.41, 180: 81.43, 200: 81.35},
    ("cifar10", "t0"): {0: 95.68, 40: 96.34, 60: 96.42, 80: 96.50, 100: 96.45, 120: 96.48, 140: 96.26, 160: 96.23, 180: 96.25, 200: 96.16},
}


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, value):
    """Written aside, then renamed."""
    aside = f"{path}.part{os.getpid()}"
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.remove(aside)


def finished(folder):
    """The results of a run; None if it has none yet."""
    try:
        return read_json(os.path.join(folder, "results.json"))
    except (OSError, ValueError):
        return None


def collect(folder):
    """What results.json holds: the sweep, the mean of each point over its seeds, and every run that has finished."""
    sweep = read_json(os.path.join(folder, "sweep.json"))
    runs, points = {}, []
    for point in sweep["points"]:
        mine = []
        for seed in sweep["seeds"]:
            path = f"{point['folder']}/seed-{seed}"
            result = runs[path] if path in runs else finished(os.path.join(folder, path))
            if result is not None:
                runs[path] = result
                mine.append(path)
        tests = [runs[path]["test"] for path in mine]
        means = {}
        for weights, metric in metric_names.columns_of(tests):
            values = [test[weights][metric] for test in tests if metric in test.get(weights, {})]
            mean, error = metric_names.mean_and_error(values)
            means.setdefault(weights, {})[metric] = {"mean": mean, "standard_error": error, "values": values}
        points.append({"axes": point["axes"], "values": {name: sweep_plan.number(text) for name, text in point["values"].items()},
                       "runs": mine, "test": means})
    return {"program": sweep["program"], "sweep": {name: sweep[name] for name in ("grid", "axes", "seeds", "config")},
            "points": points, "runs": [{"folder": path, **result} for path, result in runs.items()]}


def head_of(axis):
    return HEADS.get(axis, axis.replace("_", " "))


def groups_of(results):
    """[(axes, points)] that belong into one table: all of a grid, else those of an axis."""
    groups = {}
    for point in results["points"]:
        groups.setdefault(tuple(point["axes"]), []).append(point)
    return list(groups.items())


def paper_of(results, axes):
    """{value: test accuracy} of the paper for this network and axis."""
    config = results["sweep"]["config"]
    is_the_papers = (results["program"], config.get("network"), config.get("depth"), config.get("width"), config.get("train_images")) == (
        "cifar", "wrn", 28, 10, 0)
    return PAPER.get((config.get("dataset"), axes[0]), {}) if is_the_papers and len(axes) == 1 else {}


def table_rows(results, axes, points, metrics=metric_names.MAIN_METRICS):
    """Heads and rows of one table, each cell a text."""
    columns = [column for column in metric_names.columns_of([point["test"] for point in points]) if column[1] in metrics]
    paper = paper_of(results, axes)
    heads = [*map(head_of, axes), "seeds"]
    for weights, metric in columns:
        first = heads[-1] == "seeds" or (weights, metric) == next(column for column in columns if column[0] == weights)
        prefix = "test " if weights == "collapsed" else f"{metric_names.weights_name(weights)}: "
        heads.append((prefix if first else "") + metric_names.metric_of(metric).head)
    rows = []
    for point in points:
        cells = [*(f"{point['values'][axis]:g}" if isinstance(point["values"][axis], float) else str(point["values"][axis]) for axis in axes),
                 str(len(point["runs"]))]
        for weights, metric in columns:
            one = point["test"].get(weights, {}).get(metric)
            cells.append("–" if one is None else metric_names.mean_text(metric_names.metric_of(metric), one["mean"], one["standard_error"]))
        rows.append(cells + ([f"{paper[point['values'][axes[0]]]:.2f}" if point["values"][axes[0]] in paper else "–"] if paper else []))
    return heads + (["paper: accuracy %"] if paper else []), rows


def render(results):
    """The tables as lines of Markdown: mean ± standard error over the seeds."""
    lines = []
    for axes, points in groups_of(results):
        heads, rows = table_rows(results, axes, points)
        lines += [""] if lines else []
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return lines


def lines_of(axes, points, metric):
    """{label: [(value of the last axis, mean, error)]}: the weight sets of one axis, or for a grid the collapsed weights by its other axes."""
    lines = {}
    sets = ["collapsed"]
    if len(axes) == 1:
        sets = metric_names.in_order((weights for point in points for weights in point["test"]), metric_names.WEIGHTS)
    for weights in sets:
        for point in points:
            one = point["test"].get(weights, {}).get(metric)
            if one is None or one["mean"] is None:
                continue
            others = ", ".join(f"{head_of(axis)} {point['values'][axis]}" for axis in axes[:-1])
            label = others or metric_names.weights_name(weights)
            lines.setdefault(label, []).append((point["values"][axes[-1]], one["mean"], one["standard_error"] or 0))
    return lines


def draw_panel(panel, axes, points, metric, colours):
    """`colours`, by label, are the same in all panels: they grow here."""
    values = list(dict.fromkeys(point["values"][axes[-1]] for point in points))
    numeric = all(isinstance(value, (int, float)) for value in values)
    places = dict(zip(values, values if numeric else range(len(values))))
    least, most = min(places.values()), max(places.values())
    # Values that span decades, as learning rates do, would crowd at one end.
    logarithmic = least > 0 and most / least >= 50
    scale, lines = metric_names.METRICS[metric].scale, lines_of(axes, points, metric)
    for i, (label, line) in enumerate(lines.items()):
        # Side by side, or the error bars would hide each other.
        aside = 0.008 * (i - (len(lines) - 1) / 2)
        x = [places[value] * (most / least) ** aside if logarithmic else places[value] + aside * ((most - least) or 1) for value, _, _ in line]
        means, errors = ([scale * one[k] for one in line] for k in (1, 2))
        order = sorted(range(len(x)), key=x.__getitem__)
        colour = colours.setdefault(label, COLOURS[len(colours) % len(COLOURS)])
        panel.errorbar(*([column[k] for k in order] for column in (x, means, errors)), color=colour, marker="o", markersize=4, linewidth=1.2,
                       elinewidth=1, capsize=2.5, label=label)
    if logarithmic:
        panel.set_xscale("log")
    panel.set_xticks(list(places.values()), [f"{value:g}" if isinstance(value, float) else str(value) for value in values])
    panel.xaxis.set_minor_locator(ticker.NullLocator())
    panel.set_xlabel(head_of(axes[-1]))
    plot_style.finish_axes(panel)


def draw(results):
    """A panel per axis; of a grid one, over its last axis. None if no run has finished."""
    names = (name for point in results["points"] for metrics in point["test"].values() for name in metrics)
    metrics = metric_names.in_order(names, metric_names.METRICS)
    if not metrics:
        return None
    groups = groups_of(results)
    size = (6.4 if len(groups) == 1 else 4.8 * len(groups), 4.2)
    figure, panels = plot_style.pyplot.subplots(1, len(groups), figsize=size, squeeze=False, layout="constrained")
    colours = {}
    for panel, (axes, points) in zip(panels[0], groups):
        draw_panel(panel, axes, points, metrics[0], colours)
    panels[0][0].set_ylabel("test " + metric_names.metric_of(metrics[0]).head)
    seeds = len(results["sweep"]["seeds"])
    figure.suptitle(f"{results['program']}, " + (f"mean and standard error of {seeds} seeds" if seeds > 1
                                                 else f"seed {results['sweep']['seeds'][0]}"), fontsize=10)
    handles = {label: handle for panel in panels[0] for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), frameon=False, fontsize=8.5, loc="outside lower center", ncols=4)
    return figure


def summarize(folder):
    """Writes results.json and sweep.png; returns the results."""
    results = collect(folder)
    write_json(os.path.join(folder, "results.json"), results)
    figure = draw(results)
    if figure is not None:
        plot_style.save(figure, os.path.join(folder, "sweep.png"))
    return results


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print("\n".join(render(summarize(sys.argv[1]))))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"late_phase_cli.sweep_table: the folder of a sweep must have its sweep.json, and be writable. Received: {error}")
