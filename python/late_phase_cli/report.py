"""One HTML page of training runs and sweeps; report_page.py and its templates lay it out."""

import collections

from late_phase_cli import (
    files,
    metric_names,
    model_differences,
    plot,
    report_evaluation,
    report_page,
    report_runs,
    sweep_plot,
    sweep_table,
)


def metrics_table(
    names,
    rows,
    anchors=(),
    name_heads=("run",),
    text=lambda metric, value: metric.number(value),
    key=lambda value: value,
):
    """A table of the test metrics of weight sets. names: [[cell]], rows: [{weights: {metric:
    value}}]; `key` of a value is what decides which is best, `text` how it is written.
    """
    columns = metric_names.without_loss(metric_names.columns_of(rows))
    starts = [i == 0 or columns[i - 1][0] != weights for i, (weights, _) in enumerate(columns)]
    groups = [("", len(name_heads))] + [
        (metric_names.weights_name(weights), sum(column[0] == weights for column in columns))
        for (weights, _), is_start in zip(columns, starts)
        if is_start
    ]
    heads = [
        report_page.Cell(metric_names.metric_of(metric).head, ["number"] + ["start"] * is_start)
        for (_, metric), is_start in zip(columns, starts)
    ]
    values = {column: [row.get(column[0], {}).get(column[1]) for row in rows] for column in columns}
    best = {
        column: metric_names.best_of(
            [None if value is None else key(value) for value in values[column]], column[1]
        )
        for column in columns
    }
    cells = []
    for i, (name, *others) in enumerate(names):
        line = [report_page.Cell(name, anchor=anchors[i]) if anchors else name, *others]
        for column, is_start in zip(columns, starts):
            value = values[column][i]
            is_best = value is not None and best[column] is not None and key(value) == best[column]
            shown = "–" if value is None else text(metric_names.metric_of(column[1]), value)
            line.append(
                report_page.Cell(shown, ["number"] + ["start"] * is_start + ["best"] * is_best)
            )
        cells.append(line)
    return report_page.Table([*name_heads, *heads], cells, groups, len(name_heads))


def tests_of(results):
    """Weight sets and their metrics, without the list of members."""
    return {
        weights: metrics
        for weights, metrics in results.get("test", {}).items()
        if isinstance(metrics, dict)
    }


def families_of(runs):
    """{title: [run]}: metrics on different data are not compared."""
    families = collections.defaultdict(list)
    for run in runs:
        families[
            ", ".join(filter(None, (run.config["program"], run.config.get("dataset"))))
        ].append(run)
    return families


def seeds_table(runs):
    """Mean ± standard error of the runs that differ only in their seed; None if no two do."""
    groups = collections.defaultdict(list)
    for run in runs:
        if run.results:
            groups[
                repr(
                    [(name, value) for name, value in sorted(run.config.items()) if name != "seed"]
                )
            ].append(run)
    groups = [group for group in groups.values() if len(group) > 1]
    if not groups:
        return None
    rows = []
    for group in groups:
        row = {}
        tests = [tests_of(run.results) for run in group]
        for weights, metric in metric_names.columns_of(tests):
            values = [test.get(weights, {}).get(metric) for test in tests]
            row.setdefault(weights, {})[metric] = metric_names.mean_and_error(values)
        rows.append(row)
    return metrics_table(
        [[group[0].name, group[0].config["model"], str(len(group))] for group in groups],
        rows,
        name_heads=("runs", "model", "seeds"),
        key=lambda value: value[0],
        text=lambda metric, value: metric_names.mean_text(metric, *value),
    )


def metrics_section(runs, anchors):
    families = []
    for title, family in families_of(runs).items():
        table = metrics_table(
            [[run.name, run.config["model"], str(run.config["seed"])] for run in family],
            [tests_of(run.results) for run in family],
            [anchors[run.folder] for run in family],
            ("run", "model", "seed"),
        )
        families.append((title, table, seeds_table(family)))
    return report_page.Section("metrics", "Test metrics", "metrics", {"families": families})


