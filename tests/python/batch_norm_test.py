"""The batch normalisation op from Python: eager and tf.function, against stock ops, errors."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import late_phase

# Half types are computed in float and rounded at the end: a few units of 2^-11 and 2^-8.
TOLERANCE = {
    tf.float64: 1e-12,
    tf.float32: 3e-5,
    tf.float16: 8 * 2.0**-11,
    tf.bfloat16: 8 * 2.0**-8,
}
K = 4
MEMBER = 2
# As the op sees it: attributes are floats.
EPSILON = float(np.float32(1e-3))
MOMENTUM = float(np.float32(0.3))
batch_norm = functools.partial(
    late_phase.ops.batch_norm, member=MEMBER, epsilon=EPSILON, momentum=MOMENTUM
)


def problem(shape=(70, 19), seed=0):
    """Random inputs by name. Each channel of x has a mean and a deviation of its own."""
    rng = np.random.default_rng(seed)
    uniform = lambda low, high, *size: np.float32(rng.uniform(low, high, size)).astype(np.float64)
    channels = shape[-1]
    return {
        "x": np.float32(
            uniform(-1, 1, *shape) * uniform(0.3, 2, channels) + uniform(-3, 3, channels)
        ).astype(np.float64),
        "scale": uniform(-2, 2, K, channels),
        "offset": uniform(-0.5, 0.5, K, channels),
        "mean": uniform(-1, 1, K, channels),
        "variance": uniform(0.1, 2, K, channels),
    }


def statistics_type(dtype):
    return tf.float64 if dtype == tf.float64 else tf.float32


def tensors(arrays, dtype):
    return {
        name: tf.constant(array, dtype if name == "x" else statistics_type(dtype))
        for name, array in arrays.items()
    }


def stock(x, scale, offset, mean, variance, is_training=True, activation="Identity"):
    """The same from elementary stock ops, whose gradients are TensorFlow's."""
    running = mean[MEMBER], variance[MEMBER]
    m, v = running
    if is_training:
        m, v = tf.nn.moments(x, list(range(x.shape.rank - 1)))
        n = tf.size(x, tf.int64) // tf.size(m, tf.int64)
        unbiased = v * tf.cast(n / tf.maximum(n - 1, 1), v.dtype)
        running = [old + MOMENTUM * (new - old) for old, new in zip(running, (m, unbiased))]
    y = tf.nn.batch_normalization(x, m, v, offset[MEMBER], scale[MEMBER], EPSILON)
    return late_phase.ops.BatchNormResult(tf.nn.relu(y) if activation == "Relu" else y, *running)


def results_and_gradients(layer, inputs):
    """All results, and the gradients of a sum of y with weights that every type can hold."""
    wanted = {name: inputs[name] for name in ("x", "scale", "offset")}
    with tf.GradientTape() as tape:
        tape.watch(wanted)
        result = layer(**inputs)
        weights = tf.reshape((tf.range(tf.size(result.y)) * 7 % 15 - 5) / 8, tf.shape(result.y))
        total = tf.reduce_sum(result.y * tf.cast(weights, result.y.dtype))
    gradients = {"d" + name: gradient for name, gradient in tape.gradient(total, wanted).items()}
    return {**result._asdict(), **gradients}


