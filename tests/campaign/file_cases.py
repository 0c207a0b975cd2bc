"""Which files of a scene are damaged, what a user types next, and what may come of it.

A damaged file must be refused by name, or be harmless: the same result as with the intact file,
bit for bit. There is a third way only where a file says by itself what is shown or used, and
nothing else knows better: then it must still be a file of its form, and `shows` says which results
may differ.
"""

import dataclasses
import json
import tomllib
from collections.abc import Callable

from tests.campaign.trainings import differing

# The settings that a checkpoint does not hold, because a run may be continued with others: its
# length, what is logged, and what is evaluated.
FREE_SETTINGS = frozenset(
    "epochs steps log_every evaluate_every checkpoint_every pretrained test_characters "
    "validation_characters test_images batch_norm_collapse".split()
)

_NPY_HEAD = 128  # bytes before the values


@dataclasses.dataclass(frozen=True)
class Case:
    scene: str
    file: str  # inside the scene; * stands for the name of the newest checkpoint
    commands: tuple
    # (before, after: the file's bytes; command, intact, outcome) -> whether the outcome is what the
    # file says
    shows: Callable = lambda *_: False


def _table(data):
    try:
        return tomllib.loads(data.decode())
    except ValueError:
        return None


def changed_settings(before, after):
    """The names of settings that differ in two files of settings, or that one of them lacks."""
    one, other = _table(before), _table(after)
    if one is None or other is None:
        return set()
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def config_shows(before, after, command, intact, outcome):
    """Plots and reports show what the file says; elsewhere it decides on free settings alone."""
    if _table(after) is None:
        return False
    shown = command in ("plot", "report", "advise")
    return shown or changed_settings(before, after) <= FREE_SETTINGS


def _parses(data):
    try:
        return json.loads(data)
    except ValueError:
        return None


def metrics_show(before, after, command, intact, outcome):
    """Lines of metrics; those that a resumed training adds are the same."""
    *lines, last = after.split(b"\n")
    if command != "resume":
        return all(isinstance(_parses(line), dict) for line in lines if line.strip())
    if not set(differing(outcome.result, intact.result)) <= {"metrics"}:
        return False
    reached = max((_parses(line)["step"] for line in before.split(b"\n") if line), default=0)
    one, other = (
        [line for line in end.result["metrics"] if line.get("step", 0) > reached]
        for end in (intact, outcome)
    )
    return one == other


def results_show(before, after, command, intact, outcome):
    """Results: shown as they are if they are those of the whole training."""
    results = _parses(after)
    if not command.startswith("resume"):
        return isinstance(results, dict)
    differ = set(differing(outcome.result, intact.result))
    is_whole = isinstance(results, dict) and results.get("steps") == _parses(before)["steps"]
    return is_whole and differ <= {"results", "table"}


def evaluation_shows(before, after, command, intact, outcome):
    return isinstance(_parses(after), dict)


def records_show(before, after, command, intact, outcome):
    """Whole records of images, with labels of the set: the format has no checksum."""
    return len(after) % 3073 == 0 and all(label < 10 for label in after[::3073])


def other_images_show(before, after, command, intact, outcome):
    """Whole records of either set, whose labels are not looked at."""
    return bool(after) and (len(after) % 3073 == 0 or len(after) % 3074 == 0)


def array_shows(before, after, command, intact, outcome):
    """An array of the same type and shape, with labels of the set: no checksum either."""
    head = before.index(b"}")
    same = len(after) == len(before) and after[:head] == before[:head]
    is_labels = b", 32, 32, 3)" not in before[:head]
    return same and not (is_labels and any(label >= 10 for label in after[_NPY_HEAD:]))


def of_scene(name, program, is_finished):
    """The cases of a scene: a training of that program, finished or in mid-run."""
    sample = ("sample",) if program == "enwik8" else ()
    # To resume a finished training is to read its results, and nothing else.
    resume = () if is_finished else ("resume",)
    network, tables = (*resume, "eval", *sample), ("plot", "report", "advise")
    cases = [
        Case(name, "run/checkpoint/*/state.index", network),
        Case(name, "run/checkpoint/*/state.data-00000-of-00001", network),
        Case(name, "run/config.toml", ("resume", "eval", *sample, *tables), config_shows),
        Case(name, "run/metrics.jsonl", (*resume, *tables), metrics_show),
    ]
    if not is_finished:
        return cases
    shown = ("resume",) if program == "enwik8" else ("resume", "resume_with_table")
    cases += [
        Case(name, "run/results.json", (*shown, "report", "advise"), results_show),
        Case(
            name, "run/evaluation/evaluation.json", ("plot_evaluation", "report"), evaluation_shows
        ),
    ]
    if program == "enwik8":
        return cases + [
            Case(name, "files/enwik8", ("look_up",)),
            Case(name, "files/enwik8.gz", ("look_up_gzip",)),
            Case(name, "files/enwik8.zip", ("look_up_zip",)),
        ]
    return cases + [
        Case(name, "data/data_batch_3.bin", ("eval",), records_show),
        Case(name, "data/test_batch.bin", ("eval",), records_show),
        Case(name, "files/cifar-10-binary.tar.gz", ("eval_archive",)),
        Case(name, "files/corrupted/fog.npy", ("eval_other_images",), array_shows),
        Case(name, "files/corrupted/labels.npy", ("eval_other_images",), array_shows),
        Case(name, "files/other.bin", ("eval_other_images",), other_images_show),
    ]
