"""Averages of weights over time: of all samples, with a fading memory, or of the latest ones."""

import collections
import math

import numpy as np
import tensorflow as tf

import late_phase

# The names that `SWA(weights=…)` takes: how the learning rate would fall, from 1 to 0 over t in
# [0, 1]. A plain mean is what a linear fall gives.
_DECAYS = {
    "equal": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "1-sqrt": lambda t: 1 - math.sqrt(t),
}


def check(window, weights):
    """Refuses a `window` and `weights` that `average` cannot do."""
    if window is not None and (
        isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1
    ):
        raise ValueError(
            f"`window` must be an integer of at least 1, or None. Received: window={window!r}"
        )
    if _is_momentum(weights):
        if window is not None:
            raise ValueError(
                "`window` must be None for an exponential moving average, which has weights for "
                f"all samples. Received: window={window}, weights={weights!r}"
            )
        return
    if callable(weights):
        if abs(weights(0.0) - 1) > 1e-6 or abs(weights(1.0)) > 1e-6:
            raise ValueError(
                "A function as `weights` must fall from 1 at 0 to 0 at 1, as a learning rate "
                f"would. Received: {weights(0.0)!r} at 0, {weights(1.0)!r} at 1"
            )
    elif not isinstance(weights, str) or weights not in _DECAYS:
        raise ValueError(
            f"`weights` must be {', '.join(map(repr, _DECAYS))}, a number in (0, 1) for an "
            f"exponential moving average, or a function. Received: weights={weights!r}"
        )
    if weights != "equal" and window is None:
        raise ValueError(
            "`window` must be given for weights that depend on the number of samples. "
            f"Received: window=None, weights={weights!r}"
        )


def _is_momentum(weights):
    return isinstance(weights, (float, np.floating)) and 0 < weights < 1


def average(sources, window, weights):
    """An average of nothing yet, of the tf.Variables `sources`."""
    if window is not None:
        return _Latest(sources, int(window), weights if callable(weights) else _DECAYS[weights])
    return _Running(sources, float(weights) if _is_momentum(weights) else None)


def _dtype(source):
    """Half types would not hold a mean of many."""
    return tf.float64 if source.dtype == tf.float64 else tf.float32


class _Running:
    """The mean of all samples; with a momentum m, a <- m a + (1 - m) sample after the first."""

    def __init__(self, sources, momentum):
        self._sources, self._momentum, self._averages = sources, momentum, []
        for source in sources:
            with tf.init_scope(), tf.device(source.device):
                self._averages.append(
                    tf.Variable(tf.zeros(source.shape, _dtype(source)), trainable=False)
                )
        self._update = tf.function(self._updates)  # one call, as it may come with every step

    def add(self, taken):
        """Takes a sample of the sources, of which there have been `taken`."""
        self._update(tf.constant(taken, tf.int64))

    def _updates(self, taken):
        for average, source in zip(self._averages, self._sources):
            if self._momentum is None:
                late_phase.raw_ops.late_phase_swa_update(
                    average=average.handle, source=source.handle, count=taken
                )
            else:
                part = tf.where(taken > 0, tf.constant(1 - self._momentum, average.dtype), 1)
                average.assign_add(part * (tf.cast(source, average.dtype) - average))

    def samples(self, taken):
        """How many of the samples that were taken have a part in the average."""
        return taken

    def values(self):
        return self._averages

    def arrays(self):
        """What a file keeps."""
        return [average.numpy() for average in self._averages]

    def load(self, arrays):
        for average, array in zip(self._averages, arrays, strict=True):
            average.assign(array)


class _Latest:
    """Of the last samples: sample j of n, the newest last, weighs decay(j/n) - decay((j+1)/n).

    Then step i of the n - 1 between the samples has a part of decay(i/n) in the average, as if the
    learning rate had fallen that way.
    """

    def __init__(self, sources, window, decay):
        self._sources, self._decay = sources, decay
        self._latest = collections.deque(maxlen=window)

    def add(self, taken):
        self._latest.append(
            [source.numpy().astype(_dtype(source).as_numpy_dtype) for source in self._sources]
        )

    def samples(self, taken):
        return len(self._latest)

    def values(self):
        n = len(self._latest)
        parts = [self._decay(j / n) - self._decay((j + 1) / n) for j in range(n)]
        return [
            sum(part * np.float64(array) for part, array in zip(parts, of_source)).astype(
                of_source[0].dtype
            )
            for of_source in zip(*self._latest)
        ]

    def arrays(self):
        return [array for sample in self._latest for array in sample]

    def load(self, arrays):
        size = len(self._sources)
        self._latest.extend(arrays[i : i + size] for i in range(0, len(arrays), size))