def relative_error(actual, expected):
    expected = np.asarray(expected, np.float64)
    return np.max(np.abs(np.asarray(tf.cast(actual, tf.float64)) - expected)) / np.max(
        np.abs(expected)
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inference_gradients_of_an_input_that_is_not_finite_are_those_of_the_stock_op(bad):
    arrays = problem((5, 3, 2, 7))
    arrays["x"][1, 2, 0, 4] = bad

    def fused(x, scale, offset, mean, variance):
        y, _, _ = tf.compat.v1.nn.fused_batch_norm(
            x,
            scale[MEMBER],
            offset[MEMBER],
            mean[MEMBER],
            variance[MEMBER],
            epsilon=EPSILON,
            is_training=False,
        )
        return late_phase.ops.BatchNormResult(y, None, None)

    actual = results_and_gradients(
        functools.partial(batch_norm, is_training=False), tensors(arrays, tf.float32)
    )
    expected = results_and_gradients(fused, tensors(arrays, tf.float32))
    for name in ("dx", "doffset"):
        assert (
            relative_error(actual[name], tf.convert_to_tensor(expected[name]))
            < TOLERANCE[tf.float32]
        )
    assert (
        list(zip(*np.nonzero(~np.isfinite(actual["dscale"]))))
        == list(zip(*np.nonzero(~np.isfinite(tf.convert_to_tensor(expected["dscale"])))))
        == [(MEMBER, 4)]
    )


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    "shape", [(70, 19), (6, 5, 7, 33), (3600, 19)]
)  # the last: half types in parts, by several threads
def test_equals_stock_ops(dtype, mode, is_training, shape):
    ours = tf.function(results_and_gradients) if mode == "function" else results_and_gradients
    actual = ours(
        functools.partial(batch_norm, is_training=is_training), tensors(problem(shape), dtype)
    )
    # Of the x that the half type can hold: rounding it first is not the op's error.
    arrays = problem(shape)
    arrays["x"] = tf.cast(tf.constant(arrays["x"], dtype), tf.float64)
    expected = results_and_gradients(
        functools.partial(stock, is_training=is_training), tensors(arrays, tf.float64)
    )
    for name, wanted in expected.items():
        assert actual[name].dtype == (dtype if name in ("y", "dx") else statistics_type(dtype)), (
            name
        )
        assert actual[name].shape == wanted.shape
        assert relative_error(actual[name], wanted) <= TOLERANCE[dtype], name


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
@pytest.mark.parametrize("is_training", [True, False])
def test_relu_equals_stock_ops(dtype, is_training):
    attrs = {"is_training": is_training, "activation": "Relu"}
    actual = results_and_gradients(
        functools.partial(batch_norm, **attrs), tensors(problem(), dtype)
    )
    expected = results_and_gradients(
        functools.partial(stock, **attrs), tensors(problem(), tf.float64)
    )
    assert 0.2 < np.mean(expected["y"] == 0) < 0.8
    for name, wanted in expected.items():
        assert relative_error(actual[name], wanted) <= TOLERANCE[dtype], name


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("shape", [(6, 5, 7, 33), (2, 1, 1, 3), (128, 4, 4, 160)])
def test_equals_fused_batch_norm(is_training, shape):
    """TensorFlow's own op, which gives the running statistics their old share by
    `exponential_avg_factor` = momentum.
    """
    inputs = tensors(problem(shape), tf.float32)
    actual = batch_norm(**inputs, is_training=is_training)
    fused = tf.raw_ops.FusedBatchNormV3(
        **{name: tensor if name == "x" else tensor[MEMBER] for name, tensor in inputs.items()},
        epsilon=EPSILON,
        exponential_avg_factor=MOMENTUM,
        is_training=is_training,
    )
    assert relative_error(actual.y, fused.y) <= 3e-5
    assert relative_error(actual.running_mean, fused.batch_mean) <= 3e-5
    assert relative_error(actual.running_variance, fused.batch_variance) <= 3e-5


@pytest.mark.parametrize("is_training", [True, False])
def test_numerical_gradient(is_training):
    inputs = tensors(problem((4, 3)), tf.float64)
    layer = lambda x, scale, offset: (
        batch_norm(
            x=x,
            scale=scale,
            offset=offset,
            mean=inputs["mean"],
            variance=inputs["variance"],
            is_training=is_training,
        ).y
    )
    wanted = [inputs[name] for name in ("x", "scale", "offset")]
    for exact, measured in zip(*tf.test.compute_gradient(layer, wanted, delta=1e-4)):
        np.testing.assert_allclose(exact, measured, atol=2e-6)


@pytest.mark.parametrize("is_training", [True, False])
def test_other_members_have_no_part(is_training):
    arrays = problem()
    poisoned = {name: array.copy() for name, array in arrays.items()}
    for name in ("scale", "offset", "mean", "variance"):
        poisoned[name][[k for k in range(K) if k != MEMBER]] = np.nan
    layer = functools.partial(batch_norm, is_training=is_training)
    clean, actual = (
        results_and_gradients(layer, tensors(a, tf.float32)) for a in (arrays, poisoned)
    )
    for name, value in actual.items():
        np.testing.assert_array_equal(value, clean[name], err_msg=name)
    for name in ("dscale", "doffset"):
        assert (
            not np.delete(actual[name], MEMBER, axis=0).any() and actual[name][MEMBER].numpy().all()
        )


def test_member_may_be_a_variable_and_rows_are_stored_by_the_caller():
    inputs = tensors(problem(), tf.float64)
    member, mean = tf.Variable(0), tf.Variable(inputs["mean"])
    before = inputs["mean"].numpy()

    @tf.function
    def step():
        result = late_phase.ops.batch_norm(
            **{**inputs, "mean": mean, "member": member}, momentum=1.0
        )
        mean.scatter_nd_update([[member]], [result.running_mean])

    member.assign(3)
    step()
    after = mean.numpy()
    np.testing.assert_array_equal(np.delete(after, 3, axis=0), np.delete(before, 3, axis=0))
    np.testing.assert_allclose(after[3], problem()["x"].mean(axis=0), rtol=1e-12)


