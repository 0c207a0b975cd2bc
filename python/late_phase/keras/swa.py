"""Stochastic weight averaging as a Keras callback: the mean of the weights over epochs."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import late_phase
from late_phase.keras.reestimation import layers_to_reestimate, reestimate_batch_norm
from late_phase.keras.swa_files import SampleFiles


def _check_integer(name, value, least):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"`{name}` must be an integer of at least {least}. Received: {name}={value!r}"
        )
    return value


class SWA(keras.callbacks.Callback):
    """Averages a model's trainable weights over epochs, and lends the average to the model.

    After `start` epochs, a sample of the weights is taken every `frequency` epochs, at an epoch's
    end: the first one at the end of epoch `start + frequency`, counted from 1. Layers with members
    are averaged member by member, [K, ...], so that the average can be collapsed, or its members'
    predictions averaged, like any other weights. Training continues with its own weights, also
    after `fit`.

    The averaged network has no moving statistics of its own, so those of its BatchNormalization
    layers are estimated from `dataset` (`reestimate_batch_norm`) when it is first used after a
    sample.

    A training loop of your own calls `set_model`, `on_epoch_begin` and `on_epoch_end`.

    Example:

    >>> import keras, numpy as np, late_phase.keras
    >>> x, y = np.random.normal(size=(60, 8)), np.arange(60) % 4
    >>> layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    >>> model = keras.Sequential([keras.Input((8,)), *layers])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(keras.optimizers.SGD(0.1), loss)
    >>> swa = late_phase.keras.SWA(start=3, dataset=x)
    >>> _ = model.fit(x, y, epochs=5, verbose=0, callbacks=[swa])
    >>> swa.samples
    2
    >>> with swa.averaged():
    ...     model.save("averaged.keras")

    Args:
      start: the number of epochs before averaging begins.
      frequency: epochs from one sample to the next.
      dataset: what `reestimate_batch_norm` takes; may be None if there is no BatchNormalization.
      steps: how many of its batches to use; None: all.
      backup_dir: a folder to keep the average in. A training that resumes at a later epoch
        (`initial_epoch`, `keras.callbacks.BackupAndRestore`) continues with the average kept there,
        whenever it was killed; one that starts before the first sample starts a new average. An
        average that does not match the epoch is an error. None: the average lives as long as the
        callback, and a `fit` that starts at an epoch already sampled starts a new one.

    Raises:
      ValueError: `start` or `frequency` is out of range; in `fit`, if there is BatchNormalization
        but no `dataset`, or if the average in `backup_dir` does not match.
    """

    def __init__(self, start, frequency=1, dataset=None, steps=None, backup_dir=None):
        super().__init__()
        self.start = _check_integer("start", start, 0)
        self.frequency = _check_integer("frequency", frequency, 1)
        self._dataset, self._steps = dataset, steps
        self._files = None if backup_dir is None else SampleFiles(backup_dir)
        self._begun = False  # whether this training's first epoch has begun
        self._forget()

    samples = property(lambda self: self._samples, doc="The number of samples in the average.")

    def _forget(self):
        self._samples, self._epoch = (
            0,
            -1,
        )  # the last sample is that of _epoch, counted from 0 as Keras does
        self._averages = []  # (weight of the model, its average)
        self._statistics = (
            None  # (statistics of the model, their value for the average), once estimated
        )

    def on_train_begin(self, logs=None):
        self._begun = False
        if self._dataset is None and layers_to_reestimate(self.model):
            raise ValueError(
                "`dataset` must be given: the statistics of BatchNormalization are estimated from it for the averaged weights. "
                f"Received: dataset=None, a model with {layers_to_reestimate(self.model)[0].path}"
            )

    def on_epoch_begin(self, epoch, logs=None):
        # Not when training begins: which epoch it is, and its weights, are known when all callbacks have restored what they do.
        if not self._begun:
            self._resume(epoch)
        self._begun = True

    def on_epoch_end(self, epoch, logs=None):
        if self._is_due(epoch):
            self._sample(epoch)

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
                f"There must be a sample to average; the first one is taken at the end of epoch {self.start + self.frequency}. "
                "Received: samples=0"
            )
        own = [
            (copy, copy.read_value())
            for variable in self._lent()
            for copy in self._copies(variable)
        ]
        try:
            self._lend()
            yield self.model
        finally:
            for copy, value in own:
                copy.assign(value)

    def apply(self):
        """Leaves the averaged weights and their statistics in the model."""
        with self.averaged():
            pass  # Estimates the statistics; if that fails, the model is as it was.
        self._lend()

    def _is_due(self, epoch):
        return epoch >= self.start and (epoch + 1 - self.start) % self.frequency == 0

    def _sample(self, epoch):
        self._require_weights(self.model.trainable_variables)
        for variable, average in self._averages:
            late_phase.raw_ops.late_phase_swa_update(
                average=average.handle,
                source=self._copies(variable)[0].handle,
                count=tf.constant(self._samples, tf.int64),
            )
        self._samples, self._epoch, self._statistics = self._samples + 1, epoch, None
        if self._files is not None:
            self._files.write(
                epoch, self._samples, [average.numpy() for _, average in self._averages]
            )

    def _require_weights(self, variables):
        if not self._averages:
            for variable in variables:
                first = self._copies(variable)[0]
                with tf.init_scope(), tf.device(first.device):
                    # Half types would not hold a mean of many.
                    dtype = tf.float64 if first.dtype == tf.float64 else tf.float32
                    self._averages.append(
                        (variable, tf.Variable(tf.zeros(first.shape, dtype), trainable=False))
                    )
        if [id(variable) for variable, _ in self._averages] != [
            id(variable) for variable in variables
        ]:
            raise ValueError(
                "A callback averages one set of weights: use a new SWA for another model, or if layers have been frozen or thawed. "
                f"Received: {len(variables)} weights, not the {len(self._averages)} that the average is of"
            )

    def _resume(self, epoch):
        """Makes the average that of a training that resumes at `epoch`."""
        if self._files is None:
            if self._epoch >= epoch:
                self._forget()
            return
        due = [e for e in range(epoch) if self._is_due(e)]
        kept = self._files.epochs()
        usable = [e for e in kept if e < epoch] if due else []
        before_last = due[-2] if len(due) > 1 else -1
        # Killed after the weights of its last epoch were saved and before their average was: they are here now.
        missed = (
            bool(due) and due[-1] == epoch - 1 and (usable[-1] if usable else -1) == before_last
        )
        if due and kept and not missed and (not usable or usable[-1] != due[-1]):
            raise ValueError(
                f"`backup_dir` must hold the average after epoch {due[-1] + 1} for training to resume at epoch {epoch + 1}; start at epoch "
                f"1, or with another folder, to start a new average. Received: averages after epochs {', '.join(str(e + 1) for e in kept)}"
            )
        self._forget()
        self._files.discard([e for e in kept if e not in usable])
        if usable:
            self._read(usable[-1])
        if missed:
            self._sample(epoch - 1)

    def _read(self, epoch):
        samples, averages = self._files.read(epoch)
        variables = self.model.trainable_variables
        kept, shapes = [a.shape for a in averages], [tuple(v.shape) for v in variables]
        if kept != shapes:
            raise ValueError(
                f"`backup_dir` must be of the same model. Received: an average of shapes {kept}, not {shapes}"
            )
        self._require_weights(variables)
        for (_, average), value in zip(self._averages, averages):
            average.assign(value)
        self._samples, self._epoch = samples, epoch

    def _lent(self):
        """All variables of the model that are others in `averaged`."""
        statistics = [
            v
            for layer in layers_to_reestimate(self.model)
            for v in (layer.moving_mean, layer.moving_variance)
        ]
        return [variable for variable, _ in self._averages] + statistics

    def _lend(self):
        for variable, average in self._averages:
            variable.assign(average)
        if self._statistics is None:
            reestimate_batch_norm(self.model, self._dataset, self._steps)
            self._statistics = [(v, np.array(v)) for v in self._lent()[len(self._averages) :]]
        for variable, value in self._statistics:
            variable.assign(value)

    def _copies(self, variable):
        """A variable's copies, one per replica of tf.distribute; those of statistics may differ."""
        return self.model.distribute_strategy.experimental_local_results(variable.value)
