"""One HTML page of training runs and sweeps, to read, to print and to pass on: it needs no other file and no network.

  tools/latephase report runs/cifar-convnet runs/k-sweep --out report.html

The test metrics of all runs side by side, the settings in which they differ, curves, cost, and evaluations (RUN/evaluation) where there are
any. RUN is the folder of a run, of several (base, late-phase, seed-0, ...), of a sweep, or of an evaluation (eval --out); the curves of a sweep's
runs are shown when these are named.
"""

import argparse
import collections
import os
import sys

from late_phase_cli import metric_names, plot, report_evaluation, report_page, report_runs, sweep_table

COMMAND = "tools/latephase report"
WEIGHT_SETS = ("The best of each column is bold. Collapsed: the members' mean, one network; a run without members has only itself. SWA: the average "
               "over time. One member: the one trained last. Ensemble: the members' predictions averaged.")


def metrics_table(names, rows, anchors=(), name_heads=("run",), text=lambda metric, value: metric.number(value), key=lambda value: value):
    """A table of the test metrics of weight sets. names: [[cell]], rows: [{weights: {metric: value}}]; `key` of a value is what decides
    which is best, `text` how it is written."""
    columns = metric_names.without_loss(metric_names.columns_of(rows))
    groups, heads = [("", len(name_heads))], [*name_heads]
    for i, (weights, metric) in enumerate(columns):
        first = i == 0 or columns[i - 1][0] != weights
        if first:
            groups.append((metric_names.weights_name(weights), sum(column[0] == weights for column in columns)))
        heads.append(report_page.Cell(metric_names.metric_of(metric).head, "number", *["start"] * first))
    values = {column: [row.get(column[0], {}).get(column[1]) for row in rows] for column in columns}
    best = {column: metric_names.best_of([None if value is None else key(value) for value in values[column]], column[1]) for column in columns}
    cells = []
    for i, name in enumerate(names):
        line = [report_page.Cell(name[0], anchor=anchors[i]) if anchors else name[0], *name[1:]]
        for j, column in enumerate(columns):
            value = values[column][i]
            classes = ["number"] + ["start"] * (j == 0 or columns[j - 1][0] != column[0])
            if value is not None and best[column] is not None and key(value) == best[column]:
                classes.append("best")
            line.append(report_page.Cell("–" if value is None else text(metric_names.metric_of(column[1]), value), *classes))
        cells.append(line)
    return report_page.table(heads, cells, groups, len(name_heads))


def tests_of(results):
    """Weight sets and their metrics; the list of members is none."""
    return {weights: metrics for weights, metrics in results.get("test", {}).items() if isinstance(metrics, dict)}


def families_of(runs):
    """{title: [run]}: metrics of different data are not compared."""
    families = collections.defaultdict(list)
    for run in runs:
        families[", ".join(filter(None, (run.config["program"], run.config.get("dataset"))))].append(run)
    return families


def seeds_table(runs):
    """Mean ± standard error of the runs that differ in their seed alone; nothing if no two do."""
    groups = collections.defaultdict(list)
    for run in runs:
        if run.results:
            groups[repr([(name, value) for name, value in sorted(run.config.items()) if name != "seed"])].append(run)
    groups = [group for group in groups.values() if len(group) > 1]
    if not groups:
        return ""
    rows = []
    for group in groups:
        row = {}
        tests = [tests_of(run.results) for run in group]
        for weights, metric in metric_names.columns_of(tests):
            row.setdefault(weights, {})[metric] = metric_names.mean_and_error([test.get(weights, {}).get(metric) for test in tests])
        rows.append(row)
    names = [[group[0].name, group[0].config["model"], str(len(group))] for group in groups]
    text = report_page.element("p", "Mean ± standard error of the runs that differ in their seed alone, named after the first:")
    return text + metrics_table(names, rows, name_heads=("runs", "model", "seeds"), key=lambda value: value[0],
                                text=lambda metric, value: metric_names.mean_text(metric, *value))


