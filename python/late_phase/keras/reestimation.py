"""BatchNormalization statistics for weights that have none: averages over members or time."""

import contextlib
import itertools

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras.layers import BatchNormalization
from late_phase.keras.members import (
    MemberLayer,
    inference_row,
    join_members,
    split_members,
    the_only_member,
)
from late_phase.keras.private import flatten_layers

_ARRAY_BATCH = 32  # Keras's own choice for arrays


def layers_to_reestimate(model):
    """The BatchNormalization layers of `model`, at any depth, that are not frozen."""
    kinds = (keras.layers.BatchNormalization, BatchNormalization)
    return [
        layer for layer in flatten_layers(model) if isinstance(layer, kinds) and layer.trainable
    ]


def reestimate_batch_norm(model, dataset, steps=None):
    """Estimates the moving statistics of all BatchNormalization layers from `dataset`.

    This takes one pass over the data, in which BatchNormalization normalises by the batch, as in
    training, and everything else runs as in inference: no dropout, nothing random, and the weights
    that inference uses, which for layers with members is their mean. The new statistics are the
    mean of those of the batches, weighted by their number of values per channel. A batch that
    leaves a layer with one value per channel, such as a last batch of one sample, has no variance
    and is left out.

    In layers with members, every member gets the same statistics, because they are estimated for
    the mean of the members' weights. To give each member its own, for its own weights, pass
    `ensemble(model)`, which shares the layers of `model`.

    Nothing else is touched: no weight, no optimizer, no metric. Statistics are written after the
    pass, so if it fails, nothing has changed. Frozen layers (`trainable = False`) keep theirs. A
    layer that the model calls with `training=False` is estimated like the others, unless it is
    frozen too. If a model has no layers to estimate, the data is not read.

    Example:

    >>> import keras, numpy as np, late_phase.keras
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization()])
    >>> late_phase.keras.reestimate_batch_norm(model, np.array([[1.0], [3.0]]))
    >>> print(model.layers[0].moving_mean.numpy(), model.layers[0].moving_variance.numpy())
    [2.] [1.]

    Args:
      model: a Keras model of any kind.
      dataset: batches as `fit` takes them: a `tf.data.Dataset`, a `keras.utils.PyDataset`, or
        anything that iterates over batches; or arrays, which are used in batches of 32. Of a tuple,
        (x, y) or (x, y, sample_weight), only x is used.
      steps: how many batches to use; None: all.

    Raises:
      ValueError: `dataset` has no batch, fewer than `steps`, or no end while `steps` is None; a
        layer was not reached; or all batches leave a layer with one value per channel.
    """
    _check(model, steps)
    layers = layers_to_reestimate(model)
    if not layers:
        return
    noted = []  # (index of the layer, values per channel, mean, variance) of the calls of one step

    def step(x):
        noted.clear()
        model(x, training=False)
        return list(noted)

    run = step if model.run_eagerly else tf.function(step, reduce_retracing=True)
    estimate = _Estimate(layers)
    calls = {layer: _normalising_by_the_batch(layer, i, noted) for i, layer in enumerate(layers)}
    with calls_replaced(calls):
        for x in itertools.islice(_batches(dataset, steps), steps):
            estimate.add(run(keras.tree.map_structure(keras.ops.convert_to_tensor, x)))
    estimate.require(steps or 1)
    estimate.assign()


def _check(model, steps):
    if not model.built:
        raise ValueError(
            "`model` must be built: call it once, or give it an Input. "
            "Received: one without weights"
        )
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(
            f"`steps` must be an integer of at least 1, or None. Received: steps={steps!r}"
        )
    for layer in layers_to_reestimate(model):
        if getattr(layer, "renorm", False):
            raise ValueError(
                "BatchNormalization must be without `renorm` to be re-estimated. "
                f"Received: renorm=True in {layer.path}"
            )


class _Estimate:
    """The mean of the batches' statistics for each layer, weighted by their values per channel."""

    def __init__(self, layers):
        self._layers, self._batches = layers, 0
        self._counts = np.zeros(len(layers))
        self._sums = [[0.0, 0.0] for _ in layers]  # of means and variances
        self._single = None  # the last layer that a batch left with one value per channel

    def add(self, noted):
        """Takes what a batch noted: (index of the layer, values per channel, mean, variance)."""
        self._batches += 1
        noted = [(int(i), int(count), *pair) for i, count, *pair in noted]
        singles = [self._layers[i] for i, count, *_ in noted if count == 1]
        if singles:  # it has no variance, and all that follows would see the offset alone
            self._single = singles[0]
            return
        for i, count, *pair in noted:
            if count:  # an empty batch has no statistics
                self._counts[i] += count
                self._sums[i] = [
                    total + count * s.numpy().astype(np.float64)
                    for total, s in zip(self._sums[i], pair)
                ]

    def require(self, batches):
        """Refuses an estimate from fewer batches, or without a value in some layer."""
        if self._batches < batches:
            raise ValueError(
                f"`dataset` must have at least {batches} batches. Received: {self._batches} batches"
            )
        if self._single and not self._counts.any():
            raise ValueError(
                "The batches must have at least two values per channel in every "
                "BatchNormalization layer, or there is no variance. "
                f"Received: batches with one in {self._single.path}"
            )
        for layer, count in zip(self._layers, self._counts):
            if not count:
                raise ValueError(
                    "The data must reach every BatchNormalization layer that is not frozen. "
                    f"Received: no values in {layer.path}"
                )

    def assign(self):
        for layer, count, (mean, variance) in zip(self._layers, self._counts, self._sums):
            for variable, total in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
                variable.assign(np.broadcast_to(total / count, variable.shape))


