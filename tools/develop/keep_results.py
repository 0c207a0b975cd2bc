"""Copies what is worth keeping from a training run: python tools/develop/keep_results.py RUN DEST

config.toml, results.json and curves.png unchanged, and metrics.jsonl reduced to every evaluation
and at most a hundred lines of training. RUN may hold several runs, or be a sweep; checkpoints and
TensorBoard events stay where they are.
"""

import json
import os
import shutil
import sys

KEPT = ("config.toml", "results.json", "curves.png", "sweep.json", "sweep.png")
TRAINING_LINES = 100


def thinned(lines):
    """The lines of a metrics.jsonl to keep, in order, including the last training line."""
    kinds = [json.loads(line)["kind"] for line in lines]
    training = [i for i, kind in enumerate(kinds) if kind == "train"]
    every = max(1, -(-len(training) // TRAINING_LINES))
    chosen = set(training[::-1][::every])
    return [line for i, line in enumerate(lines) if kinds[i] != "train" or i in chosen]


def keep(run, destination):
    for folder, _, names in os.walk(run):
        target = os.path.normpath(os.path.join(destination, os.path.relpath(folder, run)))
        kept = [name for name in names if name in KEPT]
        if not kept:
            continue  # checkpoints
        os.makedirs(target, exist_ok=True)
        for name in kept:
            shutil.copyfile(os.path.join(folder, name), os.path.join(target, name))
        if "metrics.jsonl" in names:
            with open(os.path.join(folder, "metrics.jsonl")) as file:
                lines = file.readlines()
            with open(os.path.join(target, "metrics.jsonl"), "w") as file:
                file.writelines(thinned(lines))


if __name__ == "__main__":
    if len(sys.argv) != 3 or not any(
        os.path.exists(os.path.join(sys.argv[1], name)) for name in ("config.toml", "sweep.json")
    ):
        raise SystemExit(__doc__)
    keep(sys.argv[1], sys.argv[2])
