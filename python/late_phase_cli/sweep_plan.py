"""The points of a sweep: the settings of each, the flags that train them, and the folder of their
runs. Nothing is run here.
"""

import dataclasses
import itertools
import re

from late_phase_cli import model_names
from late_phase_cli.errors import UserError

# Settings that a network without members, or accumulation, ignores.
OF_MEMBERS = ("members", "t0", "sigma", "gamma")


class SweepError(UserError):
    """What is wrong with the command line or the folder."""


@dataclasses.dataclass
class Point:
    axes: list  # the names of the settings that distinguish it from the other points of its table
    values: dict  # those settings: name -> text, as given
    flags: list  # of train
    folder: str  # below the sweep's
    config: dict = dataclasses.field(default_factory=dict)  # every setting, as train understood it

    def __str__(self):
        return ", ".join(f"{name} {text}" for name, text in self.values.items())

    def run_folder(self, seed):
        return f"{self.folder}/seed-{seed}"


def read_axes(texts):
    """{name: [value]} from the arguments of --over: "members=1,2,5"."""
    axes = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name, values = (
            name.strip().replace("-", "_"),
            [value.strip() for value in values.split(",")],
        )
        if not equals or not re.fullmatch(r"[a-z0-9_]+", name) or not all(values):
            raise SweepError(
                "`over` must be a setting and its values, such as members=1,2,5. "
                f"Received: over={text}"
            )
        if name in ("seed", "seeds", "program"):
            raise SweepError(
                f"`over` must name a setting other than {name}; --seeds N repeats every point. "
                f"Received: over={text}"
            )
        if name in axes or len(set(values)) < len(values):
            raise SweepError(
                f"`over` must name each setting and each value once. Received: over={text}"
            )
        if name == "model" and "all" in values:
            raise SweepError(f"`over` must name single models. Received: over={text}")
        axes[name] = values
    return axes


def number(text):
    """The text as a number if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def train_flags(program, model, values):
    flags = {"model": model, **values}
    if number(flags.get("members", "")) == 1:
        flags = {name: text for name, text in flags.items() if name not in OF_MEMBERS} | {
            "model": model_names.single(program, flags["model"])
        }
    return [f"--{name.replace('_', '-')}={text}" for name, text in flags.items()]


def folder_of(values):
    """ "members-5", "members-5/sigma-0.1"; paths and spaces in a value become underscores."""
    return "/".join(
        f"{name}-{re.sub(r'[^A-Za-z0-9.+-]', '_', text)}" for name, text in values.items()
    )


def plan_points(program, model, axes, grid):
    """Every combination of the values, or one axis at a time with the rest from the preset."""
    if grid:
        all_values = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    else:
        all_values = [{name: value} for name, values in axes.items() for value in values]
    points = [
        Point(list(values), values, train_flags(program, model, values), folder_of(values))
        for values in all_values
    ]
    folders = [point.folder for point in points]
    for point in points:
        if folders.count(point.folder) > 1:
            raise SweepError(
                "`over` must have values that give different folder names. "
                f"Received: {point.folder} twice"
            )
    return points


def share_runs(points):
    """Points with the same settings, such as the preset's own on two axes, share their runs: those
    of the first one.
    """
    for i, point in enumerate(points):
        point.folder = next(
            other.folder for other in points[: i + 1] if other.config == point.config
        )


def common_settings(points):
    first, *rest = [point.config for point in points]
    return {
        name: value
        for name, value in first.items()
        if name != "seed" and all(other.get(name) == value for other in rest)
    }


def to_json(program, axes, grid, seeds, points):
    """What sweep.json holds; results.json begins with it."""
    return {
        "program": program,
        "grid": grid,
        "axes": axes,
        "seeds": seeds,
        "config": common_settings(points),
        "points": [
            {
                "axes": point.axes,
                "values": point.values,
                "folder": point.folder,
                "config": point.config,
            }
            for point in points
        ],
    }


def is_part_of(old, new):
    """Whether every run of one sweep.json is among the other's, so that a sweep may continue, with
    more values or seeds.

    Settings that only one of them has come from another version of the program; train judges those
    when it resumes.
    """
    if old.get("program") != new["program"] or not set(old.get("seeds", ())) <= set(new["seeds"]):
        return False
    configs = {point["folder"]: point["config"] for point in new["points"]}

    def same(one, other):
        return all(one[name] == other[name] for name in one.keys() & other.keys() if name != "seed")

    return all(
        point["folder"] in configs and same(point["config"], configs[point["folder"]])
        for point in old["points"]
    )
