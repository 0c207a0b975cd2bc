"""All ops on a real GPU against the CPU; says that it skips where there is no GPU.

The cases are run on the CPU everywhere, so that they are known to be right when a GPU meets them.
"""

import numpy as np
import pytest
import tensorflow as tf

import late_phase

ops = late_phase.raw_ops
TYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
# GPUs round products to TensorFloat-32 unless they are told not to.
tf.config.experimental.enable_tensor_float_32_execution(False)


def tolerance(dtype):
    return {tf.float64: 1e-9, tf.float32: 3e-5, tf.float16: 5e-3, tf.bfloat16: 4e-2}[dtype]


class Draw:
    """Random tensors, the same in every run, made on the device that is current."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.wide = tf.float64 if dtype == tf.float64 else tf.float32
        self._random = np.random.default_rng(3)

    def __call__(self, *shape, low=-1.0, high=1.0, dtype=None):
        return tf.cast(tf.constant(self._random.uniform(low, high, shape)), dtype or self.dtype)

    def integers(self, limit, *shape):
        return tf.constant(self._random.integers(0, limit, shape), tf.int32)

    def scalar(self, value):
        return tf.cast(value, self.dtype)


def lstm_weights(draw, n, h, k):
    """The inputs that both forms of the LSTM share."""
    return dict(
        initial_h=draw(n, h),
        initial_c=draw(n, h),
        recurrent_kernel=draw(h, 4 * h),
        u=draw(k, h),
        v=draw(k, 4 * h),
    )


def lstm_gradient(draw, op, inputs, out):
    """What `op` gives for the inputs of its forward op, that op's results, and random gradients."""
    kept = {name: getattr(out, name) for name in ("h", "gates", "cells")}
    given = {f"d{name}": draw(*getattr(out, name).shape) for name in ("h", "final_h", "final_c")}
    return list(op(**inputs, **kept, **given))


def rank1_lstm(draw, is_training=True):
    t, n, c, h, k = 6, 33, 17, 31, 4
    inputs = dict(x=draw(t, n, c), kernel=draw(c, 4 * h), member=2, **lstm_weights(draw, n, h, k))
    out = ops.late_phase_rank1_lstm(**inputs, bias=draw(4 * h), is_training=is_training)
    if not is_training:
        return out[:3]
    return list(out) + lstm_gradient(draw, ops.late_phase_rank1_lstm_grad, inputs, out)


def rank1_lstm_inference(draw):
    return rank1_lstm(draw, is_training=False)


def rank1_lstm_tokens(draw):
    t, n, c, h, k = 6, 33, 40, 31, 4
    tokens, table = draw.integers(c, t, n), draw(c, 4 * h)
    inputs = dict(tokens=tokens, table=table, member=1, **lstm_weights(draw, n, h, k))
    out = ops.late_phase_rank1_lstm_tokens(**inputs)
    return list(out) + lstm_gradient(draw, ops.late_phase_rank1_lstm_tokens_grad, inputs, out)


def batch_norm(draw, is_training=True):
    k, c = 3, 33
    x, dy = draw(5, 7, 9, c), draw(5, 7, 9, c)
    scale, offset, mean = (draw(k, c, dtype=draw.wide) for _ in range(3))
    variance = draw(k, c, low=0.5, high=2, dtype=draw.wide)
    attrs = dict(is_training=is_training, activation="Relu")
    out = ops.late_phase_batch_norm(
        x=x, scale=scale, offset=offset, mean=mean, variance=variance, member=1, **attrs
    )
    return [out.y, out.running_mean, out.running_variance, out.saved_inv_std] + list(
        ops.late_phase_batch_norm_grad(
            x=x,
            scale=scale,
            offset=offset,
            member=1,
            saved_mean=out.saved_mean,
            saved_mean_rest=out.saved_mean_rest,
            saved_inv_std=out.saved_inv_std,
            dy=dy,
            **attrs,
        )  # fmt: skip
    )


def batch_norm_inference(draw):
    return batch_norm(draw, is_training=False)


def softmax_cross_entropy(draw):
    n, units, vocab = 65, 31, 205
    features, kernel, bias, labels = (
        draw(n, units),
        draw(units, vocab),
        draw(vocab),
        draw.integers(vocab, n),
    )
    out = ops.late_phase_softmax_cross_entropy(
        features=features, kernel=kernel, bias=bias, labels=labels
    )
    return list(out) + list(
        ops.late_phase_softmax_cross_entropy_grad(
            features=features, kernel=kernel, dlogits=out.dlogits, dloss=draw(n)
        )
    )


