"""Changes to the rows of late-phase weights, [K, ...], besides training: joining and spawning."""

import tensorflow as tf

import late_phase
from late_phase.keras.members import mean_of_rows


def spawn(variable, sigma, seed):
    """Row k <- row 0 + sigma RMS(row 0) noise."""
    late_phase.raw_ops.late_phase_spawn(
        var=variable.handle, sigma=tf.constant(sigma, tf.float64), seed=tf.constant(seed, tf.int64)
    )


def rows_differ(variables):
    """Whether the rows of any variable are not all the same."""
    return any(
        bool(tf.reduce_any(tf.not_equal(variable.value, variable.value[:1])))
        for variable in variables
    )


def make_equal(variables, is_late):
    """Every row <- the mean of the rows; if there are members yet, they stay."""
    for variable in variables:
        rows = tf.convert_to_tensor(variable.value)
        equal = tf.where(is_late, rows, mean_of_rows(variable))
        tf.raw_ops.AssignVariableOp(
            resource=variable.value.handle, value=equal
        )  # of this replica, which all do alike
