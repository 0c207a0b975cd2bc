"""What the recorded runs show, for `latephase advise`, which does not have them: python -m
tools.develop.outcomes --write

Writes python/late_phase_cli/outcomes.json from docs/results; tests/docs/docs_test.py checks it. An
entry is a network with its training: its noise and the fall still ahead of it on validation data
(noise_law.py), and what the late phase and accumulation changed in the test loss, mean over the
seeds; for image networks, in points of accuracy.
"""

import glob
import statistics
import sys

from late_phase_cli import advice, files, finished_runs, law_table

PATH = "python/late_phase_cli/outcomes.json"
TEXT = ("docs/results/enwik8-*", "docs/results/sweep-enwik8-*")
IMAGES = "docs/results/cifar-*"


def _rounded(values):
    return {name: round(value, 4) for name, value in values.items()}


def _text(comparisons):
    """An entry for each network, training and K that has a late phase or accumulation."""
    entries = {}
    for one in comparisons:
        run, kind = one.treated, {"late-phase": "late_phase"}.get(one.treated.treatment)
        kind = kind or one.treated.treatment
        plain = [pair[0] for pair in one.pairs]
        trends = [other.trend() for other in plain]
        if kind not in ("late_phase", "accumulation") or None in trends:
            continue
        noises = [other.loss() - other.loss("swa") for other in plain]
        excess = statistics.fmean(noises)
        loss = statistics.fmean(other.loss() for other in plain)
        fall = advice.fall_ahead(trends, run.epochs, run.late_epochs)
        key = law_table.network_key(run), run.config["t0"], run.config["members"]
        entry = {
            "program": "enwik8",
            "setting": f"{run.network}: {law_table.setting_text(plain[0])}",
            "members": run.config["members"],
            "seeds": len(plain),
            "excess": round(excess, 4),
            "fall": round(fall, 4),
            "stage": advice.stage_of(excess, fall, advice.is_told(noises, loss)),
        }
        change = {weights: one.difference(weights) for weights in ("collapsed", "swa")}
        # Several σ0: the best one with SWA represents the late phase.
        entry = entries.setdefault(key, entry)
        if kind not in entry or change["swa"] < entry[kind]["swa"]:
            entry[kind] = _rounded(change)
    for entry in entries.values():
        if {"late_phase", "accumulation"} <= entry.keys():
            entry["members_add"] = _rounded(
                {
                    weights: entry["late_phase"][weights] - entry["accumulation"][weights]
                    for weights in ("collapsed", "swa")
                }
            )
    return list(entries.values())


def _images():
    """Networks with and without a late phase, one folder each."""
    entries = []
    for folder in sorted(glob.glob(IMAGES)):
        runs = [finished_runs.read(path) for path in sorted(glob.glob(f"{folder}/*/"))]
        of = {run.model: run.results["test"]["collapsed"]["accuracy"] for run in runs}
        if {"base", "late-phase"} <= of.keys():
            change = 100 * (of["late-phase"] - of["base"])
            name = folder.removeprefix("docs/results/")
            entries.append(
                {"program": "cifar", "setting": name, "late_phase": _rounded({"collapsed": change})}
            )
    return entries


def collect():
    """What outcomes.json must hold."""
    return [*_text(law_table.comparisons(law_table.read_all(*TEXT))), *_images()]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    files.write_json(PATH, collect())
