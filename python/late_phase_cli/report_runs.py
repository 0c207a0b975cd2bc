"""Reads what a report is made of: runs, folders of runs, sweeps, and their evaluations."""

import dataclasses
import glob
import json
import os

from late_phase_cli import plot, run_files, run_table, run_types, sweep_table
from late_phase_cli.errors import UserError


class ReportError(UserError):
    """What is wrong with a given folder or file."""


@dataclasses.dataclass
class RunData:
    name: str
    folder: str
    config: dict
    results: dict  # of results.json; empty while the run is in progress
    curves: plot.Run


@dataclasses.dataclass
class Source:
    """A folder that was given: one run, several runs, a sweep, whose runs stay in its table, or an
    evaluation of several runs.
    """

    name: str
    folder: str
    runs: list
    sweep: dict = None  # as in its results.json


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise ReportError(
            f"{os.path.basename(path)} must be readable JSON. Received: {path} ({error})"
        ) from error


def read_run(folder, name):
    path = os.path.join(folder, "results.json")
    results = read_json(path) if os.path.exists(path) else {}
    if wrong := run_types.wrong_result(results):
        raise ReportError(
            f"results.json must hold the results of a run. Received: {path} ({wrong})"
        )
    return RunData(name, folder, run_files.read_config(folder), results, plot.load_run(folder))


def read_sweep(folder):
    try:
        return sweep_table.collect(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(
            "the folder of a sweep must have its sweep.json and the results of its runs. "
            f"Received: {folder} ({error})"
        ) from error


def read_source(folder, name):
    if os.path.exists(os.path.join(folder, "sweep.json")):
        return Source(name, folder, [], read_sweep(folder))
    if os.path.exists(os.path.join(folder, "evaluation.json")):
        return Source(name, folder, [])
    try:
        found = run_files.find_runs(folder)
    except run_files.RunError as error:
        raise ReportError(
            "`RUN` must be the folder of a run, of several runs, of a sweep or of an evaluation. "
            f"Received: RUN={folder}"
        ) from error
    below = {path: os.path.relpath(path, folder) for path in found}
    return Source(
        name,
        folder,
        [read_run(path, name if below[path] == "." else f"{name}/{below[path]}") for path in found],
    )


def read_sources(folders):
    """Each folder once, named after the last part of its path if that tells them apart."""
    folders = list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[
        ::-1
    ]
    short = [os.path.basename(os.path.abspath(folder)) for folder in folders]
    return [
        read_source(folder, name if short.count(name) == 1 else os.path.normpath(folder))
        for folder, name in zip(folders, short)
    ]


def read_evaluation(folder):
    """(evaluation.json, [(file name, PNG)]) of the folder or of its `evaluation`; (None, [])
    without one.
    """
    path = next(
        (
            path
            for path in (folder, os.path.join(folder, "evaluation"))
            if os.path.exists(os.path.join(path, "evaluation.json"))
        ),
        None,
    )
    if path is None:
        return None, []
    evaluation = read_json(os.path.join(path, "evaluation.json"))
    if not isinstance(evaluation, dict):
        raise ReportError(
            "evaluation.json must hold what tools/latephase eval has written. "
            f"Received: {path}/evaluation.json"
        )
    images = []
    for file in sorted(glob.glob(os.path.join(glob.escape(path), "*.png"))):
        with open(file, "rb") as content:
            images.append((os.path.basename(file), content.read()))
    return evaluation, images


def sweep_runs(sweep):
    """[(folder below the sweep's, results)]"""
    return [(run["folder"], run) for run in run_table.runs_of(sweep)]