def updates(draw):
    """All rules, for members and base, over two cycles; then what acts on all rows."""
    k, d = 3, 257
    results = []
    for rule in ("sgd", "momentum", "adam"):
        for target in ("member", "base"):
            shape, counts = ((k, d), (k,)) if target == "member" else ((d,), ())
            var = tf.Variable(draw(*shape))
            slots = {"sgd": [], "momentum": ["accum"], "adam": ["m", "v"]}[rule]
            state = {name: tf.Variable(tf.zeros(shape, draw.wide)) for name in slots}
            if rule == "adam":
                state["count"] = tf.Variable(tf.zeros(counts, tf.int64))
            hyper = dict(lr=draw.scalar(0.1), weight_decay=draw.scalar(0.01))
            hyper.update({"sgd": {}, "momentum": dict(momentum=draw.scalar(0.9))}.get(rule) or {})
            if rule == "adam":
                hyper.update(
                    beta1=draw.scalar(0.9), beta2=draw.scalar(0.99), epsilon=draw.scalar(1e-3)
                )
            if target == "base":
                state["sum"] = tf.Variable(tf.zeros(shape, draw.wide))
                hyper.update(cycle=k, scale=draw.scalar(0.5))
            apply = getattr(ops, f"late_phase_{target}_apply_{rule}")
            for step in range(2 * k):
                handles = {name: variable.handle for name, variable in state.items()}
                apply(var=var.handle, member=step % k, grad=draw(d), **handles, **hyper)
            results += [var.read_value()] + [variable.read_value() for variable in state.values()]
    rows, average = tf.Variable(draw(k, d)), tf.Variable(tf.zeros((k, d), draw.wide))
    ops.late_phase_spawn(
        var=rows.handle, sigma=draw.scalar(0.5), seed=tf.constant([1, 2], tf.int64)
    )
    for count in range(3):
        ops.late_phase_swa_update(
            average=average.handle, source=rows.handle, count=tf.constant(count, tf.int64)
        )
    results += [rows.read_value(), average.read_value()]
    results.append(ops.late_phase_read_member(var=rows.handle, member=1, dtype=draw.dtype))
    results.append(ops.late_phase_collapse(var=rows.handle, dtype=draw.dtype))
    return results


CASES = [
    rank1_lstm,
    rank1_lstm_inference,
    rank1_lstm_tokens,
    batch_norm,
    batch_norm_inference,
    softmax_cross_entropy,
    updates,
]


def run(case, dtype, device):
    with tf.device(device):
        return [tf.cast(result, tf.float64).numpy() for result in case(Draw(dtype))]


@pytest.fixture
def gpu():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU that TensorFlow can use")
    return "/GPU:0"


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("case", CASES)
def test_cases_are_well_posed(case, dtype):
    first, second = run(case, dtype, "/CPU:0"), run(case, dtype, "/CPU:0")
    for one, other in zip(first, second):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
    assert any(np.abs(result).max() > 0.1 for result in first)


@pytest.mark.parametrize("case", CASES)
def test_gpu_equals_cpu_and_itself(case, gpu):
    for dtype in TYPES:
        expected, actual, again = (
            run(case, dtype, "/CPU:0"),
            run(case, dtype, gpu),
            run(case, dtype, gpu),
        )
        for i, (one, other, third) in enumerate(zip(actual, expected, again)):
            bound = tolerance(dtype) * np.abs(other).max()
            np.testing.assert_allclose(
                one, other, rtol=0, atol=bound, err_msg=f"{dtype.name}, result {i}"
            )
            np.testing.assert_array_equal(one, third)


def test_gpu_takes_channels_first(gpu):
    draw = Draw(tf.float32)
    x, scale, offset, mean = draw(4, 9, 7, 33), draw(2, 33), draw(2, 33), draw(2, 33)
    variance = draw(2, 33, low=0.5, high=2)
    with tf.device("/CPU:0"):
        last = ops.late_phase_batch_norm(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance, member=1
        )
    with tf.device(gpu):
        first = ops.late_phase_batch_norm(
            x=tf.transpose(x, [0, 3, 1, 2]),
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            member=1,
            data_format="NCHW",
        )
    np.testing.assert_allclose(tf.transpose(first.y, [0, 2, 3, 1]), last.y, rtol=0, atol=1e-5)
    np.testing.assert_allclose(first.running_variance, last.running_variance, rtol=1e-5)


def test_gpu_makes_nan_of_what_it_cannot_refuse(gpu):
    draw = Draw(tf.float32)
    labels = tf.constant([0, 7, 2], tf.int32)
    with tf.device(gpu):
        out = ops.late_phase_softmax_cross_entropy(
            features=draw(3, 4), kernel=draw(4, 5), bias=draw(5), labels=labels
        )
    assert np.isnan(out.loss.numpy()).tolist() == [False, True, False]
