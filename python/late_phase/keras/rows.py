"""What happens to the rows of late-phase weights, [K, ...], other than training: they are spawned from one."""

import tensorflow as tf

import late_phase


def spawn(variable, sigma, seed):
    """Row k <- row 0 + sigma RMS(row 0) noise."""
    late_phase.raw_ops.late_phase_spawn(var=variable.handle, sigma=tf.constant(sigma, tf.float64), seed=tf.constant(seed, tf.int64))
