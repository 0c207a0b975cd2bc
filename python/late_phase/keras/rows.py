"""Changes to the rows of late-phase weights, [K, ...], besides training: joining and spawning."""

import tensorflow as tf

import late_phase


def spawn(variable, sigma, seed):
    """Row k <- row 0 + sigma RMS(row 0) noise."""
    late_phase.raw_ops.late_phase_spawn(
        var=variable.handle, sigma=tf.constant(sigma, tf.float64), seed=tf.constant(seed, tf.int64)
    )


def copy_first(variables):
    """Row k <- row 0, of tf.Variables."""
    sigma, seed = tf.constant(0.0, tf.float64), tf.constant([0, 0], tf.int64)
    for variable in variables:
        late_phase.raw_ops.late_phase_spawn(var=variable.handle, sigma=sigma, seed=seed)


def rows_differ(variables):
    """Whether the rows of any variable are not all the same."""
    return any(
        bool(tf.reduce_any(tf.not_equal(variable.value, variable.value[:1])))
        for variable in variables
    )


def make_equal(variables):
    """Every row <- the mean of the rows, which of equal rows is exactly that row."""
    zero = tf.constant(0)
    for variable in variables:
        handle = variable.value.handle  # of this replica, which all do alike
        rows = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.value.dtype)
        first = tf.raw_ops.ResourceGather(resource=handle, indices=zero, dtype=rows.dtype)
        mean = tf.raw_ops.Mean(input=rows - first, axis=zero)
        tf.raw_ops.AssignVariableOp(
            resource=handle, value=tf.broadcast_to(first + mean, rows.shape)
        )