def summary_section(runs, anchors):
    content = []
    for title, family in families_of(runs).items():
        names = [[run.name, run.config["model"], str(run.config["seed"])] for run in family]
        table = metrics_table(names, [tests_of(run.results) for run in family], [anchors[run.folder] for run in family],
                              ("run", "model", "seed"))
        content += [report_page.element("h3", title), table, seeds_table(family)]
    return report_page.section(2, "Test figures", "figures", report_page.element("p", WEIGHT_SETS, class_="quiet"), *content)


def settings_section(runs, anchors):
    """The settings in which the runs of a program differ, what differs from the first run shaded; and those they share."""
    content = []
    programs = collections.defaultdict(list)
    for run in runs:
        programs[run.config["program"]].append(run)
    for program, mine in programs.items():
        settings = list(dict.fromkeys(name for run in mine for name in run.config))
        differ = [name for name in settings if len({repr(run.config.get(name)) for run in mine}) > 1]
        content.append(report_page.element("h3", program))
        if differ:
            rows = [[report_page.Cell(run.name, anchor=anchors[run.folder]),
                     *(report_page.Cell(metric_names.value_text(run.config.get(name, "–")),
                                        *["differs"] * (run.config.get(name) != mine[0].config.get(name)),
                                        *["number"] * isinstance(run.config.get(name), (int, float))) for name in differ)] for run in mine]
            content.append(report_page.table(["run", *differ], rows))
        shared = [name for name in settings if name not in differ]
        content.append(report_page.details(f"{len(shared)} settings" + " that all of them share" * (len(mine) > 1), report_page.element(
            "pre", "\n".join(f"{name} = {metric_names.value_text(mine[0].config[name])}" for name in shared))))
    text = report_page.element("p", "In which the runs differ; shaded: other than in the first one.", class_="quiet")
    return report_page.section(2, "Settings", "settings", text, *content)


def sweep_section(source, anchor):
    sweep = source.sweep
    seeds = len(sweep["sweep"]["seeds"])
    text = f"{sweep['program']}, " + (f"mean ± standard error of {seeds} seeds." if seeds > 1 else "one seed.")
    content = [report_page.element("p", text, class_="quiet")]
    for axes, points in sweep_table.groups_of(sweep):
        names = [[*(metric_names.value_text(point["values"][axis]) for axis in axes), str(len(point["runs"]))] for point in points]
        rows = [{weights: {name: one[name] for name in metric_names.MAIN_METRICS if name in one} for weights, one in point["test"].items()}
                for point in points]
        content.append(metrics_table(names, rows, name_heads=(*map(sweep_table.head_of, axes), "seeds"), key=lambda value: value["mean"],
                                     text=lambda metric, value: metric_names.mean_text(metric, value["mean"], value["standard_error"])))
    figure = sweep_table.draw(sweep)
    content.append(report_page.drawing(figure, f"Test figures of the sweep {source.name}") if figure
                   else report_page.element("p", "No run has finished yet."))
    runs = report_runs.sweep_runs(sweep)
    if runs:
        content.append(report_page.details(f"its {len(runs)} runs", metrics_table(
            [[folder] for folder, _ in runs], [tests_of(result) for _, result in runs])))
    content.append(report_page.details("settings that all points share", report_page.element(
        "pre", "\n".join(f"{name} = {metric_names.value_text(value)}" for name, value in sweep["sweep"]["config"].items()))))
    return report_page.section(2, f"Sweep {source.name}", anchor, *content, *report_evaluation.evaluation_parts(source.folder))


def comparison_section(source, anchor):
    try:
        figure = plot.draw_comparison([run.curves for run in source.runs], source.folder)
    except plot.PlotError as error:
        return report_page.section(2, f"{source.name}: models compared", anchor, report_page.element("p", f"Nothing to draw: {error}"))
    return report_page.section(2, f"{source.name}: models compared", anchor, report_page.drawing(figure, f"Curves of the models in {source.name}"),
                               *report_evaluation.evaluation_parts(source.folder))


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def run_facts(run):
    """What the run cost."""
    results = run.results
    texts = [("parameters", "parameters", lambda value: f"{value:,}"), ("epochs", "epochs", lambda value: f"{value:g}"),
             ("steps", "minibatches", lambda value: f"{value:,}"), ("seconds", "training", duration),
             ("items_per_second", "characters/s" if run.config["program"] == "enwik8" else "images/s", lambda value: f"{value:,.0f}"),
             ("peak_bytes", "peak memory", lambda value: f"{value / 1e9:.2f} GB"), ("threads", "threads", str), ("device", "device", str)]
    return report_page.facts([("model", run.config["model"]), ("seed", run.config["seed"])] +
                             [(head, text(results[name])) for name, head, text in texts if results.get(name) is not None])


