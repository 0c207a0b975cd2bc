"""The methods that the paper compares, in one table: python -m late_phase_cli.methods_table FOLDER

FOLDER holds a folder written by `tools/latephase eval` for each of EVALUATIONS.
"""

import json
import os
import sys

from late_phase_cli import text_table

# A row: its name, its evaluation, the weights there, and the run if it is not named like the
# folder. For several runs, the mean.
ROWS = [
    ("base, mean of 3 seeds", "base", "collapsed", None),
    ("base, seed 0 as below", "base", "collapsed", "runs/methods/base-0"),
    ("dropout", "dropout", "collapsed", None),
    ("MC-dropout", "dropout", "mc-dropout", None),
    ("BatchEnsemble", "batch-ensemble", "ensemble", None),
    ("LPBN", "late-phase", "collapsed", None),
    ("LPBN, σ0 0.5", "late-phase-noise", "collapsed", None),
    ("LPBN, σ0 0.5, non-averaged", "late-phase-noise", "ensemble", None),
    ("SWA", "swag", "swa", None),
    ("LPBN + SWA", "late-phase-swa", "swa", None),
    ("SWAG", "swag", "swag", None),
    ("deep ensemble of 3", "base", "collapsed", "ensemble of 3 runs"),
]
EVALUATIONS = sorted({evaluation for _, evaluation, _, _ in ROWS})
SIGMA = 0.2  # the σ at which the table gives the flatness


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def flatness(evaluation, weights, runs):
    """The mean of δL(SIGMA) over the runs, and a run's mean standard error over the draws; a dash
    if it is not a single network.
    """
    points = [
        point
        for curve in evaluation["flatness"]["curves"]
        if curve["weights"] == weights and curve["run"] in runs
        for point in curve["points"]
        if point["sigma"] == SIGMA
    ]
    return (
        f"{mean(point['mean'] for point in points):.3f} ± "
        f"{mean(point['standard_error'] for point in points):.3f}"
        if points
        else "–"
    )


def render(folder):
    """The table as lines of Markdown."""
    evaluations = {}
    for name in EVALUATIONS:
        with open(os.path.join(folder, name, "evaluation.json")) as file:
            evaluations[name] = json.load(file)
    sets = [one["name"] for one in evaluations["base"]["ood"]]
    heads = [
        "",
        "networks",
        "accuracy %",
        "NLL",
        "ECE",
        "Brier",
        *(f"AUROC {name}" for name in sets),
        "mCE %",
        f"δL({SIGMA})",
    ]
    table = []
    for label, name, weights, run in ROWS:
        evaluation = evaluations[name]
        runs = [run] if run else [one["run"] for one in evaluation["runs"]]
        rows = [
            row for row in evaluation["rows"] if row["weights"] == weights and row["run"] in runs
        ]
        assert len(rows) == len(runs), (
            f"{folder}: {label} has {len(rows)} rows instead of {len(runs)}"
        )
        aurocs = [mean(row["ood"]["sets"][i]["auroc"] for row in rows) for i in range(len(sets))]
        cells = [
            label, str(rows[0]["networks"]), f"{100 * mean(row['accuracy'] for row in rows):.2f}",
            *(f"{mean(row[metric] for row in rows):.4f}" for metric in ("nll", "ece", "brier")),
            *(f"{auroc:.4f}" for auroc in aurocs),
            f"{100 * mean(row['corruption']['mean_error'] for row in rows):.2f}",
            flatness(evaluation, weights, runs),
        ]  # fmt: skip
        table.append(cells)
    return text_table.render(heads, table)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print("\n".join(render(sys.argv[1])))
