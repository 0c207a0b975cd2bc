"""The results and the table of a sweep, from its sweep.json and the runs that have finished."""

import os

from late_phase_cli import files, metric_names, sweep_plan, text_table

HEADS = {"members": "K", "t0": "T0, epochs", "sigma": "σ0", "gamma": "γ"}
# Test accuracy in % of a WRN 28-10 by dataset and setting.
PAPER = {
    ("cifar100", "members"): {1: 81.35, 5: 82.44, 10: 82.87, 15: 83.01, 20: 82.86},
    ("cifar100", "sigma"): {0: 82.87, 0.25: 82.77, 0.5: 82.78, 0.75: 82.41, 1: 81.52},
    ("cifar100", "t0"): {
        0: 74.38,
        40: 79.69,
        60: 80.53,
        80: 81.72,
        100: 82.48,
        120: 82.87,
        140: 82.53,
        160: 81.41,
        180: 81.43,
        200: 81.35,
    },
    ("cifar10", "t0"): {
        0: 95.68,
        40: 96.34,
        60: 96.42,
        80: 96.50,
        100: 96.45,
        120: 96.48,
        140: 96.26,
        160: 96.23,
        180: 96.25,
        200: 96.16,
    },
}


def finished(folder):
    """The results of a run; None if it has none yet."""
    try:
        return files.read_json(os.path.join(folder, "results.json"))
    except (OSError, ValueError):
        return None


def collect(folder):
    """The contents of results.json: the sweep, the mean of each point over its seeds, and every run
    that has finished.
    """
    sweep = files.read_json(os.path.join(folder, "sweep.json"))
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
            means.setdefault(weights, {})[metric] = {
                "mean": mean,
                "standard_error": error,
                "values": values,
            }
        points.append(
            {
                "axes": point["axes"],
                "values": {name: sweep_plan.number(text) for name, text in point["values"].items()},
                "runs": mine,
                "test": means,
            }
        )
    return {
        "program": sweep["program"],
        "sweep": {name: sweep[name] for name in ("grid", "axes", "seeds", "config")},
        "points": points,
        "runs": [{"folder": path, **result} for path, result in runs.items()],
    }


def head_of(axis):
    return HEADS.get(axis, axis.replace("_", " "))


def groups_of(results):
    """[(axes, points)] that belong in one table: all of a grid, else those of an axis."""
    groups = {}
    for point in results["points"]:
        groups.setdefault(tuple(point["axes"]), []).append(point)
    return list(groups.items())


def paper_of(results, axes):
    """{value: test accuracy} from the paper for this network and axis."""
    config = results["sweep"]["config"]
    is_the_papers = (
        results["program"],
        config.get("network"),
        config.get("depth"),
        config.get("width"),
        config.get("train_images"),
    ) == ("cifar", "wrn", 28, 10, 0)
    return (
        PAPER.get((config.get("dataset"), axes[0]), {}) if is_the_papers and len(axes) == 1 else {}
    )


def table_rows(results, axes, points, metrics=metric_names.MAIN_METRICS):
    """Heads and rows of one table; cells are strings."""
    columns = [
        column
        for column in metric_names.columns_of([point["test"] for point in points])
        if column[1] in metrics
    ]
    paper = paper_of(results, axes)
    heads = [*map(head_of, axes), "seeds"]
    for weights, metric in columns:
        first = heads[-1] == "seeds" or (weights, metric) == next(
            column for column in columns if column[0] == weights
        )
        prefix = "test " if weights == "collapsed" else f"{metric_names.weights_name(weights)}: "
        heads.append((prefix if first else "") + metric_names.metric_of(metric).head)
    rows = []
    for point in points:
        cells = [
            *(
                f"{point['values'][axis]:g}"
                if isinstance(point["values"][axis], float)
                else str(point["values"][axis])
                for axis in axes
            ),
            str(len(point["runs"])),
        ]
        for weights, metric in columns:
            one = point["test"].get(weights, {}).get(metric)
            cells.append(
                "–"
                if one is None
                else metric_names.mean_text(
                    metric_names.metric_of(metric), one["mean"], one["standard_error"]
                )
            )
        rows.append(
            cells
            + (
                [
                    f"{paper[point['values'][axes[0]]]:.2f}"
                    if point["values"][axes[0]] in paper
                    else "–"
                ]
                if paper
                else []
            )
        )
    return heads + (["paper: accuracy %"] if paper else []), rows


def render(results):
    """The tables as lines of Markdown: mean ± standard error over the seeds."""
    lines = []
    for axes, points in groups_of(results):
        heads, rows = table_rows(results, axes, points)
        lines += [""] if lines else []
        lines += text_table.render(heads, rows)
    return lines


def summarize(folder):
    """Writes results.json, and returns its contents."""
    results = collect(folder)
    files.write_json(os.path.join(folder, "results.json"), results)
    return results
