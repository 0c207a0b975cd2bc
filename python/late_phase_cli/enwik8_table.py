"""The tables of an enwik8 run, or of a folder of runs: the results beside the paper's, and what
each part contributes.
"""

from late_phase_cli import model_differences, run_table, text_table

# Bits per character: train, test, test with SWA.
PAPER = {
    "base": (1.570, 1.695, 1.626),
    "rank1": (1.524, 1.663, 1.616),
    "late-phase": (1.522, 1.633, 1.615),
}
NAMES = {"base": "Base", "rank1": "Base + Rank1", "late-phase": "Late-phase Rank1"}
# Controls, which do to a network part of what the late phase does: the difference is what the
# members add.
CONTROLS = {
    "rank1-accumulation": "Base + Rank1, accumulation without members",
    "rank1-lower-rate": "Base + Rank1, lower rate from T0 on",
    "rank1-decay": "Base + Rank1, rate falling to 0 from T0 on",
    "accumulation": "Base, accumulation",
    "lower-rate": "Base, lower rate from T0 on",
    "decay": "Base, rate falling to 0 from T0 on",
}


def bpc(result, split, weights=None):
    """A metric of one run, or None if the run does not have it."""
    metrics = result[split] if weights is None else result[split].get(weights)
    return None if metrics is None else metrics["bpc"]


def render(results):
    """The table as lines of Markdown."""
    runs = run_table.runs_of(results)
    rows = []
    for model, name in {**NAMES, **CONTROLS}.items():
        mine = [run for run in runs if run["model"] == model]
        if not mine:
            continue
        ours = (
            run_table.number([bpc(run, "train") for run in mine]),
            run_table.number([bpc(run, "test", "collapsed") for run in mine]),
            run_table.number([bpc(run, "test", "swa") for run in mine]),
        )
        paper = tuple(f"{value:.3f}" for value in PAPER[model]) if model in PAPER else ("–",) * 3
        rows.append([name, *ours, *paper])
    lines = text_table.render(
        [
            "bits per character",
            "train",
            "test",
            "test with SWA",
            "paper: train",
            "test",
            "with SWA",
        ],
        rows,
    )
    return lines + model_differences.render("enwik8", runs) + render_members(runs)


def render_members(runs):
    """How the members do by themselves, in one line."""
    runs = [run for run in runs if run["test"].get("members")]
    alone = [member["bpc"] for run in runs for member in run["test"]["members"]]
    alone = [value for value in alone if value is not None]
    if not alone:
        return []
    seeds = f" of {len(runs)} seeds" if len(runs) > 1 else ""
    ensemble = run_table.number([bpc(run, "test", "ensemble") for run in runs])
    return [
        "",
        f"Late-phase members{seeds}, test: {min(alone):.3f} to {max(alone):.3f} each; "
        f"their predictions averaged: {ensemble}",
    ]


def render_trials(trials):
    """Test BPC, and with SWA, of (name, results) of small trials, one row each."""
    rows = []
    for name, results in trials:
        cells = []
        for model in NAMES:
            mine = [run for run in run_table.runs_of(results) if run["model"] == model]
            cells.append(
                " / ".join(
                    run_table.number([bpc(run, "test", weights) for run in mine])
                    for weights in ("collapsed", "swa")
                )
            )
        rows.append([name, *cells])
    return text_table.render(["test / with SWA", *NAMES.values()], rows)


def duration(seconds):
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def render_times(runs):
    """How long a whole training takes, from (name, config, results) of short ones: the time of a
    step, and the total.
    """
    rows = []
    for name, config, result in runs:
        step = result["seconds"] / result["steps"]
        chunks = (config["train_characters"] or 90_000_000) // config["batch"] - 1
        steps = round(config["epochs"] * (chunks // config["sequence"]))
        # The late-phase model is forked at T0.
        share = 2 + 1 - config["t0"] / config["epochs"]
        rows.append(
            [
                name,
                f"{step * 1e3:.0f}",
                f"{steps:,}",
                duration(step * steps),
                duration(share * step * steps),
            ]
        )
    return text_table.render(
        ["preset", "ms/step", "steps of a model", "a model", "all three"], rows
    )