def test_momentum_and_epsilon_defaults():
    inputs = tensors(problem(), tf.float64)
    plain = late_phase.ops.batch_norm(**inputs)
    spelled = late_phase.ops.batch_norm(
        **inputs, member=0, epsilon=1e-5, momentum=0.1, is_training=True, activation="Identity"
    )
    for a, b in zip(plain, spelled):
        np.testing.assert_array_equal(a, b)
    m = problem()["x"].mean(axis=0)
    np.testing.assert_allclose(plain.running_mean, 0.9 * inputs["mean"][0] + 0.1 * m, atol=1e-7)


@pytest.mark.parametrize("is_training", [True, False])
def test_empty_batch_passes_statistics_through(is_training):
    inputs = tensors(problem((0, 2, 3, 5)), tf.float32)
    actual = results_and_gradients(functools.partial(batch_norm, is_training=is_training), inputs)
    assert actual["y"].shape == actual["dx"].shape == (0, 2, 3, 5)
    np.testing.assert_array_equal(actual["running_mean"], inputs["mean"][MEMBER])
    np.testing.assert_array_equal(actual["running_variance"], inputs["variance"][MEMBER])
    assert not actual["dscale"].numpy().any() and not actual["doffset"].numpy().any()


def test_large_mean_survives_float():
    rng = np.random.default_rng(1)
    x = np.float32(1000 + rng.normal(0, np.sqrt(1e-3), (5000, 19)))
    inputs = tensors({**problem(), "x": x}, tf.float32)
    actual = results_and_gradients(batch_norm, inputs)
    expected = results_and_gradients(
        stock, {name: tf.cast(tensor, tf.float64) for name, tensor in inputs.items()}
    )
    for name, wanted in expected.items():
        assert relative_error(actual[name], wanted) <= 3e-5, name


def test_nan_stays_in_its_channel():
    arrays = problem()
    clean = batch_norm(**tensors(arrays, tf.float32), activation="Relu").y.numpy()
    arrays["x"][33, 7] = np.nan
    y = batch_norm(**tensors(arrays, tf.float32), activation="Relu").y.numpy()
    assert np.isnan(y[:, 7]).all()
    np.testing.assert_array_equal(np.delete(y, 7, axis=1), np.delete(clean, 7, axis=1))


def test_results_in_place_of_temporaries():
    """A temporary x or gradient may be overwritten; what others still read may not."""

    @tf.function
    def chain(x, scale, offset, mean, variance):
        with tf.GradientTape() as tape:
            tape.watch(x)
            hidden = batch_norm(
                x=x * 3.0,
                scale=scale,
                offset=offset,
                mean=mean,
                variance=variance,
                activation="Relu",
            ).y
            shared = tf.sin(hidden)
            y = batch_norm(
                x=shared,
                scale=scale,
                offset=offset,
                mean=mean,
                variance=variance,
                is_training=False,
            ).y
            total = tf.reduce_sum(y * y * shared)
        return total, tape.gradient(total, x)

    inputs = tensors(problem(), tf.float64)
    for compiled, eager in zip(chain(**inputs), chain.python_function(**inputs)):
        np.testing.assert_allclose(compiled, eager, rtol=1e-12, atol=1e-14)


def test_unknown_shapes_in_one_trace():
    traces = []

    @tf.function(input_signature=[{name: tf.TensorSpec(None, tf.float64) for name in problem()}])
    def step(inputs):
        traces.append(1)
        return results_and_gradients(batch_norm, inputs)

    for shape in [(3, 4), (5, 4, 3, 33)]:
        inputs = tensors(problem(shape), tf.float64)
        expected = results_and_gradients(stock, inputs)
        for name, actual in step(inputs).items():
            assert relative_error(actual, expected[name]) <= 1e-12, name
    assert len(traces) == 1


