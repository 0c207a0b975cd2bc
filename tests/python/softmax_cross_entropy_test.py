"""The softmax cross-entropy op from Python: eager and tf.function, against stock ops, errors."""

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


def problem(n=70, units=9, vocab=37, seed=0):
    """Random inputs by name."""
    rng = np.random.default_rng(seed)
    uniform = lambda *shape: np.float32(rng.uniform(-1, 1, shape)).astype(np.float64)
    return {
        "features": uniform(n, units),
        "kernel": uniform(units, vocab),
        "bias": uniform(vocab),
        "labels": rng.integers(0, vocab, n).astype(np.int32),
    }


def tensors(arrays, dtype):
    return {
        name: tf.constant(array, tf.int32 if name == "labels" else dtype)
        for name, array in arrays.items()
    }


def stock(features, kernel, bias, labels):
    """The same loss from stock TensorFlow ops, whose gradients are TensorFlow's."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, features @ kernel + bias)


def loss_and_gradients(layer, inputs):
    """The losses, and the gradients of their sum with a weight of its own for each row."""
    wanted = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    with tf.GradientTape() as tape:
        tape.watch(wanted)
        loss = layer(**inputs)
        weights = tf.cast(tf.linspace(-1.0, 2.0, tf.size(loss)), loss.dtype)
        total = tf.reduce_sum(loss * weights)
    return {"loss": loss, **tape.gradient(total, wanted)}


def relative_error(actual, expected):
    expected = np.asarray(expected, np.float64)
    return np.max(np.abs(np.asarray(tf.cast(actual, tf.float64)) - expected)) / np.max(
        np.abs(expected)
    )


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_equals_stock_ops(dtype, mode):
    ours = tf.function(loss_and_gradients) if mode == "function" else loss_and_gradients
    actual = ours(late_phase.ops.softmax_cross_entropy, tensors(problem(), dtype))
    expected = loss_and_gradients(stock, tensors(problem(), tf.float64))
    for name, wanted in expected.items():
        assert actual[name].dtype == dtype and actual[name].shape == wanted.shape
        assert relative_error(actual[name], wanted) <= TOLERANCE[dtype], name


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 205])
def test_vocabularies(vocab):
    actual = loss_and_gradients(
        late_phase.ops.softmax_cross_entropy, tensors(problem(vocab=vocab), tf.float64)
    )
    expected = loss_and_gradients(stock, tensors(problem(vocab=vocab), tf.float64))
    for name, wanted in expected.items():
        np.testing.assert_allclose(actual[name], wanted, rtol=1e-11, atol=1e-13, err_msg=name)


def test_numerical_gradient():
    inputs = tensors(problem(n=6, units=3, vocab=5), tf.float64)
    labels = inputs.pop("labels")
    theoretical, numerical = tf.test.compute_gradient(
        lambda *args: late_phase.ops.softmax_cross_entropy(*args, labels), list(inputs.values())
    )
    for name, exact, measured in zip(inputs, theoretical, numerical):
        np.testing.assert_allclose(exact, measured, atol=1e-7, err_msg=name)


def test_unknown_shapes_in_one_trace():
    traces = []

    @tf.function(
        input_signature=[
            {
                name: tf.TensorSpec(None, tf.int32 if name == "labels" else tf.float64)
                for name in problem()
            }
        ]
    )
    def step(inputs):
        traces.append(1)
        return loss_and_gradients(late_phase.ops.softmax_cross_entropy, inputs)

    for n, vocab in [(3, 4), (130, 205)]:
        inputs = tensors(problem(n=n, vocab=vocab), tf.float64)
        expected = loss_and_gradients(stock, inputs)
        for name, actual in step(inputs).items():
            assert relative_error(actual, expected[name]) <= 1e-12, name
    assert len(traces) == 1


def test_shapes_are_known_while_tracing():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 9]),
            tf.TensorSpec([None, 37]),
            tf.TensorSpec(None),
            tf.TensorSpec([70], tf.int32),
        ]
    )
    def trace(features, kernel, bias, labels):
        out = late_phase.raw_ops.late_phase_softmax_cross_entropy(
            features=features, kernel=kernel, bias=bias, labels=labels
        )
        grad = late_phase.raw_ops.late_phase_softmax_cross_entropy_grad(
            features=features, kernel=kernel, dlogits=out.dlogits, dloss=out.loss
        )
        return [*out, *grad]

    outputs = trace.get_concrete_function().structured_outputs
    assert [tuple(t.shape) for t in outputs] == [(70,), (70, 37), (70, 9), (9, 37), (37,)]


def test_huge_logits_and_classes_switched_off():
    arrays = problem(vocab=8)
    arrays["bias"] = np.array([1e4, -1e4, 1e4 - 3, -np.inf, 0, 1e4 - 1, -1e4, 1e4 - 0.5])
    arrays["labels"][arrays["labels"] == 3] = 0
    actual = loss_and_gradients(late_phase.ops.softmax_cross_entropy, tensors(arrays, tf.float64))
    expected = loss_and_gradients(stock, tensors(arrays, tf.float64))
    assert relative_error(actual["loss"], expected["loss"]) <= 1e-12
    assert np.isfinite(actual["kernel"]).all() and actual["bias"][3] == 0
    arrays["labels"][5] = 3
    loss = late_phase.ops.softmax_cross_entropy(**tensors(arrays, tf.float64)).numpy()
    assert loss[5] == np.inf and np.isfinite(np.delete(loss, 5)).all()


def test_one_forward_pass_serves_two_gradients():
    inputs = tensors(problem(), tf.float64)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs["kernel"])
        loss = late_phase.ops.softmax_cross_entropy(**inputs)
    np.testing.assert_array_equal(
        tape.gradient(loss, inputs["kernel"]), tape.gradient(loss, inputs["kernel"])
    )


@pytest.mark.parametrize("n, units", [(0, 9), (7, 0)])
def test_empty_sizes(n, units):
    inputs = tensors(problem(n=n, units=units), tf.float64)
    actual = loss_and_gradients(late_phase.ops.softmax_cross_entropy, inputs)
    expected = stock(**inputs)
    np.testing.assert_allclose(actual["loss"], expected, rtol=1e-12)
    assert actual["kernel"].shape == (units, 37) and np.isfinite(actual["bias"]).all()


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize(
    "change, complaint",
    [
        (
            {"labels": np.full(70, 37)},
            r"LatePhase>SoftmaxCrossEntropy: `labels` must be in \[0, 37\), the columns of "
            r"`kernel`. Received: labels\[0\]=37",
        ),
        (
            {"labels": np.arange(70) - 69},
            r"`labels` must be in \[0, 37\), the columns of `kernel`. Received: labels\[0\]=-69",
        ),
        ({"labels": np.zeros(69)}, r"`labels` must be \[n\] with n=70. Received: shape=\[69\]"),
        (
            {"features": np.zeros((7, 10, 9))},
            r"`features` must be \[n, units\]. Received: shape=\[7,10,9\]",
        ),
        (
            {"kernel": np.zeros((8, 37))},
            r"`kernel` must be \[units, vocab>=1\] with units=9. Received: shape=\[8,37\]",
        ),
        (
            {"kernel": np.zeros((9, 0)), "bias": np.zeros(0)},
            r"`kernel` must be \[units, vocab>=1\] with units=9. Received: shape=\[9,0\]",
        ),
        (
            {"bias": np.zeros((1, 37))},
            r"`bias` must be \[vocab\] with vocab=37. Received: shape=\[1,37\]",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(mode, change, complaint):
    call = late_phase.ops.softmax_cross_entropy
    if mode == "function":
        call = tf.function(call)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=complaint):
        call(**tensors({**problem(), **change}, tf.float64))


def test_wrong_types_are_refused():
    inputs = tensors(problem(), tf.float64)
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        late_phase.ops.softmax_cross_entropy(
            **{**inputs, "kernel": tf.cast(inputs["kernel"], tf.float32)}
        )
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        late_phase.ops.softmax_cross_entropy(
            **{**inputs, "labels": tf.cast(inputs["labels"], tf.float64)}
        )


def test_second_order_is_refused():
    inputs = tensors(problem(), tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(inputs["kernel"])
        with tf.GradientTape() as inner:
            inner.watch(inputs["kernel"])
            loss = late_phase.ops.softmax_cross_entropy(**inputs)
        grad = inner.gradient(loss, inputs["kernel"])
        with pytest.raises(NotImplementedError, match="second-order"):
            outer.gradient(grad, inputs["kernel"])
