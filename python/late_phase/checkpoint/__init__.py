"""Checkpoints of the training programs as Keras models, and back.

A run is a folder that `tools/latephase train` has written, with config.toml and checkpoint/. If it
holds several models, the late-phase one is taken, as in `tools/latephase eval`.

Example:

>>> import late_phase.checkpoint, late_phase.keras
>>> model = late_phase.checkpoint.keras_model("runs/cifar-convnet")  # what `train` has written
>>> late_phase.keras.collapse(model).save("plain.keras")             # loads without late_phase
>>> late_phase.checkpoint.save(model, "runs/cifar-convnet")          # for `eval` and `train`
"""

import pathlib

import numpy as np

from late_phase.checkpoint import bundle, char_lstm, image_network
from late_phase.checkpoint.runs import find_run

__all__ = ["keras_model", "read", "save"]

# The program that trained a run -> its networks.
_NETWORKS = {"cifar": image_network, "enwik8": char_lstm}


def read(run):
    """Every variable of a run's newest checkpoint.

    Example:

    >>> import late_phase.checkpoint
    >>> late_phase.checkpoint.read("runs/cifar-convnet")["bn0/scale"].shape  # [K, 6]
    (3, 6)

    Args:
      run: the folder of a run; or RUN/checkpoint, or RUN/checkpoint/step-….

    Returns:
      A dict, name -> numpy array: weights, with one row per member if they are late-phase weights;
      running statistics; NAME/swa, averages over time; the optimizer's state (NAME/momentum,
      NAME/m, NAME/v, NAME/count, NAME/sum); "late_phase/step" and other counters.

    Raises:
      FileNotFoundError: there is no run, or it has no checkpoint.
      ValueError: the checkpoint is damaged, or was not written by a training program.
    """
    folder = pathlib.Path(run)
    if not folder.name.startswith("step-"):
        folder = bundle.newest(
            folder if any(folder.glob("step-*")) else find_run(run)[0] / "checkpoint"
        )
    return bundle.read(folder).variables


def keras_model(run, weights="collapsed"):
    """A run's network as a Keras model, with everything it has learned.

    The model consists of Keras's layers; those with members are from `late_phase.keras`. Its input
    is the program's: for `cifar`, images [N, 32, 32, 3] whose channels were normalised with the
    mean and standard deviation of the training images; for `enwik8`, tokens [N, T], which are
    indices into `read(run)["vocabulary"]`. Its output is logits. `model.predict` returns what the
    program calls `collapsed`: the outputs of the members' mean, including their running statistics.

    BatchNorm has the program's epsilon, 1e-5, and its update rate: the program's 0.1, the weight of
    the new value, is Keras's momentum 0.9, the weight of the old one. The program's running
    variance follows the unbiased variance; when training continues in Keras it becomes that of the
    biased one, smaller by 1 / n for n values per channel in a minibatch.

    Example:

    >>> import late_phase.checkpoint
    >>> model = late_phase.checkpoint.keras_model("runs/cifar-convnet")
    >>> model.input_shape, model.output_shape
    ((None, 32, 32, 3), (None, 10))

    Args:
      run: the folder of a run.
      weights: "collapsed", the trained weights; or "swa", the averages over time, which networks
        with BatchNorm do not have: a checkpoint holds no statistics for them, since the program
        estimates those from the training images when it needs them.

    Returns:
      A Functional model, not compiled.

    Raises:
      FileNotFoundError: there is no run, or it has no checkpoint.
      ValueError: the checkpoint is damaged, has no such weights, or does not match the network in
        config.toml.
    """
    if weights not in ("collapsed", "swa"):
        raise ValueError(f'`weights` must be "collapsed" or "swa". Received: weights={weights!r}')
    opened = _OpenRun(run)
    stored = opened.averages() if weights == "swa" else opened.stored
    for name, variable in opened.weights.items():
        value = stored[name]
        if _has_members(variable) and not opened.contents.spawned:
            value = np.broadcast_to(value[:1], value.shape)  # the other members do not exist yet
        variable.assign(value.reshape(variable.shape))
    return opened.network