def settings_text(config):
    return [f"{name} = {metric_names.value_text(value)}" for name, value in config.items()]


def settings_section(runs, anchors):
    """The settings in which the runs of a program differ, with differences from the first run
    shaded, and those they share.
    """
    programs = collections.defaultdict(list)
    for run in runs:
        programs[run.config["program"]].append(run)
    content = []
    for program, mine in programs.items():
        first = mine[0].config
        settings = list(dict.fromkeys(name for run in mine for name in run.config))
        differ = [
            name for name in settings if len({repr(run.config.get(name)) for run in mine}) > 1
        ]

        def cell(run, name):
            value = run.config.get(name, "–")
            differs, is_number = (
                run.config.get(name) != first.get(name),
                isinstance(value, (int, float)),
            )
            return report_page.Cell(
                metric_names.value_text(value), ["differs"] * differs + ["number"] * is_number
            )

        rows = [
            [
                report_page.Cell(run.name, anchor=anchors[run.folder]),
                *(cell(run, name) for name in differ),
            ]
            for run in mine
        ]
        shared = settings_text({name: first[name] for name in settings if name not in differ})
        content.append(
            (
                program,
                report_page.Table(["run", *differ], rows) if differ else None,
                shared,
                len(mine) > 1,
            )
        )
    return report_page.Section("settings", "Settings", "settings", {"programs": content})


def sweep_section(source, anchor):
    sweep = source.sweep
    tables = []
    for axes, points in sweep_table.groups_of(sweep):
        rows = [
            {
                weights: {name: one[name] for name in metric_names.MAIN_METRICS if name in one}
                for weights, one in point["test"].items()
            }
            for point in points
        ]
        tables.append(
            metrics_table(
                [
                    [
                        *(metric_names.value_text(point["values"][axis]) for axis in axes),
                        str(len(point["runs"])),
                    ]
                    for point in points
                ],
                rows,
                name_heads=(*map(sweep_table.head_of, axes), "seeds"),
                key=lambda value: value["mean"],
                text=lambda metric, value: metric_names.mean_text(
                    metric, value["mean"], value["standard_error"]
                ),
            )
        )
    figure = sweep_plot.draw(sweep)
    runs = report_runs.sweep_runs(sweep)
    content = {
        "program": sweep["program"],
        "seeds": len(sweep["sweep"]["seeds"]),
        "tables": tables,
        "drawing": report_page.drawing(figure, f"Test metrics of the sweep {source.name}")
        if figure
        else None,
        "runs": metrics_table(
            [[folder] for folder, _ in runs], [tests_of(result) for _, result in runs]
        )
        if runs
        else None,
        "settings": settings_text(sweep["sweep"]["config"]),
    }
    evaluation = report_evaluation.evaluation_of(source.folder)
    return report_page.Section("sweep", f"Sweep {source.name}", anchor, content, evaluation)


def differences_table(runs):
    """(table, note) that compares the models of a folder, seed by seed; (None, "") if there is
    nothing to compare.
    """
    finished = [
        {"model": run.config["model"], "seed": run.config["seed"], "test": tests_of(run.results)}
        for run in runs
    ]
    models = [(run["model"], run["seed"]) for run in finished]
    programs = {run.config["program"] for run in runs}
    if len(programs) != 1 or len(set(models)) < len(models):
        return None, ""  # several trainings: which runs belong together is not known
    (program,) = programs
    found = model_differences.differences(program, finished)
    if not found:
        return None, ""
    heads, rows, note = model_differences.table(program, found)
    cells = [[name, *(report_page.Cell(text, ["number"]) for text in row)] for name, *row in rows]
    heads = [heads[0], *(report_page.Cell(head, ["number"]) for head in heads[1:])]
    return report_page.Table(heads, cells), note