def _batches(dataset, steps):
    """The x of each batch."""
    if isinstance(dataset, keras.utils.PyDataset):
        if dataset.num_batches is None and steps is None:
            raise ValueError(
                "`steps` must be given for a dataset that does not say how many batches it has. "
                "Received: steps=None"
            )
        batches = (
            dataset[i]
            for i in (
                itertools.count() if dataset.num_batches is None else range(dataset.num_batches)
            )
        )
    elif _is_arrays(dataset):
        x = dataset[0] if isinstance(dataset, tuple) else dataset
        size = len(keras.tree.flatten(x)[0])
        yield from (
            keras.tree.map_structure(lambda a: a[i : i + _ARRAY_BATCH], x)
            for i in range(0, size, _ARRAY_BATCH)
        )
        return
    else:
        if (
            isinstance(dataset, tf.data.Dataset)
            and steps is None
            and dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        ):
            raise ValueError(
                "`steps` must be given for a dataset without end. Received: steps=None"
            )
        batches = iter(dataset)
    for batch in batches:
        yield keras.utils.unpack_x_y_sample_weight(batch)[0]


def _is_arrays(dataset):
    """An array, or a structure of them; but a list of tuples is a list of batches."""
    if not isinstance(dataset, (tuple, list, dict)):
        return hasattr(dataset, "shape")
    of_batches = isinstance(dataset, list) and any(isinstance(batch, tuple) for batch in dataset)
    arrays = keras.tree.flatten(dataset)
    return not of_batches and bool(arrays) and all(hasattr(a, "shape") for a in arrays)


@contextlib.contextmanager
def calls_replaced(calls):
    """Lets each layer do what `calls` has for it, {method: function}."""
    for layer, methods in calls.items():
        for name, method in methods.items():
            setattr(layer, name, method)  # of the object, in front of the class's
    try:
        yield
    finally:
        for layer, methods in calls.items():
            for name in methods:
                delattr(layer, name)


def _normalising_by_the_batch(layer, index, noted):
    """A BatchNormalization layer's methods that normalise by the batch and note its statistics."""

    def normalise(inputs, mask, kept, gamma, beta):
        """Has statistics for each position of the axes `kept`, of which the channels are last."""
        x = tf.cast(
            inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32
        )  # as Keras computes it
        others = [axis for axis in range(len(x.shape)) if axis not in kept]
        if mask is None:
            mean, variance = tf.nn.moments(x, others, keepdims=True)
            values = tf.size(x, tf.int64)
        else:  # [...], without channels
            mean, variance = tf.nn.weighted_moments(
                x, others, tf.cast(mask, x.dtype)[..., tf.newaxis], keepdims=True
            )
            values = tf.math.count_nonzero(mask) * tf.shape(x, tf.int64)[kept[-1]]
        statistics = [tf.squeeze(mean, others), tf.squeeze(variance, others)]
        if isinstance(layer, MemberLayer) and the_only_member() is not None:
            # One of the members' K calls. Each counts its values, so its own row weighs K times.
            own = layer.members * tf.one_hot(the_only_member(), layer.members, dtype=x.dtype)
            statistics = [own[:, tf.newaxis] * statistic for statistic in statistics]
        noted.append((index, values // tf.size(mean, tf.int64), *statistics))
        gamma, beta = (
            None if v is None else tf.reshape(tf.cast(v, x.dtype), tf.shape(mean))
            for v in (gamma, beta)
        )
        return tf.cast(
            tf.nn.batch_normalization(x, mean, variance, beta, gamma, layer.epsilon),
            layer.compute_dtype,
        )

    def call(inputs, training=None, mask=None):
        read = inference_row if isinstance(layer, MemberLayer) else tf.convert_to_tensor
        gamma, beta = (None if v is None else read(v) for v in (layer.gamma, layer.beta))
        return normalise(inputs, mask, [layer.axis % len(inputs.shape)], gamma, beta)

    def call_members(inputs, mask=None):
        """[K*N, ..., channels]: every member by itself. They share the mask."""
        inputs = layer.channels_last(inputs)
        x, mask = (None if t is None else split_members(t, layer.members) for t in (inputs, mask))
        gamma, beta = (
            None if v is None else tf.convert_to_tensor(v) for v in (layer.gamma, layer.beta)
        )
        return layer.channels_back(
            join_members(normalise(x, mask, [0, len(x.shape) - 1], gamma, beta))
        )

    return (
        {"call": call, "call_members": call_members}
        if isinstance(layer, MemberLayer)
        else {"call": call}
    )