@pytest.mark.parametrize(
    "data_format, shape, known",
    [
        ("NHWC", [None, 8, 8, None], (None, 8, 8, 19)),
        ("NCHW", [None, None, 8, 9], (None, 19, 8, 9)),
        ("NHWC", [7, None], (7, 19)),
        ("NCHW", [7, None], (7, 19)),
        ("NHWC", None, None),
    ],
)
def test_shapes_are_known_while_tracing(data_format, shape, known):
    @tf.function(
        input_signature=[tf.TensorSpec(shape), tf.TensorSpec([None, 19]), tf.TensorSpec([K, None])]
    )
    def trace(x, scale, other):
        out = late_phase.raw_ops.late_phase_batch_norm(
            x=x,
            scale=scale,
            offset=other,
            mean=other,
            variance=other,
            member=0,
            data_format=data_format,
        )
        grad = late_phase.raw_ops.late_phase_batch_norm_grad(
            x=x,
            scale=scale,
            offset=other,
            member=0,
            saved_mean=out.saved_mean,
            saved_mean_rest=out.saved_mean_rest,
            saved_inv_std=out.saved_inv_std,
            dy=out.y,
            data_format=data_format,
        )
        return [*out, *grad]

    y, *statistics, dx, dscale, doffset = trace.get_concrete_function().structured_outputs
    for tensor in (y, dx):
        assert tensor.shape.rank is None if known is None else tuple(tensor.shape) == known
    assert len(statistics) == 5 and all(tuple(t.shape) == (19,) for t in statistics)
    assert tuple(dscale.shape) == tuple(doffset.shape) == (K, 19)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize(
    "change, complaint",
    [
        (
            {"member": 12},
            r"LatePhase>BatchNorm: `member` must be in \[0, 4\), the rows of `scale`. "
            r"Received: member=12",
        ),
        ({"member": -1}, r"`member` must be in \[0, 4\), the rows of `scale`. Received: member=-1"),
        ({"member": [1]}, r"`member` must be a scalar. Received: shape=\[1\]"),
        (
            {"x": np.zeros((7, 10, 19))},
            r"`x` must be \[batch, channels\] or \[batch, height, width, channels\]. "
            r"Received: shape=\[7,10,19\]",
        ),
        (
            {"x": np.zeros((70, 18))},
            r"`scale` must be \[K>=1, channels\] with channels=18. Received: shape=\[4,19\]",
        ),
        (
            {"offset": np.zeros((4, 1))},
            r"`offset` must be \[K, channels\] with K=4, channels=19. Received: shape=\[4,1\]",
        ),
        (
            {"mean": np.zeros(19)},
            r"`mean` must be \[K, channels\] with K=4, channels=19. Received: shape=\[19\]",
        ),
        (
            {"variance": np.zeros((3, 19))},
            r"`variance` must be \[K, channels\] with K=4, channels=19. Received: shape=\[3,19\]",
        ),
        ({"epsilon": 0.0}, r"`epsilon` must be in \(0, inf\). Received: epsilon=0"),
        ({"epsilon": np.nan}, r"`epsilon` must be in \(0, inf\). Received: epsilon=nan"),
        ({"momentum": -0.1}, r"`momentum` must be in \[0, 1\]. Received: momentum=-0.1"),
        ({"momentum": 1.1}, r"`momentum` must be in \[0, 1\]. Received: momentum=1.1"),
        (
            {"activation": "relu"},
            r"`activation` must be Identity or Relu. Received: activation=relu",
        ),
        (
            {"data_format": "NWHC"},
            r"`data_format` must be NHWC or NCHW. Received: data_format=NWHC",
        ),
        (
            {"data_format": "NCHW"},
            r"`data_format` must be NHWC on the CPU. Received: data_format=NCHW",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(mode, change, complaint):
    attrs = {name: value for name, value in change.items() if name not in problem()}
    arrays = {**problem(), **{name: value for name, value in change.items() if name in problem()}}
    call = functools.partial(late_phase.ops.batch_norm, **attrs)
    if mode == "function":
        call = tf.function(call)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=complaint):
        call(**tensors(arrays, tf.float64))


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize(
    "x, rest, wanted",
    [
        (tf.float16, tf.float64, "float"),
        (tf.float64, tf.float32, "double"),
        (tf.float32, tf.float64, "float"),
    ],
)
def test_wrong_type_of_statistics_is_named(mode, x, rest, wanted):
    inputs = {
        name: tf.constant(array, x if name == "x" else rest) for name, array in problem().items()
    }
    call = tf.function(batch_norm) if mode == "function" else batch_norm
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError),
        match=f"`scale` and all other arrays without rows must be of type {wanted}, because `x` is "
        "of type",
    ):
        call(**inputs)


def test_types_without_kernels_are_refused():
    inputs = tensors(problem(), tf.float32)
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        batch_norm(**{**inputs, "x": tf.cast(inputs["x"], tf.int32)})
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        batch_norm(**{**inputs, "scale": tf.cast(inputs["scale"], tf.float16)})


def test_second_order_is_refused():
    inputs = tensors(problem(), tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(inputs["scale"])
        with tf.GradientTape() as inner:
            inner.watch(inputs["x"])
            y = batch_norm(**inputs).y
        grad = inner.gradient(y, inputs["x"])
        with pytest.raises(NotImplementedError, match="second-order"):
            outer.gradient(grad, inputs["scale"])