def models_section(source, anchor):
    content = {"drawing": None, "error": None}
    content["differences"], content["note"] = differences_table(source.runs)
    try:
        figure = plot.draw_comparison([run.curves for run in source.runs], source.folder)
        content["drawing"] = report_page.drawing(figure, f"Curves of the models in {source.name}")
    except plot.PlotError as error:
        content["error"] = error
    evaluation = report_evaluation.evaluation_of(source.folder)
    return report_page.Section(
        "models", f"{source.name}: models compared", anchor, content, evaluation
    )


def duration(seconds):
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def run_facts(run):
    """What the run cost."""
    items = "characters/s" if run.config["program"] == "enwik8" else "images/s"
    texts = [
        ("parameters", "parameters", lambda value: f"{value:,}"),
        ("epochs", "epochs", lambda value: f"{value:g}"),
        ("steps", "minibatches", lambda value: f"{value:,}"),
        ("seconds", "training", duration),
        ("items_per_second", items, lambda value: f"{value:,.0f}"),
        ("peak_bytes", "peak memory", lambda value: f"{value / 1e9:.2f} GB"),
        ("threads", "threads", str),
        ("device", "device", str),
    ]
    return [("model", run.config["model"]), ("seed", run.config["seed"])] + [
        (head, text(run.results[name]))
        for name, head, text in texts
        if run.results.get(name) is not None
    ]


def all_metrics_table(results):
    """Every metric of a results.json: training, and each weight set and member on each split."""
    rows = [("train", "last epoch", results["train"])] if "train" in results else []
    for split in ("validation", "test"):
        for weights, metrics in results.get(split, {}).items():
            if isinstance(metrics, dict):
                rows.append((split, metric_names.weights_name(weights), metrics))
        rows += [
            (split, f"member {k}", metrics)
            for k, metrics in enumerate(results.get(split, {}).get("members", []))
        ]
    columns = metric_names.in_order(
        (name for _, _, metrics in rows for name in metrics), metric_names.METRICS
    )
    known = [(name, metric_names.metric_of(name)) for name in columns]
    return report_page.Table(
        ["data", "weights", *(report_page.Cell(metric.head, ["number"]) for _, metric in known)],
        [
            [
                split,
                weights,
                *(
                    report_page.Cell(metric.number(metrics.get(name)), ["number"])
                    for name, metric in known
                ),
            ]
            for split, weights, metrics in rows
        ],
        row_heads=2,
    )


def run_section(run, anchor):
    try:
        drawing = report_page.drawing(plot.draw_run(run.curves), f"Curves of {run.name}")
    except plot.PlotError:
        drawing = None
    content = {
        "facts": run_facts(run),
        "drawing": drawing,
        "table": all_metrics_table(run.results) if run.results else None,
        "settings": settings_text(run.config),
    }
    evaluation = report_evaluation.evaluation_of(run.folder)
    return report_page.Section("run", f"Run {run.name}", anchor, content, evaluation)


def compose(sources, title):
    runs = [run for source in sources for run in source.runs]
    anchors = {run.folder: f"run-{i}" for i, run in enumerate(runs)}
    sections = []
    if runs:
        sections.append(metrics_section(runs, anchors))
    if len(runs) > 1:
        sections.append(settings_section(runs, anchors))
    for i, source in enumerate(sources):
        if source.sweep is not None:
            sections.append(sweep_section(source, f"sweep-{i}"))
        elif not source.runs:
            evaluation = report_evaluation.evaluation_of(source.folder)
            sections.append(
                report_page.Section(
                    "evaluation",
                    f"Evaluation {source.name}",
                    f"evaluation-{i}",
                    evaluation=evaluation,
                )
            )
        if len(source.runs) > 1:
            sections.append(models_section(source, f"models-{i}"))
        sections += [run_section(run, anchors[run.folder]) for run in source.runs]
    return report_page.render(title, sections)


def write(path, text):
    try:
        with files.replacing(path) as aside, open(aside, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise report_runs.ReportError(
            f"`out` must be a file that can be written. Received: out={path} ({error.strerror})"
        ) from error


def main(folders, out, title):
    """Writes the page of the folders to the file `out`."""
    write(out, compose(report_runs.read_sources(folders), title))
