"""The gradients that an optimizer's `apply` is given: checked, and as the updates want them."""

import warnings

import tensorflow as tf

from late_phase.keras.fused_updates import path_of


def checked(grads, variables, key):
    """key(variable) -> its gradient, where there is one."""
    if len(grads) != len(variables):
        raise ValueError(
            "There must be a gradient, or None, for each variable. "
            f"Received: {len(grads)} gradients, {len(variables)} variables"
        )
    missing = [path_of(v) for v, g in zip(variables, grads) if g is None]
    if len(missing) == len(variables):
        raise ValueError(
            "At least one variable must have a gradient: the loss depends on none of them. "
            f"Received: None for all of {', '.join(missing)}"
        )
    if missing:
        warnings.warn(
            "Variables without a gradient are not trained: the loss does not depend on them. "
            f"Received: None for {', '.join(missing)}",
            stacklevel=4,
        )
    for variable, gradient in zip(variables, grads):
        shape = tf.TensorShape(getattr(gradient, "shape", None))
        if not shape.is_compatible_with(variable.shape):
            raise ValueError(
                "A gradient must have the shape of its variable. "
                f"Received: {shape} for {path_of(variable)}, {variable.shape}"
            )
    return {key(v): g for v, g in zip(variables, grads) if g is not None}


def is_new_value(variable):
    """Whether a variable's gradient is really its new value, as in float8 layers."""
    return getattr(variable, "overwrite_with_gradient", False)


def unscaled(gradient, loss_scale_factor):
    """The gradient of the unscaled loss; `loss_scale_factor` None: it was not scaled."""
    if loss_scale_factor is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values / loss_scale_factor, gradient.indices, gradient.dense_shape
        )
    return gradient / loss_scale_factor


def reduced(gradients, after):
    """The sums of gradients over all replicas, once the op `after`, if there is one, has run."""
    if after is not None:
        with tf.control_dependencies([after]):
            gradients = tf.nest.map_structure(tf.identity, gradients)
    replicas = tf.distribute.get_replica_context()
    return replicas.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
