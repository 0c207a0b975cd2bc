"""What one model gains on another, each seed against itself: the tables below those of a program's
runs.
"""

import dataclasses

from late_phase_cli import metric_names, paired, text_table


@dataclasses.dataclass(frozen=True)
class Column:
    """A metric of a weight set."""

    weights: str
    metric: str
    head: str
    digits: int

    def value(self, run):
        """Of one run, as the table shows it; None if the run does not have it."""
        metric = metric_names.METRICS[self.metric]
        value = run["test"].get(self.weights, {}).get(self.metric)
        return None if value is None else metric.scale * value


@dataclasses.dataclass(frozen=True)
class Questions:
    """What is asked of a program's runs."""

    head: str
    columns: tuple  # of Column
    pairs: tuple  # (what the difference is called, model, less this one)
    sign: str  # which sign is good


QUESTIONS = {
    "enwik8": Questions(
        "difference in bits per character",
        (Column("collapsed", "bpc", "test", 3), Column("swa", "bpc", "test with SWA", 3)),
        (
            ("Late-phase against Base", "late-phase", "base"),
            ("Base + Rank1 against Base", "rank1", "base"),
            ("Late-phase against Base + Rank1", "late-phase", "rank1"),
            (
                "Late-phase against accumulation on the same network: what the members add",
                "late-phase",
                "rank1-accumulation",
            ),
        ),
        "below 0 the first is better",
    ),
    "cifar": Questions(
        "difference",
        (
            Column("collapsed", "accuracy", "test accuracy, points", 2),
            Column("collapsed", "nll", "test NLL", 4),
            Column("swa", "accuracy", "accuracy with SWA", 2),
            Column("swa", "nll", "NLL with SWA", 4),
        ),
        (
            ("Late-phase against Base", "late-phase", "base"),
            ("Late-phase against accumulation: what the members add", "late-phase", "accumulation"),
        ),
        "higher accuracy and lower NLL are better",
    ),
}


def differences(program, runs):
    """[(name, {Column: paired.Difference})] of the pairs for which there are runs."""
    questions = QUESTIONS[program]

    def values(model, column):
        mine = [run for run in runs if run["model"] == model]
        return {run["seed"]: x for run in mine if (x := column.value(run)) is not None}

    found = []
    models = {run["model"] for run in runs}
    for name, model, other in questions.pairs:
        if not {model, other} <= models:
            continue
        its = {}
        for column in questions.columns:
            lower = metric_names.METRICS[column.metric].lower_is_better
            one = paired.difference(values(model, column), values(other, column), lower)
            if one:
                its[column] = one
        if its:
            found.append((name, its))
    return found


def table(program, found):
    """Heads, rows and the sentence that explains them, as text. `found` is from differences()."""
    questions = QUESTIONS[program]
    several = any(one.seeds > 1 for _, its in found for one in its.values())
    columns = [column for column in questions.columns if any(column in its for _, its in found)]
    heads = [questions.head]
    for column in columns:
        heads += [column.head, "better in"] if several else [column.head]
    rows = []
    for name, its in found:
        cells = [name]
        for column in columns:
            one = its.get(column)
            cells.append(one.number(column.digits) if one else "–")
            if several:
                cells.append(f"{one.won} of {one.seeds} seeds" if one else "–")
        rows.append(cells)
    sign = questions.sign
    if several:
        note = f"Mean over the seeds, each against itself, with its 95 % interval; {sign}."
    else:
        note = f"{sign[0].upper()}{sign[1:]}. One seed is no evidence: --seeds 5 gives an interval."
    return heads, rows, note


def render(program, runs):
    """The table as lines of Markdown, an empty one first; none if there is nothing to compare."""
    found = differences(program, runs)
    if not found:
        return []
    heads, rows, note = table(program, found)
    return ["", *text_table.render(heads, rows), "", note]