def all_metrics_table(results):
    """Every metric of a results.json: training, and each weight set and member on each split."""
    rows = [("train", "last epoch", results["train"])] if "train" in results else []
    for split in ("validation", "test"):
        for weights, metrics in results.get(split, {}).items():
            if isinstance(metrics, dict):
                rows.append((split, metric_names.weights_name(weights), metrics))
        rows += [(split, f"member {k}", metrics) for k, metrics in enumerate(results.get(split, {}).get("members", []))]
    columns = metric_names.in_order((metric for _, _, metrics in rows for metric in metrics), metric_names.METRICS)
    return report_page.table(["data", "weights", *(report_page.Cell(metric_names.metric_of(name).head, "number") for name in columns)],
                             [[split, weights, *(report_page.Cell(metric_names.metric_of(name).number(metrics.get(name)), "number")
                                                 for name in columns)] for split, weights, metrics in rows], row_heads=2)


def run_section(run, anchor):
    try:
        curves = report_page.drawing(plot.draw_run(run.curves), f"Curves of {run.name}")
    except plot.PlotError:
        curves = report_page.element("p", "No line of training yet.")
    metrics = all_metrics_table(run.results) if run.results else report_page.element("p", "Not finished: there is no results.json yet.")
    settings = "\n".join(f"{name} = {metric_names.value_text(value)}" for name, value in run.config.items())
    return report_page.section(2, f"Run {run.name}", anchor, run_facts(run), report_page.side_by_side(curves, metrics),
                               report_page.details("its settings", report_page.element("pre", settings)),
                               *report_evaluation.evaluation_parts(run.folder))


def compose(sources, title):
    runs = [run for source in sources for run in source.runs]
    anchors = {run.folder: f"run-{i}" for i, run in enumerate(runs)}
    entries, sections = [], []
    if runs:
        entries.append(("figures", "Test figures"))
        sections.append(summary_section(runs, anchors))
    if len(runs) > 1:
        entries.append(("settings", "Settings"))
        sections.append(settings_section(runs, anchors))
    for i, source in enumerate(sources):
        if source.sweep is not None:
            entries.append((f"sweep-{i}", f"Sweep {source.name}"))
            sections.append(sweep_section(source, f"sweep-{i}"))
        if len(source.runs) > 1:
            entries.append((f"models-{i}", f"{source.name}: models compared"))
            sections.append(comparison_section(source, f"models-{i}"))
        if source.sweep is None and not source.runs:
            entries.append((f"evaluation-{i}", f"Evaluation {source.name}"))
            sections.append(report_page.section(2, f"Evaluation {source.name}", f"evaluation-{i}",
                                                *report_evaluation.evaluation_parts(source.folder)))
        for run in source.runs:
            entries.append((anchors[run.folder], f"Run {run.name}"))
            sections.append(run_section(run, anchors[run.folder]))
    return report_page.page(title, report_page.element("h1", title), report_page.contents(entries), *sections)


def write(path, text):
    """Written aside, then renamed: whole or not there."""
    aside = f"{path}.part{os.getpid()}"
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(aside, path)
    except OSError as error:
        raise report_runs.ReportError(f"`out` must be a file that can be written. Received: out={path} ({error.strerror})") from error
    finally:
        if os.path.exists(aside):
            os.remove(aside)


def main(arguments):
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", metavar="RUN", help="the folder of a run, of several runs, of a sweep or of an evaluation")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (default: report.html)")
    parser.add_argument("--title", default="Training runs", help="its title")
    options = parser.parse_args(arguments)
    write(options.out, compose(report_runs.read_sources(options.run), options.title))
    print(options.out)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (report_runs.ReportError, plot.PlotError) as error:
        sys.exit(f"{COMMAND}: {error}")
