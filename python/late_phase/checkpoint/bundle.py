"""A run's checkpoint on disk, by the rules of optimizers/checkpoint.h.

Each checkpoint is a folder RUN/checkpoint/step-000000000017 with the TensorFlow tensor bundle
`state`; the one whose name sorts last counts. It is written under another name and renamed when it
is complete.
"""

import os
import pathlib
import shutil

import numpy as np
import tensorflow as tf

_BUNDLE = "state"
# The program uses this name, too: the next writer removes what a killed process left.
_INCOMPLETE = ".incomplete"
# Entries that are not variables of the training graph.
_OF_THE_FILE = "late_phase_checkpoint/"
_SETTINGS = _OF_THE_FILE + "settings"
_STEP = _OF_THE_FILE + "step"


def _checkpoints(folder):
    """The complete checkpoints, oldest first: the numbers are padded, so names sort like steps."""
    return (
        sorted(path for path in folder.iterdir() if path.name.startswith("step-"))
        if folder.is_dir()
        else []
    )


def newest(folder):
    """The newest complete checkpoint in `folder`, RUN/checkpoint.

    Raises:
      FileNotFoundError: there is none.
    """
    found = _checkpoints(pathlib.Path(folder))
    if not found:
        raise FileNotFoundError(
            f"There must be a checkpoint, a folder step-…. Received: {folder}, which has none"
        )
    return found[-1]


class Contents:
    """What a checkpoint holds.

    Attributes:
      variables: name -> array, of the training graph: weights, statistics, the optimizer's state,
        counters.
      step: minibatches done.
      members: K.
      start: T0, the step at which the members are spawned.
    """

    def __init__(self, tensors):
        self._tensors = tensors
        self.variables = {
            name: value for name, value in tensors.items() if not name.startswith(_OF_THE_FILE)
        }
        self.step = int(tensors[_STEP])
        settings = dict(setting.decode().split("=", 1) for setting in tensors[_SETTINGS])
        self.members, self.start = int(settings["members"]), int(settings["start"])

    @property
    def spawned(self):
        """Whether the members have been spawned; before that, only row 0 of a variable counts."""
        # 0.1.0 did not record it; there the first step after `start` spawned them.
        return bool(self.variables.get("late_phase/spawned", self.step > self.start))

    def with_variables(self, variables):
        """The same contents with other values for some variables."""
        return Contents({**self._tensors, **variables})

    def write(self, prefix):
        """A tensor bundle of it."""
        names = sorted(self._tensors)
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[self._tensors[name] for name in names],
        )


def read(checkpoint):
    """The `Contents` of a folder step-….

    Raises:
      ValueError: it is damaged, or was not written by a training program.
    """
    try:
        reader = tf.train.load_checkpoint(str(pathlib.Path(checkpoint) / _BUNDLE))
        tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
        raise ValueError(
            f"The checkpoint must be complete and in TensorFlow's format. Received: {checkpoint}: "
            f"{error}"
        ) from error
    if _SETTINGS not in tensors or _STEP not in tensors:
        raise ValueError(
            "The checkpoint must be one that tools/latephase train wrote. "
            f"Received: {checkpoint}, which has no {_SETTINGS}"
        )
    return Contents(tensors)


def replace(checkpoint, contents):
    """Replaces `checkpoint`, a folder step-…, by one with `contents`.

    A process that is killed at any moment leaves the old checkpoint or the new one, complete, as
    the newest of the folder.
    """
    for name, value in contents.variables.items():
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            raise ValueError(f"`{name}` must be finite to be saved. Received: inf or NaN")
    folder = pathlib.Path(checkpoint).parent
    incomplete = folder / _INCOMPLETE
    shutil.rmtree(incomplete, ignore_errors=True)
    incomplete.mkdir()
    contents.write(incomplete / _BUNDLE)
    for path in (*incomplete.iterdir(), incomplete):
        _sync(path)
    # A folder cannot be renamed to one that exists, so the new one first gets a name that sorts
    # after it.
    older = _checkpoints(folder)
    later = folder / (older[-1].name + "+")
    incomplete.rename(later)
    _sync(folder)
    for path in older:
        shutil.rmtree(path)
    later.rename(folder / f"step-{contents.step:012}")
    _sync(folder)


def _sync(path):
    """Waits until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
