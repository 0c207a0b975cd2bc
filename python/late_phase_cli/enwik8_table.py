"""The tables of an enwik8 run, or of a folder of runs: the results beside the paper's, and what each part contributes."""

from late_phase_cli import paired, run_table, text_table

# Bits per character: train, test, test with SWA.
PAPER = {
    "base": (1.570, 1.695, 1.626),
    "rank1": (1.524, 1.663, 1.616),
    "late-phase": (1.522, 1.633, 1.615),
}
NAMES = {"base": "Base", "rank1": "Base + Rank1", "late-phase": "Late-phase Rank1"}
# Controls, which do to a network part of what the late phase does: the difference is what the members add.
CONTROLS = {
    "rank1-accumulation": "Base + Rank1, accumulation without members",
    "rank1-lower-rate": "Base + Rank1, lower rate from T0 on",
    "rank1-decay": "Base + Rank1, rate falling to 0 from T0 on",
    "accumulation": "Base, accumulation",
    "lower-rate": "Base, lower rate from T0 on",
    "decay": "Base, rate falling to 0 from T0 on",
}


# The differences that answer a question: (name, model, minus this model).
DIFFERENCES = (
    ("Late-phase against Base", "late-phase", "base"),
    ("Base + Rank1 against Base", "rank1", "base"),
    ("Late-phase against Base + Rank1", "late-phase", "rank1"),
    (
        "Late-phase against accumulation on the same network: what the members add",
        "late-phase",
        "rank1-accumulation",
    ),
)
SETS = {"collapsed": "test", "swa": "test with SWA"}


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
    return lines + render_differences(runs) + render_members(runs)


def differences(runs):
    """[(name, {weights: paired.Difference})] of the test BPC, for those DIFFERENCES whose runs exist."""
    of = {
        (model, weights): {
            run["seed"]: value
            for run in runs
            if run["model"] == model and (value := bpc(run, "test", weights)) is not None
        }
        for model in {model for _, *pair in DIFFERENCES for model in pair}
        for weights in SETS
    }
    found = []
    for name, model, other in DIFFERENCES:
        its = {
            weights: one
            for weights in SETS
            if (one := paired.difference(of[model, weights], of[other, weights]))
        }
        if its:
            found.append((name, its))
    return found


def difference_rows(found):
    """Heads, rows and the sentence that explains them; cells are strings. `found`: from differences()."""
    several = any(one.seeds > 1 for _, its in found for one in its.values())
    weights = [name for name in SETS if any(name in its for _, its in found)]
    heads = ["difference in bits per character"]
    for name in weights:
        heads += [SETS[name], "better in"] if several else [SETS[name]]
    rows = []
    for name, its in found:
        cells = [name]
        for one in map(its.get, weights):
            cells.append(one.number() if one else "–")
            if several:
                cells.append(f"{one.won} of {one.seeds} seeds" if one else "–")
        rows.append(cells)
    if several:
        note = "Mean over the seeds, each against itself, with its 95 % interval; below 0 the first is better."
    else:
        note = "Below 0 the first is better. One seed is no evidence: --seeds 5 gives an interval."
    return heads, rows, note


def render_differences(runs):
    found = differences(runs)
    if not found:
        return []
    heads, rows, note = difference_rows(found)
    return ["", *text_table.render(heads, rows), "", note]


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
    """How long a whole training takes, from (name, config, results) of short ones: the time of a step, and the total."""
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
