"""The part of a report about an evaluation: whatever rows of metrics evaluation.json has, as
tables, and the plots beside it.

What is not a single value, such as the bins of a histogram, is left to the plots.
"""

import dataclasses

from late_phase_cli import metric_names, report_page, report_runs


@dataclasses.dataclass
class Part:
    heading: str
    facts: list = ()  # [(name, text)]
    table: report_page.Table = None


@dataclasses.dataclass
class Evaluation:
    parts: list
    pictures: list


def is_single(value):
    return value is None or isinstance(value, (str, int, float))


def flat(row):
    """The row's single values, with the named metrics of its parts, and the AUROC of each set of
    images.
    """
    values = {name: value for name, value in row.items() if is_single(value)}
    for part in (value for value in row.values() if isinstance(value, dict)):
        for one in part.get("sets", []):
            values[f"AUROC {one['name']}"] = one["auroc"]
        values |= {
            name: value
            for name, value in part.items()
            if name in metric_names.METRICS and is_single(value)
        }
    return values


def rows_of(value):
    """The rows of a list in evaluation.json; a curve becomes a row for each of its points."""
    rows = []
    for row in (row for row in value if isinstance(row, dict)):
        points = row.get("points")
        rows += (
            [flat(row)]
            if points is None
            else [{"run": row.get("run"), **flat(point)} for point in points]
        )
    return rows


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def text_of(name, value):
    if value is None:
        return "–"
    if not is_number(value):
        return metric_names.value_text(value)
    return (
        metric_names.metric_of(name).number(value)
        if name in metric_names.METRICS or isinstance(value, float)
        else f"{value:,}"
    )


def rows_table(rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [name for name in ("run", "weights") if name in names]
    names = heads + [name for name in names if name not in heads]
    numbers = {name for name in names if any(is_number(row.get(name)) for row in rows)}
    best = {
        name: metric_names.best_of([row.get(name) for row in rows], name)
        for name in names
        if name in metric_names.METRICS
    }

    def cell(row, name):
        value = row.get(name)
        is_best = value is not None and value == best.get(name)
        return report_page.Cell(
            text_of(name, value), ["number"] * (name in numbers) + ["best"] * is_best
        )

    return report_page.Table(
        [
            report_page.Cell(metric_names.metric_of(name).head, ["number"] * (name in numbers))
            for name in names
        ],
        [[cell(row, name) for name in names] for row in rows],
        row_heads=len(heads),
    )


def parts_of(evaluation, heading=""):
    """Its single values, a table for each list of rows, and the same for its parts."""
    single = [
        (name.replace("_", " "), text_of(name, value))
        for name, value in evaluation.items()
        if is_single(value)
    ]
    parts = [Part(heading, facts=single)] if heading or single else []
    for name, value in evaluation.items():
        below = f"{heading} {name}".strip().replace("_", " ")
        if isinstance(value, dict):
            parts += parts_of(value, below)
        elif isinstance(value, list) and rows_of(value):
            parts.append(Part(below, table=rows_table(rows_of(value))))
    return parts


def evaluation_of(folder):
    """None if the folder has no evaluation."""
    evaluation, images = report_runs.read_evaluation(folder)
    if evaluation is None:
        return None
    try:
        parts = parts_of(evaluation)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise report_runs.ReportError(
            f"evaluation.json must hold what tools/latephase eval has written. Received: {folder} "
            f"({error!r})"
        ) from error
    names = [name.removesuffix(".png") for name, _ in images]
    return Evaluation(
        parts,
        [
            report_page.picture(data, "png", name, name.replace("_", " "))
            for name, (_, data) in zip(names, images)
        ],
    )
