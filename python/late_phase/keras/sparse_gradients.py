"""Gradients of some rows of a base weight, tf.IndexedSlices, as those of an Embedding are.

Rows may be named more than once. Sums over a cycle stay dense arrays, of which a minibatch touches
its rows alone.
"""

import tensorflow as tf


def is_sparse(strategy, gradient):
    """Whether a gradient, of all replicas, is sparse."""
    return isinstance(strategy.experimental_local_results(gradient)[0], tf.IndexedSlices)


def dense(gradient):
    """The gradient as a tensor."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])


def accumulate(total, gradient):
    """total <- total + gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        total.scatter_add(tf.cast(gradient, total.dtype))
    else:
        total.assign_add(tf.cast(gradient, total.dtype))


def descend(variable, rate, gradient):
    """variable <- variable - rate * gradient, in the gradient's rows alone."""
    values = rate * tf.cast(gradient.values, variable.dtype)
    variable.scatter_sub(tf.IndexedSlices(values, gradient.indices))


def take(total):
    """The rows of `total` that are not all zero, which become so."""
    is_used = tf.reduce_any(tf.not_equal(total, 0), axis=list(range(1, total.shape.rank)))
    rows = tf.squeeze(tf.where(is_used), axis=1)
    values = tf.gather(total, rows)
    total.scatter_update(tf.IndexedSlices(tf.zeros_like(values), rows))
    return tf.IndexedSlices(values, rows)
