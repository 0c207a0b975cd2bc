"""When the members start: at a step, at a part or an epoch of `fit`, or when they are told to."""

import keras
import numpy as np

from late_phase.keras.members import register

NEVER = 2**62  # a step that no training reaches


@register
class Epoch:
    """A number of epochs: the `start` of `LatePhaseOptimizer` or `SWA`, or SWA's `frequency`.

    Example:

    >>> import keras, late_phase.keras
    >>> optimizer = late_phase.keras.LatePhaseOptimizer(
    ...     keras.optimizers.SGD(0.1), members=10, start=late_phase.keras.Epoch(30))

    Args:
      number: the number of epochs, at least 1; as `start`, of those that come before it.

    Raises:
      ValueError: `number` is out of range.
    """

    def __init__(self, number):
        if not is_integer(number) or number < 1:
            raise ValueError(
                f"`number` must be an integer of at least 1. Received: number={number!r}"
            )
        self.number = int(number)

    def __eq__(self, other):
        return isinstance(other, Epoch) and self.number == other.number

    def __hash__(self):
        return hash((Epoch, self.number))

    def __repr__(self):
        return f"Epoch({self.number})"

    def get_config(self):
        return {"number": self.number}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _percentage(start):
    """The number of a "60%"; None if it is none in (0, 100)."""
    try:
        value = float(start[:-1]) if start.endswith("%") else np.nan
    except ValueError:
        return None
    return value if 0 < value < 100 else None


def check_start(start, or_none=True):
    """`start` as it is kept: an int, a percentage, an Epoch or None."""
    if is_integer(start) and start >= 0:
        return int(start)
    if isinstance(start, Epoch) or start is None and or_none:
        return start
    if isinstance(start, str) and _percentage(start) is not None:
        return start
    raise ValueError(
        '`start` must be an integer of at least 0, a percentage in (0, 100), such as "60%", '
        f"{'a late_phase.keras.Epoch, or None' if or_none else 'or a late_phase.keras.Epoch'}. "
        f"Received: start={start!r}"
    )


def size_of_fit(start, params):
    """Steps per epoch and epochs of the `fit` that is running, which a `start` needs.

    `params` are those that `fit` gives to callbacks, or None.
    """
    steps, epochs = ((params or {}).get(name) for name in ("steps", "epochs"))
    if not steps or not epochs:
        raise ValueError(
            "`start` must be a number of steps if the length of the training is not known: in your "
            "own loop, in train_on_batch, and in the first epoch of a dataset that does not tell "
            "its size. "
            f"Received: start={start!r}"
        )
    return steps, epochs


def step_of(start, params):
    """The step of a percentage or an Epoch in the `fit` that is running, from its beginning on."""
    steps, epochs = size_of_fit(start, params)
    if isinstance(start, Epoch):
        return start.number * steps
    return max(1, round(_percentage(start) / 100 * steps * epochs))


class StartOnPlateau(keras.callbacks.Callback):
    """Starts the members when a metric has stopped improving.

    The optimizer must be `LatePhaseOptimizer(…, start=None)`; this calls its `spawn` at the end of
    the first epoch after which `monitor` has not improved for `patience` epochs.

    Example:

    >>> import keras, late_phase.keras
    >>> optimizer = late_phase.keras.LatePhaseOptimizer(
    ...     keras.optimizers.SGD(0.1), members=10, start=None)
    >>> callbacks = [late_phase.keras.StartOnPlateau("val_accuracy", patience=3, mode="max")]

    Args:
      monitor: the name of the metric, as `fit` logs it.
      patience: epochs without an improvement.
      min_delta: only a larger change counts as an improvement.
      mode: "min" or "max": which values are better.

    Raises:
      ValueError: an argument is out of range; in `fit`, if the optimizer has another `start`, or
        there is no such metric.
    """

    def __init__(self, monitor="val_loss", patience=5, min_delta=0.0, mode="min"):
        super().__init__()
        if not is_integer(patience) or patience < 1:
            raise ValueError(
                f"`patience` must be an integer of at least 1. Received: patience={patience!r}"
            )
        if not min_delta >= 0:
            raise ValueError(f"`min_delta` must be at least 0. Received: min_delta={min_delta!r}")
        if mode not in ("min", "max"):
            raise ValueError(f"`mode` must be 'min' or 'max'. Received: mode={mode!r}")
        self.monitor, self.patience = monitor, patience
        self.min_delta, self.mode = min_delta, mode
        self._best, self._waited = np.inf, 0

    def on_train_begin(self, logs=None):
        optimizer = self._optimizer()
        if not hasattr(optimizer, "spawn") or optimizer.has_planned_start:
            raise ValueError(
                "The optimizer must be a LatePhaseOptimizer with start=None, whose members wait "
                f"for this callback. Received: {type(optimizer).__name__}, "
                f"start={getattr(optimizer, 'start', None)!r}"
            )

    def on_epoch_end(self, epoch, logs=None):
        if self._optimizer().start is not None:
            return  # they have started
        if self.monitor not in (logs or {}):
            raise ValueError(
                f"`monitor` must be a metric that `fit` logs: {', '.join(logs or {})}. "
                f"Received: monitor={self.monitor!r}"
            )
        value = float(logs[self.monitor]) * (1 if self.mode == "min" else -1)
        if value < self._best - self.min_delta:
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._optimizer().spawn()

    def _optimizer(self):
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
