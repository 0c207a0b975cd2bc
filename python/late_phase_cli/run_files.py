"""Reads the files of runs that plots, reports and advice are made from: config.toml and
metrics.jsonl.
"""

import dataclasses
import glob
import json
import math
import os
import tomllib

from late_phase_cli import metric_names, run_types
from late_phase_cli.errors import UserError

# The metric by which a program's runs are judged.
METRICS = {
    program: metric_names.METRICS[name]
    for program, name in (("enwik8", "bpc"), ("cifar", "accuracy"))
}


class RunError(UserError):
    """What is wrong with the given folder."""


@dataclasses.dataclass
class Series:
    epochs: list
    values: list
    # The standard deviation over seeds; empty for a single run.
    spread: list = dataclasses.field(default_factory=list)


def is_run(folder):
    return os.path.exists(os.path.join(folder, "metrics.jsonl"))


def find_runs(folder):
    """The folders of runs: `folder` itself or those below it."""
    if is_run(folder):
        return [folder]
    below = [os.path.join(glob.escape(folder), *pattern) for pattern in (["*"], ["seed-*", "*"])]
    found = sorted(filter(is_run, (path for pattern in below for path in glob.glob(pattern))))
    if not found:
        raise RunError(
            "`RUN` must be the folder of a run, with metrics.jsonl, or of several runs. "
            f"Received: RUN={folder}"
        )
    return found


def read_config(folder, further=()):
    """The settings, with those that every reader needs, and `further` ones."""
    path = os.path.join(folder, "config.toml")
    try:
        with open(path, "rb") as file:
            config = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise RunError(
            f"a run must have its config.toml. Received: {path} "
            f"({getattr(error, 'strerror', None) or error})"
        ) from error
    for key in ("program", "model", "seed", "t0", "swa_start", *further):
        if key not in config:
            raise RunError(f"config.toml must have `{key}`. Received: {path}")
    if wrong := run_types.wrong_setting(config):
        raise RunError(f"{wrong} in {path}")
    if config["program"] not in METRICS:
        raise RunError(
            f"`program` must be one of {', '.join(METRICS)}. "
            f"Received: program={config['program']} in {path}"
        )
    return config


def read_metrics(path):
    """The lines as dictionaries. An incomplete last line is left out: the run was killed, or is in
    progress.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (OSError, ValueError) as error:
        raise RunError(f"metrics.jsonl must be readable. Received: {path} ({error})") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            if wrong := run_types.wrong_line(row):
                raise ValueError(wrong)
            rows.append(row)
        except ValueError as error:
            if number < len(lines):
                raise RunError(
                    f"metrics.jsonl must have one JSON object per line. Received: {path}, line "
                    f"{number} ({error})"
                ) from error
    return rows


def series(rows, key):
    """Ordered by step. A resumed run may have taken a step twice: the later line counts."""
    by_step = {row["step"]: row for row in rows if key in row}
    rows = [by_step[step] for step in sorted(by_step)]
    return Series(
        [row["epoch"] for row in rows], [math.nan if row[key] is None else row[key] for row in rows]
    )
