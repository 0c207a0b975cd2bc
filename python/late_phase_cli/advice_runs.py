"""latephase advise: what the runs in a folder say about SWA, accumulation, a lower rate and a late
phase.
"""

import collections
import os
import shlex
import statistics
import textwrap

from late_phase_cli import advice, finished_runs, law_table, locations, metric_names, run_files
from late_phase_cli.errors import UserError

# For a network without its own.
MEMBERS = 10
TREATMENTS = {
    "accumulation": "accumulation",
    "lower-rate": "the lower rate",
    "late-phase": "the late phase",
    "decay": "the falling rate",
}
OPTIMIZERS = {"enwik8": "adam", "cifar": "sgd"}  # of runs that do not say


def read(folder):
    """(finished runs, names of unfinished ones)"""
    if os.path.exists(os.path.join(folder, "sweep.json")):
        raise UserError(
            "`RUN` must be the folder of a run or of several runs, not of a sweep; each of its "
            f"points is such a folder. Received: RUN={folder}"
        )
    finished, others = [], []
    for path in run_files.find_runs(folder):
        try:
            finished.append(finished_runs.read(path))
        except finished_runs.NotFinished:
            others.append(path)
    if not finished:
        raise UserError(_not_finished(folder, others[0]))
    if len({run.program for run in finished}) > 1:
        raise UserError(
            f"the runs of a folder must be of one program. Received: RUN={folder}, which has runs "
            "of several"
        )
    return finished, [os.path.relpath(path, folder) for path in others]


def _not_finished(folder, first):
    config = run_files.read_config(first)
    rows = run_files.read_metrics(os.path.join(first, "metrics.jsonl"))
    epoch = max((row.get("epoch", 0) for row in rows), default=0)
    of = f" of {config['epochs']:g}" if config.get("epochs") and not config.get("steps") else ""
    resume = shlex.join(["train", config["program"], "--resume", "--out", folder])
    return (
        f"`RUN` must have finished. Received: RUN={folder}, which is at epoch {epoch:.3g}{of}. "
        f"To resume it: {locations.command()} {resume}"
    )


def groups_of(runs):
    """Runs of the same network and training, which differ only in their seed; [] if only a
    treatment of it exists.
    """
    groups = collections.defaultdict(list)
    for run in runs:
        if not run.treatment:
            groups[law_table.network_key(run)].append(run)
    return list(groups.values())


def has_swa(runs):
    return all(run.loss() is not None and run.loss("swa") is not None for run in runs)


def measured_of(runs):
    first = runs[0]
    return advice.Measured(
        losses=[run.loss() for run in runs],
        swa_losses=[run.loss("swa") for run in runs],
        members=first.config["members"] if first.config["members"] > 1 else MEMBERS,
        late_epochs=first.late_epochs,
        end=first.epochs,
        trends=[run.trend() for run in runs],
        swa_samples=first.swa_samples,
        optimizer=first.config.get("optimizer", OPTIMIZERS[first.program]),
    )


def title(runs):
    first = runs[0]
    seeds = f"{len(runs)} seeds" if len(runs) > 1 else f"seed {first.seed}"
    unit = metric_names.METRICS[finished_runs.LOSSES[first.program]].label
    return f"{first.model}, {seeds}; loss is {first.split} {unit}"


def how_to_measure(folder, runs):
    """The advice for runs without SWA."""
    first = runs[0]
    preset = folder if os.path.exists(os.path.join(folder, "config.toml")) else first.folder
    start = first.epochs - first.late_epochs
    every = min(0.25, first.late_epochs / 10) if first.late_epochs <= 10 else 1
    command = shlex.join(
        [
            *("train", first.program, "--preset", os.path.join(preset, "config.toml")),
            *("--swa-start", f"{start:.3g}", "--swa-every", f"{every:.2g}"),
            *("--out", f"{folder}-swa"),
        ]
    )
    return [
        "Noise: not known, because the run has no SWA. The noise that averaging can remove is the "
        "loss minus the loss with SWA, so train again with SWA, and ask for advice on that run:",
        f"  {locations.command()} {command}",
        f"  {locations.command()} {shlex.join(['advise', folder + '-swa'])}",
    ]


