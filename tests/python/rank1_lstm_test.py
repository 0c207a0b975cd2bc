"""The rank-1 LSTM ops in Python: eager and tf.function, gradients, exchange with Keras, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase

TOLERANCE = {tf.float64: 1e-9, tf.float32: 3e-5}


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def reference(x, kernel, recurrent_kernel, bias, u, v, initial_h, initial_c):
    """The equations in numpy, double precision; u and v are one member's rows."""
    h, c, hs = initial_h, initial_c, []
    for x_t in x:
        z = x_t @ kernel + bias + ((h * u) @ recurrent_kernel) * v
        i, f, g, o = np.split(z, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hs.append(h)
    return np.stack(hs), h, c


def problem(time=5, batch=7, inputs=6, units=9, members=4, seed=0):
    """Random inputs by name; u and v have `members` rows."""
    rng = np.random.default_rng(seed)
    uniform = lambda *shape: np.float32(rng.uniform(-1, 1, shape)).astype(np.float64)
    return {
        "x": uniform(time, batch, inputs),
        "kernel": uniform(inputs, 4 * units),
        "recurrent_kernel": uniform(units, 4 * units),
        "bias": uniform(4 * units),
        "u": 1 + 0.5 * uniform(members, units),
        "v": 1 + 0.5 * uniform(members, 4 * units),
        "initial_h": uniform(batch, units),
        "initial_c": uniform(batch, units),
    }


def tensors(arrays, dtype):
    return {name: tf.constant(array, dtype) for name, array in arrays.items()}


def relative_error(actual, expected):
    expected = np.asarray(expected, np.float64)
    return np.max(np.abs(np.asarray(actual, np.float64) - expected)) / np.max(np.abs(expected))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("member", [0, 3])
def test_equals_numpy(dtype, member):
    arrays = problem()
    result = late_phase.ops.rank1_lstm(**tensors(arrays, dtype), member=member)
    expected = reference(**{**arrays, "u": arrays["u"][member], "v": arrays["v"][member]})
    for actual, wanted in zip(result, expected):
        assert relative_error(actual, wanted) <= TOLERANCE[dtype]


def stock_ops(x, kernel, recurrent_kernel, bias, u, v, initial_h, initial_c, member):
    """The same layer from stock TensorFlow ops, whose gradients are TensorFlow's."""
    h, c, hs = initial_h, initial_c, []
    for t in range(x.shape[0]):
        z = x[t] @ kernel + bias + ((h * u[member]) @ recurrent_kernel) * v[member]
        i, f, g, o = tf.split(z, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        hs.append(h)
    return late_phase.ops.LstmResult(tf.stack(hs), h, c)


def gradients(layer, inputs, member):
    weights = np.random.default_rng(1).uniform(
        -1, 1, inputs["x"].shape[:2] + (inputs["u"].shape[1],)
    )
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = layer(**inputs, member=member)
        loss = (
            tf.reduce_sum(result.h * weights)
            + tf.reduce_sum(result.final_h * 0.3)
            + tf.reduce_sum(result.final_c * 0.7)
        )
    return tape.gradient(loss, inputs)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_gradients_equal_stock_ops(dtype, mode):
    inputs = tensors(problem(), dtype)
    ours = gradients
    if mode == "function":
        ours = tf.function(lambda layer, inputs, member: gradients(layer, inputs, member))
    actual = ours(late_phase.ops.rank1_lstm, inputs, tf.constant(2))
    expected = gradients(stock_ops, tensors(problem(), tf.float64), 2)
    for name, wanted in expected.items():
        wanted = tf.convert_to_tensor(wanted)
        assert relative_error(actual[name], wanted) <= TOLERANCE[dtype], name
    for name in ("u", "v"):
        rows = tf.convert_to_tensor(actual[name]).numpy()
        assert not rows[[0, 1, 3]].any(), "rows of other members must be exactly zero"
        assert rows[2].any()


def test_tokens_equal_one_hot_inputs():
    arrays = problem(inputs=11)
    tokens = np.random.default_rng(2).integers(0, 11, (5, 7))
    arrays["x"], table = np.eye(11)[tokens], arrays["kernel"] + arrays["bias"]
    dense = tensors(arrays, tf.float64)
    table = tf.constant(table)
    shared = {
        name: dense[name] for name in ("recurrent_kernel", "u", "v", "initial_h", "initial_c")
    }
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([table, dense])
        by_token = late_phase.ops.rank1_lstm_tokens(tokens, table, member=1, **shared)
        by_input = late_phase.ops.rank1_lstm(**dense, member=1)
        losses = [tf.reduce_sum(r.h**2) + tf.reduce_sum(r.final_c) for r in (by_token, by_input)]
    np.testing.assert_allclose(by_token.h, by_input.h, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        tape.gradient(losses[0], table),
        tape.gradient(losses[1], dense["kernel"]),
        rtol=1e-10,
        atol=1e-12,
    )


def test_unknown_shapes_and_member_variable_in_one_trace():
    """One trace of fully unknown shapes serves every size and, with `member` a variable, every
    member.
    """
    traces = []
    member = tf.Variable(0)

    @tf.function(input_signature=[{name: tf.TensorSpec(None, tf.float64) for name in problem()}])
    def step(inputs):
        traces.append(1)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = late_phase.ops.rank1_lstm(**inputs, member=member)
            loss = tf.reduce_sum(result.h**2)
        return result.h, tape.gradient(loss, inputs)

    for time, units in [(3, 4), (1, 9)]:
        for m in range(4):
            member.assign(m)
            arrays = problem(time=time, units=units)
            h, grads = step(tensors(arrays, tf.float64))
            expected, _, _ = reference(**{**arrays, "u": arrays["u"][m], "v": arrays["v"][m]})
            assert relative_error(h, expected) <= 1e-9
            assert grads["u"][m].numpy().any()
    assert len(traces) == 1


def test_unused_initial_states_default_to_zero():
    arrays = problem()
    del arrays["initial_h"], arrays["initial_c"]
    result = late_phase.ops.rank1_lstm(**tensors(arrays, tf.float64), member=1)
    zero = np.zeros((7, 9))
    expected = reference(
        **{**arrays, "u": arrays["u"][1], "v": arrays["v"][1], "initial_h": zero, "initial_c": zero}
    )
    assert relative_error(result.h, expected[0]) <= 1e-9


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_types_train(dtype):
    inputs = tensors(problem(), dtype)
    grads = gradients(
        lambda **kw: late_phase.ops.LstmResult(
            *(tf.cast(t, tf.float64) for t in late_phase.ops.rank1_lstm(**kw))
        ),
        inputs,
        2,
    )
    expected = gradients(stock_ops, tensors(problem(), tf.float64), 2)
    for name, wanted in expected.items():
        assert grads[name].dtype == dtype
        assert (
            relative_error(tf.cast(grads[name], tf.float64), tf.convert_to_tensor(wanted)) <= 0.05
        ), name


def test_keras_lstm_weights_pass_unchanged():
    """`keras.layers.LSTM` and the op with u = v = 1: equal outputs and gradients with the very same
    weight arrays.
    """
    keras.utils.set_random_seed(0)
    layer = keras.layers.LSTM(9, return_sequences=True, return_state=True, dtype="float64")
    x = tf.constant(problem()["x"].transpose(1, 0, 2))  # Keras has the batch first
    layer.build(x.shape)
    kernel, recurrent_kernel, bias = (tf.convert_to_tensor(w) for w in layer.trainable_variables)
    with tf.GradientTape() as tape:
        keras_h, keras_final_h, keras_final_c = layer(x)
        loss = tf.reduce_sum(keras_h**2)
    keras_grads = tape.gradient(loss, [w.value for w in layer.trainable_variables])
    with tf.GradientTape() as tape:
        tape.watch([kernel, recurrent_kernel, bias])
        ours = late_phase.ops.rank1_lstm(
            tf.transpose(x, [1, 0, 2]),
            kernel,
            recurrent_kernel,
            bias,
            tf.ones([1, 9], tf.float64),
            tf.ones([1, 36], tf.float64),
        )
        loss = tf.reduce_sum(ours.h**2)
    our_grads = tape.gradient(loss, [kernel, recurrent_kernel, bias])
    assert relative_error(tf.transpose(ours.h, [1, 0, 2]), keras_h) <= 1e-12
    assert relative_error(ours.final_h, keras_final_h) <= 1e-12
    assert relative_error(ours.final_c, keras_final_c) <= 1e-12
    for actual, wanted in zip(our_grads, keras_grads):
        assert relative_error(actual, wanted) <= 1e-11


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize(
    "change, complaint",
    [
        (
            {"member": -1},
            r"LatePhase>Rank1Lstm: `member` must be in \[0, 4\), the rows of `u`. "
            r"Received: member=-1",
        ),
        ({"member": 4}, r"`member` must be in \[0, 4\), the rows of `u`. Received: member=4"),
        ({"member": [1]}, r"`member` must be a scalar. Received: shape=\[1\]"),
        ({"x": np.zeros((5, 7))}, r"`x` must be \[time, batch, input\]. Received: shape=\[5,7\]"),
        ({"x": np.zeros(5)}, r"`x` must be \[time, batch, input\]. Received: shape=\[5\]"),
        (
            {"kernel": np.zeros((6, 37))},
            r"`kernel` must be \[input, 4\*units\] with input=6, units=9. Received: shape=\[6,37\]",
        ),
        ({"u": np.zeros((0, 9))}, r"`u` must be \[K>=1, units\]"),
        (
            {"v": np.zeros((3, 36))},
            r"`v` must be \[K, 4\*units\] with K=4, units=9. Received: shape=\[3,36\]",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(mode, change, complaint):
    call = late_phase.ops.rank1_lstm
    if mode == "function":
        call = tf.function(call)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=complaint):
        call(**{**problem(), **change})


def test_tokens_outside_the_table_say_where():
    arrays = problem()
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"`tokens` must be in \[0, 6\), the rows of `table`. Received: tokens\[0,1\]=6",
    ):
        late_phase.ops.rank1_lstm_tokens(
            [[0, 6]], arrays["kernel"], arrays["recurrent_kernel"], arrays["u"], arrays["v"]
        )


def test_wrong_types_are_refused():
    arrays = problem()
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        late_phase.ops.rank1_lstm(**{**arrays, "kernel": tf.constant(arrays["kernel"], tf.float32)})
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        late_phase.ops.rank1_lstm(**arrays, member=1.5)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_inference_saves_nothing_and_refuses_gradients(mode):
    inputs = tensors(problem(), tf.float64)

    def train():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            h = late_phase.ops.rank1_lstm(**inputs, member=1, is_training=False).h
        return h, tape.gradient(h, inputs)

    with pytest.raises(ValueError, match="`is_training` must be True for a gradient"):
        (tf.function(train) if mode == "function" else train)()
    raw = late_phase.raw_ops.late_phase_rank1_lstm(**inputs, member=1, is_training=False)
    assert raw.gates.shape == raw.cells.shape == (0, 0, 0)
    np.testing.assert_array_equal(raw.h, late_phase.ops.rank1_lstm(**inputs, member=1).h)


def test_second_order_is_refused():
    inputs = tensors(problem(), tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            loss = tf.reduce_sum(late_phase.ops.rank1_lstm(**inputs).h)
        grad = inner.gradient(loss, inputs["x"])
        with pytest.raises(NotImplementedError, match="second-order"):
            outer.gradient(grad, inputs["x"])


@pytest.mark.parametrize("time, batch", [(0, 3), (4, 0)])
def test_empty_time_or_batch(time, batch):
    arrays = problem(time=time, batch=batch)
    inputs = tensors(arrays, tf.float64)
    grads = gradients(late_phase.ops.rank1_lstm, inputs, 1)
    result = late_phase.ops.rank1_lstm(**inputs, member=1)
    assert result.h.shape == (time, batch, 9)
    np.testing.assert_array_equal(result.final_h, arrays["initial_h"])
    assert not grads["kernel"].numpy().any()
