"""Stochastic weight averaging as a Keras callback, and its relatives: EMA, LAWA, WSM."""

import contextlib
import math

import keras
import numpy as np

from late_phase.keras import averages
from late_phase.keras.lending import copies, restored
from late_phase.keras.private import minibatches_of
from late_phase.keras.reestimation import layers_to_reestimate, reestimate_batch_norm
from late_phase.keras.start import Epoch, check_start, is_integer, size_of_fit, step_of
from late_phase.keras.swa_files import SampleFiles


class SWA(keras.callbacks.Callback):
    """Averages a model's trainable weights over time, and lends the average to the model.

    From `start` on, a sample of the weights is taken every `frequency`: the first one when
    `start + frequency` is over. Layers with members are averaged member by member, [K, ...], so
    that the average can be collapsed, or its members' predictions averaged, like any other weights.
    Training continues with its own weights, also after `fit`.

    The average is the mean of all samples (SWA); of the last ones (`window`, LAWA); an exponential
    moving average (`weights=0.999`, EMA); or one in which the last samples weigh as if the learning
    rate had fallen while they were taken (`window` and `weights="1-sqrt"`, WSM).

    The averaged network has no moving statistics of its own, so those of its BatchNormalization
    layers are estimated from `dataset` (`reestimate_batch_norm`) when it is first used after a
    sample.

    A training loop of your own calls `set_model`, `on_epoch_begin`, `on_epoch_end` and, if
    `frequency` is in steps, `on_train_batch_end`.

    Example:

    >>> import keras, numpy as np, late_phase.keras
    >>> x, y = np.random.normal(size=(60, 8)), np.arange(60) % 4
    >>> layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    >>> model = keras.Sequential([keras.Input((8,)), *layers])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(keras.optimizers.SGD(0.1), loss)
    >>> swa = late_phase.keras.SWA(start="60%", dataset=x)
    >>> _ = model.fit(x, y, epochs=5, verbose=0, callbacks=[swa])
    >>> swa.samples
    2
    >>> with swa.averaged():
    ...     model.save("averaged.keras")

    Args:
      start: when averaging begins, as in `LatePhaseOptimizer`: a step (minibatch) of the optimizer;
        `"60%"` of the steps of `fit`; or an epoch of `fit`, `late_phase.keras.Epoch(30)`. If
        `frequency` is in epochs, it begins with the first epoch that starts at that step or later.
      frequency: from one sample to the next: steps, or `late_phase.keras.Epoch(n)`, at the end of
        every n-th epoch.
      window: how many of the last samples are averaged, of which a copy each is kept in memory;
        None: all, of which one average is kept.
      weights: of the samples. `"equal"`: all alike. A number m in (0, 1): an exponential moving
        average, which after the first sample becomes m times itself plus (1 - m) times a new one.
        `"cosine"`, `"1-sqrt"`: sample j of the last n, the newest last, weighs
        f(j/n) - f((j+1)/n), where f is how the learning rate would have fallen from 1 to 0; or a
        function f of your own. `"equal"` corresponds to a linear fall.
      dataset: what `reestimate_batch_norm` takes; may be None if there is no BatchNormalization.
      steps: how many of its batches to use; None: all.
      backup_dir: a folder to keep the average in. A training that resumes at a later epoch
        (`initial_epoch`, `keras.callbacks.BackupAndRestore`) continues with the average kept there,
        whenever it was killed; one that starts before the first sample starts a new average. An
        average that does not match the epoch is an error. It is written at the end of an epoch; if
        `frequency` is in steps, this callback must come before the one that saves the weights.
        None: the average lives as long as the callback, and a `fit` that starts at an epoch already
        sampled starts a new one.

    Raises:
      ValueError: an argument is out of range; in `fit`, if there is BatchNormalization but no
        `dataset`, if the number of steps is needed and not known, if samples would fall within
        `steps_per_execution`, or if the average in `backup_dir` does not match.
    """

    def __init__(
        self,
        start,
        frequency=Epoch(1),  # noqa: B008 (it does not change)
        window=None,
        weights="equal",
        dataset=None,
        steps=None,
        backup_dir=None,
    ):
        super().__init__()
        self.start = check_start(start, or_none=False)
        if not isinstance(frequency, Epoch) and not (is_integer(frequency) and frequency >= 1):
            raise ValueError(
                "`frequency` must be a number of steps, at least 1, or a "
                f"late_phase.keras.Epoch. Received: frequency={frequency!r}"
            )
        averages.check(window, weights)
        self.frequency, self.window, self.weights = frequency, window, weights
        self._by_epochs = isinstance(frequency, Epoch)
        self._every = frequency.number if self._by_epochs else int(frequency)
        self.async_safe = self._by_epochs  # to Keras: nothing is done at the end of a batch
        self._dataset, self._steps = dataset, steps
        self._files = None if backup_dir is None else SampleFiles(backup_dir)
        self._begun = False  # whether this training's first epoch has begun
        # Positions, in epochs or steps: where averaging begins, what was done when this epoch
        # began, and what is done now.
        self._first, self._done, self._now = None, 0, 0
        self._forget()

    @property
    def samples(self):
        """The number of samples in the average."""
        return self._average.samples(self._taken) if self._taken else 0

    def _forget(self):
        self._taken, self._last = 0, -1  # samples, and the position of the last
        self._written = 0  # samples when the average was last written
        self._variables = []  # of the model
        self._average = None
        # (statistics of the model, their value for the average), once estimated
        self._statistics = None

    def on_train_begin(self, logs=None):
        self._begun = False
        if self._dataset is None and layers_to_reestimate(self.model):
            raise ValueError(
                "`dataset` must be given: the statistics of BatchNormalization are estimated from "
                "it for the averaged weights. Received: dataset=None, a model with "
                f"{layers_to_reestimate(self.model)[0].path}"
            )

    def on_epoch_begin(self, epoch, logs=None):
        # Not when training begins: the epoch and the weights are known once all callbacks have
        # restored what they restore.
        self._done = epoch if self._by_epochs else self._steps_done()
        if not self._begun:
            self._plan(epoch)
            self._resume(epoch)
        self._begun = True

    def on_train_batch_end(self, batch, logs=None):
        if not self._by_epochs:
            self._now = self._done + batch + 1
            self._sample_if_due(self._now)

    def on_epoch_end(self, epoch, logs=None):
        if self._by_epochs:
            self._sample_if_due(epoch + 1)
        self._write(epoch)

    @contextlib.contextmanager
    def averaged(self):
        """A context in which the model holds the averaged weights and their statistics.

        At its end, also after an exception, the model's own weights and statistics are restored bit
        for bit. Whatever is saved, collapsed or evaluated inside is the averaged model. Training
        inside is lost.

        Yields:
          The model.

        Raises:
          ValueError: no sample has been taken yet.
        """
        if not self.samples:
            raise ValueError(
                f"There must be a sample to average; the first one is taken {self._when()}. "
                "Received: samples=0"
            )
        with restored(self.model, self._lent()):
            self._lend()
            yield self.model

    def apply(self):
        """Leaves the averaged weights and their statistics in the model."""
        with self.averaged():
            pass  # Estimates the statistics; if that fails, the model is as it was.
        self._lend()

    def _when(self):
        """The first sample is taken."""
        first = self._first
        if first is None and isinstance(self.start, Epoch if self._by_epochs else int):
            first = self.start.number if self._by_epochs else self.start
        if first is None:
            return f"after start={self.start!r} and frequency={self.frequency!r}"
        place = first + self._every
        return f"at the end of epoch {place}" if self._by_epochs else f"after step {place}"

    def _steps_done(self):
        """Minibatches that the model's optimizer has seen."""
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:  # in a loop of one's own
            return self._now
        return minibatches_of(optimizer)

    def _plan(self, epoch):
        """Finds where averaging begins, when this training's first epoch begins."""
        if self.start == 0 or isinstance(self.start, Epoch if self._by_epochs else int):
            self._first = self.start.number if isinstance(self.start, Epoch) else self.start
        else:
            per_epoch, _ = size_of_fit(self.start, self.params)
            # The step at which the first epoch of all began, or would have.
            zero = self._steps_done() - epoch * per_epoch
            if isinstance(self.start, int):
                step = self.start
            else:
                step = zero + step_of(self.start, self.params)
            self._first = max(0, math.ceil((step - zero) / per_epoch)) if self._by_epochs else step
        if not self._by_epochs:
            self._require_whole_executions()

    def _require_whole_executions(self):
        together = getattr(self.model, "steps_per_execution", 1)
        per_epoch = (self.params or {}).get("steps")
        if any(n % together for n in (self._every, self._first - self._done, per_epoch or 0)):
            raise ValueError(
                "`start`, `frequency` and the steps of an epoch must be multiples of "
                "`steps_per_execution`, within which no sample can be taken. "
                f"Received: start at step {self._first}, frequency={self._every}, "
                f"{per_epoch} steps an epoch, steps_per_execution={together}"
            )

    def _last_due(self, position):
        """The position of the last sample that is due until then; `_first` if there is none."""
        past = max(0, position - self._first)
        return self._first + past // self._every * self._every

    def _sample_if_due(self, position):
        if position > self._first and self._last_due(position) == position:
            self._sample(position)

    def _sample(self, position):
        self._require_weights(self.model.trainable_variables)
        self._average.add(self._taken)
        self._taken, self._last, self._statistics = self._taken + 1, position, None

    def _require_weights(self, variables):
        if self._average is None:
            self._variables = list(variables)
            sources = [copies(self.model, variable)[0] for variable in variables]
            self._average = averages.average(sources, self.window, self.weights)
        if [id(variable) for variable in self._variables] != [
            id(variable) for variable in variables
        ]:
            raise ValueError(
                "A callback averages one set of weights: use a new SWA for another model, or if "
                f"layers have been frozen or unfrozen. Received: {len(variables)} weights, not the "
                f"{len(self._variables)} that the average is of"
            )

    def _resume(self, epoch):
        """Makes the average that of a training that resumes at `epoch`."""
        if self._files is None:
            if self._last > self._done or self._last <= self._first:
                self._forget()
            return
        due = self._last_due(self._done)
        kept = self._files.epochs()
        usable = [e for e in kept if e < epoch] if due > self._first else []
        last = self._files.position(usable[-1]) if usable else self._first
        # A run that was killed after it saved the weights of its last epoch, but before their
        # average: the weights are here now.
        is_missed = last + self._every == due == self._done
        if kept and due > self._first and last != due and not is_missed:
            unit = "epoch" if self._by_epochs else "step"
            found = ", ".join(str(self._files.position(e)) for e in kept)
            raise ValueError(
                f"`backup_dir` must hold the average after {unit} {due} for training to resume at "
                f"epoch {epoch + 1}; start at epoch 1, or with another folder, to start a new "
                f"average. Received: averages after {unit}s {found}"
            )
        self._forget()
        self._files.discard([e for e in kept if e not in usable])
        if usable:
            self._read(usable[-1])
            self._last = last
        if is_missed:
            self._sample(self._done)
            self._write(epoch - 1)

    def _write(self, epoch):
        if self._files is not None and self._taken > self._written:
            self._files.write(epoch, self._taken, self._last, self._average.arrays())
            self._written = self._taken

    def _read(self, epoch):
        taken, arrays = self._files.read(epoch)
        variables = self.model.trainable_variables
        kept, shapes = [a.shape for a in arrays], [tuple(v.shape) for v in variables]
        if kept != shapes * (len(kept) // len(shapes)) or not kept:
            raise ValueError(
                "`backup_dir` must be of the same model. "
                f"Received: an average of shapes {kept}, not {shapes}"
            )
        self._require_weights(variables)
        self._average.load(arrays)
        self._taken = self._written = taken

    def _lent(self):
        """All variables of the model that are others in `averaged`."""
        statistics = [
            v
            for layer in layers_to_reestimate(self.model)
            for v in (layer.moving_mean, layer.moving_variance)
        ]
        return self._variables + statistics

    def _lend(self):
        for variable, average in zip(self._variables, self._average.values()):
            variable.assign(average)
        if self._statistics is None:
            reestimate_batch_norm(self.model, self._dataset, self._steps)
            self._statistics = [(v, np.array(v)) for v in self._lent()[len(self._variables) :]]
        for variable, value in self._statistics:
            variable.assign(value)
