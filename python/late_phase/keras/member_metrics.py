"""What the members do while they are trained: how far apart they are, and how good each is."""

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras.lending import restored
from late_phase.keras.start import Epoch
from late_phase.keras.swa import SWA


def spread(stacks):
    """Of arrays [K, ...] together: the rows' RMS distance from their mean, relative to its RMS."""
    stacks = [np.float64(rows) for rows in stacks]
    means = [rows.mean(axis=0) for rows in stacks]
    squares = sum(np.square(rows - mean).sum() / len(rows) for rows, mean in zip(stacks, means))
    size = sum(np.square(mean).sum() for mean in means)
    if not squares:
        return 0.0
    return float(np.sqrt(squares / size)) if size else np.inf


class MemberMetrics(keras.callbacks.Callback):
    """Logs how far the members are apart, and the validation metrics of each, at the end of epochs.

    Into the logs of `fit`, and so into `history`, progress bar, and callbacks that come after this
    one, go

    - `member_spread`: the members' root-mean-square distance from their mean, relative to the root
      mean square of the mean, over all trained weights with members; 0 before they start;
    - `val_member_0_loss`, …: of each member, with its own weights and statistics;
    - `val_collapsed_loss`: of the members' mean, which inference uses;
    - `val_swa_loss`: of the average of `swa`; NaN before its first sample;

    and the same for every metric that the model was compiled with. `history` has these by name, and
    the spread of each weight, `member_spread/PATH`, which the logs do not have.

    Training is not affected. Every epoch costs as many evaluations as there are members, and two
    more.

    Example:

    >>> import keras, numpy as np, late_phase.keras
    >>> x, y = np.random.normal(size=(60, 8)), np.arange(60) % 4
    >>> model = keras.Sequential([keras.Input((8,)), late_phase.keras.Dense(4, members=2)])
    >>> optimizer = late_phase.keras.LatePhaseOptimizer(
    ...     keras.optimizers.SGD(0.1), members=2, start="50%", sigma=0.1)
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(optimizer, loss)
    >>> metrics = late_phase.keras.MemberMetrics((x[40:], y[40:]), log_dir="logs")
    >>> history = model.fit(x[:40], y[:40], epochs=4, verbose=0, callbacks=[metrics])
    >>> [name for name in history.history if "member" in name]
    ['member_spread', 'val_member_0_loss', 'val_member_1_loss']
    >>> metrics.plot("members.png")

    Args:
      validation_data: what `evaluate` takes, (x, y) or a dataset; None: spreads alone.
      swa: the `SWA` callback whose average is evaluated, too. It must come before this one.
      log_dir: a folder for TensorBoard, with all that `history` has; None: none.
      frequency: from one evaluation to the next, `late_phase.keras.Epoch(n)`.

    Raises:
      ValueError: an argument is of another kind; in `fit`, if the model has no members.
    """

    def __init__(
        self,
        validation_data=None,
        swa=None,
        log_dir=None,
        frequency=Epoch(1),  # noqa: B008 (it does not change)
    ):
        super().__init__()
        if swa is not None and not isinstance(swa, SWA):
            raise ValueError(
                f"`swa` must be a late_phase.keras.SWA, or None. Received: swa={swa!r}"
            )
        if swa is not None and validation_data is None:
            raise ValueError(
                "`validation_data` must be given for the average of `swa` to be evaluated. "
                "Received: validation_data=None"
            )
        if not isinstance(frequency, Epoch):
            raise ValueError(
                f"`frequency` must be a late_phase.keras.Epoch. Received: frequency={frequency!r}"
            )
        self._data, self._swa, self._frequency = validation_data, swa, frequency
        self._log_dir, self._writer = log_dir, None
        self.history = {"epoch": []}

    def on_train_begin(self, logs=None):
        if not self._stacks(self.model.trainable_variables):
            raise ValueError(
                "The model must have trained weights with members. Received: a model without"
            )

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._frequency.number:
            return
        stacks = self._stacks(self.model.trainable_variables)
        found = {"member_spread": spread([v.numpy() for v in stacks])}
        if self._data is not None:
            found.update(self._evaluations())
        if logs is not None:
            logs.update(found)
        found.update({f"member_spread/{v.path}": spread([v.numpy()]) for v in stacks})
        self.history["epoch"].append(epoch + 1)
        for name, value in found.items():
            self.history.setdefault(name, []).append(value)
        self._write(epoch, found)

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.flush()

    def plot(self, path=None, metric="loss"):
        """Draws a validation metric of the members, their mean and SWA, and the spreads, by epoch.

        Needs matplotlib.

        Args:
          path: a file, such as "members.png"; None: none is written.
          metric: the name of the metric: "loss", or that of a metric. Not drawn if there is no
            `validation_data`.

        Returns:
          The matplotlib figure, or None if `path` is given.

        Raises:
          ValueError: nothing has been measured, or there is no such metric.
        """
        from late_phase.keras.member_plot import draw

        figure = draw(self.history, metric if self._data is not None else None)
        if path is None:
            return figure
        figure.savefig(path, dpi=150)
        return None

    def _stacks(self, variables):
        return [v for v in variables if hasattr(v, "late_phase_members")]

    def _evaluations(self):
        """Name -> value. Names never change: callbacks that write tables take the first epoch's."""
        stacks = self._stacks(self.model.variables)
        own = [np.array(v.numpy()) for v in stacks]
        collapsed = self._evaluate()
        by_member = [collapsed] * stacks[0].late_phase_members
        if any((rows != rows[:1]).any() for rows in own):  # else they have not started
            with restored(self.model, stacks):
                for k in range(len(by_member)):
                    for variable, rows in zip(stacks, own):
                        variable.assign(np.broadcast_to(rows[k], rows.shape))
                    by_member[k] = self._evaluate()
        found = {}
        for k, values in enumerate(by_member):
            found.update(_named(f"val_member_{k}", values))
        found.update(_named("val_collapsed", collapsed))
        if self._swa is not None:
            averaged = dict.fromkeys(collapsed, np.nan)
            if self._swa.samples:
                with self._swa.averaged():
                    averaged = self._evaluate()
            found.update(_named("val_swa", averaged))
        return found

    def _evaluate(self):
        data = self._data if isinstance(self._data, tuple) else (self._data,)
        names = ("x", "y", "sample_weight")
        return self.model.evaluate(**dict(zip(names, data)), verbose=0, return_dict=True)

    def _write(self, epoch, found):
        if self._log_dir is None:
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._log_dir))
        # What tf.summary.scalar writes, which would need the tensorboard package.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default():
            for name, value in found.items():
                tf.summary.write(
                    name, tf.constant(value, tf.float32), step=epoch, metadata=metadata
                )


def _named(prefix, values):
    return {f"{prefix}_{name}": float(value) for name, value in values.items()}
