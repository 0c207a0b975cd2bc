"""From the gradient of a [K, ...] weight to that of the current member's row."""

import tensorflow as tf

_RULE = (
    "The gradient of a weight with members must be of the current member alone: call the model "
    "with training=True, because layers use the mean of the members otherwise. `fit` does so only "
    "if the `call` of the model has a `training` argument; a layer that is called with "
    "training=False on purpose must be frozen (trainable = False). "
    "Received: a gradient of other members for"
)


def member_row(gradient, member):
    """[...]: row `member`, int32 [], of a [K, ...] gradient."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.gather(gradient, member)
    if gradient.values.shape[0] == 1:
        return tf.squeeze(gradient.values, axis=0)
    # Several, of a layer that is called more than once, or has a regularizer.
    return tf.reduce_sum(gradient.values, axis=0)


def require_one_member(pairs, member):
    """Refuses (variable, gradient) pairs with a value that is not in row `member`.

    Returns:
      In a graph, the op that does so; it must run before the updates. Else None.
    """
    pairs = [(variable, g) for variable, g in pairs if not _is_known_to_be_of(g, member)]
    paths = [variable.path for variable, _ in pairs]
    if not pairs:
        return None
    if not tf.executing_eagerly():
        for path, (_, gradient) in zip(paths, pairs):
            if _is_known_to_be_of_several(gradient):
                raise ValueError(f"{_RULE} {path}")  # while the step is traced
    found = _have_other_rows([gradient for _, gradient in pairs], member)
    if not tf.executing_eagerly():  # an op for each, since XLA cannot pick strings
        refused = zip(paths, tf.unstack(found, num=len(paths)))
        return tf.group(*[tf.debugging.Assert(~other, [_RULE, path]) for path, other in refused])
    if tf.reduce_any(found):
        raise ValueError(
            f"{_RULE} {', '.join(path for path, other in zip(paths, found.numpy()) if other)}"
        )
    return None


def _is_known_to_be_of(gradient, member):
    """Whether a graph shows it: the row's number is `member` itself, in another shape or type."""
    if not isinstance(gradient, tf.IndexedSlices) or not tf.is_symbolic_tensor(gradient.indices):
        return False
    source = gradient.indices
    while source.op.type in ("Cast", "ExpandDims", "Identity", "Reshape"):
        source = source.op.inputs[0]
    return source.graph is getattr(member, "graph", None) and source.name == member.name


def _is_known_to_be_of_several(gradient):
    indices = (
        tf.get_static_value(gradient.indices) if isinstance(gradient, tf.IndexedSlices) else None
    )
    return indices is not None and len(set(indices.tolist())) > 1


def _have_other_rows(gradients, member):
    """bool [n]. Gradients of one row, which nearly all are, are compared together."""
    single = [isinstance(g, tf.IndexedSlices) and g.values.shape[0] == 1 for g in gradients]
    rows = [tf.cast(g.indices, tf.int64) for g, one in zip(gradients, single) if one]
    found = []
    if rows:
        found = tf.unstack(tf.concat(rows, axis=0) != tf.cast(member, tf.int64), num=len(rows))
    found = iter(found)
    return tf.stack(
        [next(found) if one else _has_other_rows(g, member) for g, one in zip(gradients, single)]
    )


def _has_other_rows(gradient, member):
    """bool []. NaN does not count: clipping by a norm that is NaN writes it everywhere."""
    if not isinstance(gradient, tf.IndexedSlices):
        rows, values = tf.range(tf.shape(gradient)[0]), gradient
    else:
        rows, values = gradient.indices, gradient.values
    not_zero = tf.reduce_any(tf.abs(values) > 0, axis=list(range(1, values.shape.rank)))
    return tf.reduce_any(not_zero & (rows != tf.cast(member, rows.dtype)))