def comparable(runs):
    """The runs of the seeds that every model has; [] if they are of several trainings, or of one
    model.
    """
    seeds = collections.defaultdict(set)
    for run in runs:
        seeds[run.model].add(run.seed)
    if len(seeds) < 2 or sum(map(len, seeds.values())) < len(runs):
        return []
    common = set.intersection(*seeds.values())
    return [run for run in runs if run.seed in common]


def measured_here(runs):
    """[(mean loss, name, whether it is a plain network)] of the models with and without SWA, the
    best first.
    """
    groups = collections.defaultdict(list)
    for run in runs:
        for weights, name in (("collapsed", ""), ("swa", " with SWA")):
            if run.loss(weights) is not None:
                groups[run.model + name, not run.treatment].append(run.loss(weights))
    return sorted((statistics.fmean(values), *key) for key, values in groups.items())


def treated_only(runs):
    """For a run with members, or a control: the noise that is left, and what to compare it with."""
    first = runs[0]
    lines = []
    if has_swa([first]):
        rest = first.loss() - first.loss("swa")
        lines.append(
            f"Noise: the loss is {first.loss():.4f}, with SWA {first.loss('swa'):.4f}; the "
            f"difference of {rest:+.4f} is the noise that {TREATMENTS[first.treatment]} has left."
        )
    command = shlex.join(
        [
            *("train", first.program, "--preset", os.path.join(first.folder, "config.toml")),
            *("--model", first.network, "--out", f"{first.folder}-{first.network}"),
        ]
    )
    return [
        *lines,
        "Only the same network without it can show how much noise there was before, and how much "
        f"{TREATMENTS[first.treatment]} has removed. Recommendation: train that network, and ask "
        "for advice on it:",
        f"  {locations.command()} {command}",
    ]


def lines_of(folder):
    """The advice as lines, which may be long sentences."""
    folder = os.path.normpath(folder)
    runs, going_on = read(folder)
    lines = [f"Not finished, and left out: {', '.join(going_on)}."] if going_on else []
    groups = groups_of(runs)
    if not groups:
        mine = [run for run in runs if run.model == runs[0].model]
        return [*lines, title(mine), *treated_only(mine)]
    given = []  # (loss with SWA, advice)
    for group in groups:
        lines.append(title(group))
        if has_swa(group):
            one = advice.advise(measured_of(group))
            given.append((statistics.fmean(run.loss("swa") for run in group), group[0].model, one))
            lines += one.findings
        else:
            lines += how_to_measure(folder, group)
        lines.append("")
    compared = comparable(runs)
    found = measured_here(compared)
    if found:
        listed = ", ".join(f"{name} {mean:.4f}" for mean, name, _ in found)
        lines.append(f"Measured here: {listed}.")
    if given:
        _, model, best = min(given, key=lambda one: one[:2])
        lines += best.evidence
    if found and not found[0][2]:
        mean, name, _ = found[0]
        seeds = len({run.seed for run in compared})
        weight = f"mean of {seeds} seeds" if seeds > 1 else "one seed, which is no evidence"
        lines.append(f"Recommendation: {name}, the best that was measured here ({weight}).")
    elif given:
        of = f" ({model}, the better network)" if len(given) > 1 else ""
        lines.append(f"Recommendation{of}: {best.recommendation}")
    else:
        lines.append("Recommendation: measure the noise first, as above.")
    return lines


def render(folder, width=100):
    """The advice, in lines that fit a terminal; commands stay whole."""
    wrapped = []
    for line in lines_of(folder):
        if line.startswith("  "):
            wrapped.append(line)
        else:
            wrapped += textwrap.wrap(
                line, width, break_long_words=False, break_on_hyphens=False
            ) or [""]
    return "\n".join(wrapped)
