"""Finished runs as numbers: what advice and the tables of the noise law are made from."""

import collections
import dataclasses
import math
import os

from late_phase_cli import files, model_names, noise_law, run_files, run_types

# The loss that a program minimises, as results.json and metrics.jsonl call it.
LOSSES = {"enwik8": "bpc", "cifar": "nll"}


class NotFinished(run_files.RunError):
    """The run has no results yet."""


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    folder: str
    config: dict
    results: dict
    curve: dict  # epoch -> loss of the plain weights: on validation data, or in training

    @property
    def program(self):
        return self.config["program"]

    @property
    def model(self):
        return self.config["model"]

    @property
    def seed(self):
        return self.config["seed"]

    @property
    def network(self):
        return model_names.parts_of(self.program, self.model)[0]

    @property
    def treatment(self):
        return model_names.parts_of(self.program, self.model)[1]

    @property
    def epochs(self):
        return self.results["epochs"]

    @property
    def late_epochs(self):
        """The length of its late phase; if it has none, the paper's share of the training."""
        t0 = self.config["t0"]
        return self.epochs - t0 if 0 < t0 < self.epochs else 0.4 * self.epochs

    @property
    def swa_samples(self):
        return round((self.epochs - self.config["swa_start"]) / self.config["swa_every"], 6) // 1

    @property
    def split(self):
        """What the run is judged on: validation, or test where there is none."""
        return "validation" if self.results.get("validation") else "test"

    def loss(self, weights="collapsed", split=None):
        """None if it was not measured, or is not finite."""
        metrics = self.results.get(split or self.split, {}).get(weights, {})
        return metrics.get(LOSSES[self.program])

    def trend(self):
        return noise_law.trend(self.curve)


def curve_of(rows, key, split):
    """{epoch: loss} of the evaluations or, if these are too few for a trend, of the training, epoch
    by epoch.
    """
    evaluations = {
        row["epoch"]: row[key]
        for row in rows
        if row["kind"] == "evaluation"
        and (row.get("split"), row.get("weights")) == (split, "collapsed")
        and row.get(key) is not None
        and row["epoch"] > 0
    }
    if noise_law.trend(evaluations):
        return evaluations
    by_epoch = collections.defaultdict(list)
    for row in rows:
        value = row.get(key, row.get("loss"))
        if row["kind"] == "train" and value is not None:
            by_epoch[max(1, math.ceil(row["epoch"] - 1e-6))].append(value)
    return {epoch: math.fsum(values) / len(values) for epoch, values in by_epoch.items()}


def read(folder):
    """The run in a folder; raises NotFinished if it is not complete."""
    config = run_files.read_config(folder, ("members", "swa_every"))
    path = os.path.join(folder, "results.json")
    if not os.path.exists(path):
        raise NotFinished(f"a run must have finished, with results.json. Received: {folder}")
    try:
        results = files.read_json(path)
        if wrong := run_types.wrong_result(results):
            raise ValueError(wrong)
        run = FinishedRun(folder, config, results, {})
        rows = run_files.read_metrics(os.path.join(folder, "metrics.jsonl"))
        curve = curve_of(rows, LOSSES[run.program], run.split)
        if run.epochs <= 0:
            raise ValueError("no metrics of a run")
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise run_files.RunError(
            f"results.json and metrics.jsonl must be those of a run. Received: {folder} ({error!r})"
        ) from error
    return dataclasses.replace(run, curve=curve)