def save(model, run):
    """Puts a Keras model's weights, members and moving statistics into a run's newest checkpoint.

    `tools/latephase eval` then evaluates them, and `tools/latephase train … --resume` continues
    from them. Everything else in the run stays the same: the step, on which learning rates and the
    next member depend; the optimizer's moments and sums, since the state of a Keras optimizer is
    laid out differently; averages of SWA; results.json and metrics.jsonl.

    The old checkpoint is removed once the new one is complete, so a process killed at any moment
    leaves one of them. Do not save into a run that is being trained.

    Example:

    >>> import late_phase.checkpoint
    >>> model = late_phase.checkpoint.keras_model("runs/cifar-convnet")
    >>> for weight in model.layers[-1].weights:
    ...     _ = weight.assign(0.9 * weight)  # less confident predictions
    >>> late_phase.checkpoint.save(model, "runs/cifar-convnet")

    Args:
      model: a model with the layers, by name, that `keras_model` builds.
      run: the folder of a run with the same network and number of members.

    Raises:
      FileNotFoundError: there is no run, or it has no checkpoint.
      ValueError: the model is another network, has weights that are not finite, or has members
        where the run has none yet. The checkpoint is left unchanged.
    """
    opened = _OpenRun(run)
    received = opened.weights_of(model)
    _require_same(
        _shapes(opened.weights), _shapes(received), "`model` must be the network of the run"
    )
    values = {}
    for name, variable in received.items():
        value, before = variable.numpy(), opened.stored[name]
        if _has_members(variable) and not opened.contents.spawned and (value != value[0]).any():
            raise ValueError(
                "The members of `model` must be equal, because the run spawns its own at step "
                f"{opened.contents.start}. Received: different members in {name}, for a "
                f"checkpoint of step {opened.contents.step}"
            )
        values[name] = value.reshape(before.shape).astype(before.dtype)
    bundle.replace(opened.checkpoint, opened.contents.with_variables(values))


class _OpenRun:
    """A run's newest checkpoint, and its network in Keras.

    Attributes:
      checkpoint: its folder.
      contents: what is in it.
      network: the run's network with fresh weights.
      weights: of the network, name in the checkpoint -> Keras variable.
      stored: the values of the same names in the checkpoint.
    """

    def __init__(self, run):
        folder, config = find_run(run)
        self.checkpoint = bundle.newest(folder / "checkpoint")
        self.contents = bundle.read(self.checkpoint)
        if config["program"] not in _NETWORKS:
            raise ValueError(
                f"`run` must be a run of `tools/latephase train {' or '.join(_NETWORKS)}`. "
                f"Received: program={config['program']!r}"
            )
        self._networks = _NETWORKS[config["program"]]
        self.network = self._networks.build(config, self.contents)
        self.weights = self.weights_of(self.network)
        self.stored = {
            name: self.contents.variables[name]
            for name in self.weights.keys() & self.contents.variables.keys()
        }
        expected, shapes = _shapes(self.weights), _shapes(self.stored)
        for name, shape in shapes.items():
            # The program keeps one row where Keras has no such dimension.
            if shape == (1, *expected[name]):
                shapes[name] = expected[name]
        _require_same(expected, shapes, f"{self.checkpoint} must be of the network in config.toml")

    def weights_of(self, model):
        return {
            self._networks.name_in_checkpoint(layer.name, weight.name): weight
            for layer in model.layers
            for weight in layer.weights
        }

    def averages(self):
        """The SWA averages of the weights in `stored`."""
        if not all(variable.trainable for variable in self.weights.values()):
            raise ValueError(
                '`weights` must be "collapsed" for a network with BatchNorm: the statistics of '
                "its averages are estimated from the "
                "training images, and not stored. Received: weights='swa'"
            )
        if not self.contents.variables.get("late_phase/swa_count", 0):
            raise ValueError(
                '`weights` must be "collapsed": SWA has no sample at step '
                f"{self.contents.step}. Received: weights='swa'"
            )
        return {name: self.contents.variables[name + "/swa"] for name in self.stored}


def _has_members(variable):
    return hasattr(variable, "late_phase_members")


def _shapes(weights):
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def _require_same(expected, received, rule):
    """Compares two dicts, name -> shape."""
    differences = [f"{name} missing" for name in sorted(expected.keys() - received.keys())]
    differences += [f"{name} unexpected" for name in sorted(received.keys() - expected.keys())]
    for name in sorted(expected.keys() & received.keys()):
        if received[name] != expected[name]:
            differences.append(f"{name} of shape {received[name]} instead of {expected[name]}")
    if differences:
        more = f", and {len(differences) - 6} more" if len(differences) > 6 else ""
        raise ValueError(f"{rule}. Received: {', '.join(differences[:6])}{more}")
