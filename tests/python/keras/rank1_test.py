"""The rank-1 layers against Keras's and their equations; their training, saving and `collapse`."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import Rank1Conv2D, Rank1Dense, Rank1LSTM

keras.config.set_floatx("float64")

K = 3


def dense(x, kernel, bias, u, v, activation=tf.tanh):
    return activation(tf.tensordot(x * u, kernel, 1) * v + bias)


def conv(x, kernel, bias, u, v, **options):
    return tf.tanh(tf.nn.convolution(x * u, kernel, **options) * v + bias)


def lstm(x, kernel, recurrent_kernel, bias, u, v, sequences=True):
    h = c = tf.zeros([x.shape[0], u.shape[0]], x.dtype)
    hs = []
    for t in range(x.shape[1]):
        i, f, g, o = tf.split(x[:, t] @ kernel + bias + ((h * u) @ recurrent_kernel) * v, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        hs.append(h)
    return tf.stack(hs, axis=1) if sequences else h


# The layer, Keras's, their options, the shape of the inputs, the equations of `x, weights, u, v`.
LAYERS = {
    "dense": (Rank1Dense, keras.layers.Dense, dict(units=4, activation="tanh"), (6, 3), dense),
    "dense on sequences": (
        Rank1Dense, keras.layers.Dense, dict(units=1, use_bias=False), (5, 2, 3),
        lambda x, kernel, u, v: dense(x, kernel, 0, u, v, tf.identity)),
    "conv": (
        Rank1Conv2D, keras.layers.Conv2D,
        dict(filters=4, kernel_size=(3, 2), strides=2, padding="same", activation="tanh"),
        (2, 7, 6, 3),
        lambda *weights: conv(*weights, strides=[2, 2], padding="SAME")),
    "conv with holes": (
        Rank1Conv2D, keras.layers.Conv2D,
        dict(filters=1, kernel_size=2, dilation_rate=(2, 1), activation="tanh", use_bias=False),
        (3, 5, 4, 2),
        lambda x, kernel, u, v: conv(x, kernel, 0, u, v, padding="VALID", dilations=(2, 1))),
    "lstm": (Rank1LSTM, keras.layers.LSTM, dict(units=5, return_sequences=True), (4, 7, 3), lstm),
    "lstm to last output": (
        Rank1LSTM, keras.layers.LSTM, dict(units=9, unit_forget_bias=False), (3, 6, 1),
        lambda *weights: lstm(*weights, sequences=False)),
    "lstm backwards": (
        Rank1LSTM, keras.layers.LSTM,
        dict(units=4, go_backwards=True, return_sequences=True, use_bias=False), (2, 5, 3),
        lambda x, kernel, recurrent, u, v: lstm(x[:, ::-1], kernel, recurrent, 0, u, v)),
    "lstm of one": (
        Rank1LSTM, keras.layers.LSTM, dict(units=1, return_sequences=True), (1, 1, 1), lstm),
}  # fmt: skip
KINDS = ["dense", "conv", "lstm"]


def inputs_of(name, seed=1):
    return np.random.default_rng(seed).normal(size=LAYERS[name][3])


def pair(name, **options):
    """The layer and Keras's, each as it comes from the same seed."""
    made = []
    for cls, more in zip(LAYERS[name][:2], (dict(members=K), {})):
        keras.utils.set_random_seed(0)
        layer = cls(**LAYERS[name][2], **more, **options)
        layer.build(LAYERS[name][3])
        made.append(layer)
    return made


def base_weights(layer):
    return [weight for weight in layer.weights if not hasattr(weight, "late_phase_members")]


def with_random_weights(name, seed=2, **options):
    layer, _ = pair(name, **options)
    random = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(
            random.uniform(
                *((0.5, 1.5) if hasattr(weight, "late_phase_members") else (-1, 1)), weight.shape
            )
        )
    return layer


def attached(layer, member):
    """An optimizer whose coming minibatch is the member's. Keep it: the layer does not."""
    optimizer = late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=K)
    layer.attach(optimizer)
    optimizer.member.assign(member)
    return optimizer


def gradients(function, x, watched):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch([x, *[w for w in watched if isinstance(w, tf.Tensor)]])
        y = function(x)
        loss = tf.reduce_sum(tf.sin(y))
    return y.numpy(), [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, [x, *watched])]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_fresh_layer_is_keras_own(name, training):
    layer, other = pair(name)
    x = inputs_of(name)
    y, (dx, *dw) = gradients(lambda x: layer(x, training=training), x, base_weights(layer))
    expected, (dx_expected, *dw_expected) = gradients(
        lambda x: other(x, training=training), x, other.weights
    )
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-14)
    assert y.shape == tuple(layer.compute_output_shape(x.shape)) and len(dw) == len(dw_expected)
    for actual, wanted in zip([dx, *dw], [dx_expected, *dw_expected]):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
@pytest.mark.parametrize("how", ["member 0", "member 2", "mean"])
@pytest.mark.parametrize("name", LAYERS)
def test_equals_the_equations_with_all_gradients(name, how, compiled):
    layer, x, equations = with_random_weights(name), inputs_of(name), LAYERS[name][4]
    _optimizer = attached(layer, 2 if how == "member 2" else 0)
    call = lambda x: layer(x, training=how != "mean")
    y, (dx, du, dv, *dw) = gradients(
        tf.function(call) if compiled else call, x, [layer.u, layer.v, *base_weights(layer)]
    )
    share = {"member 0": [1, 0, 0], "member 2": [0, 0, 1], "mean": [1 / K] * K}[how]
    u, v = (tf.constant(share @ factor.numpy()) for factor in (layer.u, layer.v))
    weights = [tf.constant(w.numpy()) for w in base_weights(layer)]
    expected, (dx_e, du_e, dv_e, *dw_e) = gradients(
        lambda x: equations(x, *weights, u, v), x, [u, v, *weights]
    )
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)
    for actual, wanted in zip(
        [dx, *dw, du, dv], [dx_e, *dw_e, np.outer(share, du_e), np.outer(share, dv_e)], strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)


START, RATE = 2, 0.125
STEPS = START + 2 * K + 1  # a cycle is left unfinished


@pytest.mark.parametrize("name", KINDS)
def test_training_is_algorithm_1(name):
    """A step trains the factors of its member, a cycle the base weights: as in a plain loop."""
    layer, equations = with_random_weights(name), LAYERS[name][4]
    for factor in (layer.u, layer.v):  # one member until START
        factor.assign(np.repeat(factor.numpy()[:1], K, axis=0))
    x = [inputs_of(name, seed) for seed in range(STEPS)]
    y = [
        np.random.default_rng(100 + t).normal(size=layer.compute_output_shape(x[t].shape))
        for t in range(STEPS)
    ]
    base = [w.numpy() for w in base_weights(layer)]
    rows = [[layer.u.numpy()[k], layer.v.numpy()[k]] for k in range(K)]
    model = keras.Sequential([keras.Input(x[0].shape[1:]), layer])
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(RATE), members=K, start=START
    )
    model.compile(optimizer, "mse")
    sums = [0.0] * len(base)
    for t in range(STEPS):
        loss = model.train_on_batch(x[t], y[t])
        late, k = t >= START, (t - START) % K if t >= START else 0
        weights = [tf.constant(w) for w in [*base, *rows[k]]]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            expected = tf.reduce_mean(tf.square(equations(tf.constant(x[t]), *weights) - y[t]))
        *of_base, du, dv = [g.numpy() for g in tape.gradient(expected, weights)]
        assert loss == pytest.approx(expected.numpy(), rel=1e-6)
        row = [w - RATE * g for w, g in zip(rows[k], (du, dv))]
        rows = [row if j == k or not late else rows[j] for j in range(K)]
        sums = [total + g for total, g in zip(sums, of_base)]
        if not late or k == K - 1:
            base, sums = [w - RATE * g for w, g in zip(base, sums)], [0.0] * len(base)
        for weight, wanted in zip(
            [layer.u, layer.v, *base_weights(layer)], [*(np.stack(f) for f in zip(*rows)), *base]
        ):
            np.testing.assert_allclose(
                weight.numpy(), wanted, rtol=0, atol=1e-12, err_msg=f"{weight.path} after step {t}"
            )
    assert len({row.tobytes() for row in layer.u.numpy()}) == K


# States of the LSTM.


def lstm_pair(**options):
    """Rank1LSTM and Keras's LSTM of equal outputs in inference: the factors are not ones."""
    layer, other = Rank1LSTM(5, members=K, **options), keras.layers.LSTM(5, **options)
    random = np.random.default_rng(3)
    shape = (4, 6, 3)
    layer.build(shape)
    other.build(shape)
    for weight in layer.weights:
        weight.assign(random.uniform(0.4, 1.2, weight.shape))
    u, v = layer.u.numpy().mean(axis=0), layer.v.numpy().mean(axis=0)
    kernel, recurrent_kernel, bias = layer.cell.get_weights()
    other.cell.set_weights([kernel, np.diag(u) @ recurrent_kernel @ np.diag(v), bias])
    return layer, other, random.normal(size=shape)


@pytest.mark.parametrize("sequences", [True, False])
def test_states_go_in_and_out_as_in_keras(sequences):
    layer, other, x = lstm_pair(return_sequences=sequences, return_state=True)
    x = tf.constant(x)
    states = [tf.constant(np.random.default_rng(s).normal(size=(4, 5))) for s in range(2)]
    for initial in ([], states):
        results, gradients = [], []
        for some in (layer, other):
            with tf.GradientTape() as tape:
                tape.watch([x, *initial])
                results.append(some(x, initial_state=initial or None))
                loss = sum(
                    tf.reduce_sum(tf.sin((i + 1) * part)) for i, part in enumerate(results[-1])
                )
            gradients.append(tape.gradient(loss, [x, *initial]))
        assert len(results[0]) == 3
        for actual, wanted in [*zip(*results, strict=True), *zip(*gradients, strict=True)]:
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)


def test_states_of_an_encoder_reach_a_decoder():
    first, second = keras.Input((6, 3)), keras.Input((None, 3))
    _, *states = Rank1LSTM(5, members=K, return_state=True)(first)
    model = keras.Model(
        [first, second],
        Rank1LSTM(5, members=K, return_sequences=True)(second, initial_state=states),
    )
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 3))
    encoder, decoder = (layer for layer in model.layers if isinstance(layer, Rank1LSTM))
    expected = decoder(x[1][:, :2], initial_state=encoder(x[0])[1:])
    np.testing.assert_allclose(
        model.predict([x[0], x[1][:, :2]], verbose=0), expected, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("training", [False, True])
def test_stateful_calls_are_one_long_call(training):
    layer, other, x = lstm_pair(stateful=True, return_sequences=True)
    optimizer = attached(layer, 1)
    long = Rank1LSTM(5, members=K, return_sequences=True)
    long.build(x.shape)
    long.set_weights(layer.get_weights())
    long.attach(optimizer)
    for _ in range(2):
        parts = np.concatenate(
            [layer(part, training=training) for part in np.split(x, [1, 3], axis=1)], axis=1
        )
        np.testing.assert_allclose(parts, long(x, training=training), rtol=0, atol=1e-13)
        layer.reset_state()
    layer(x)
    layer.reset_states()
    for part in np.split(x, 2, axis=1):
        np.testing.assert_allclose(layer(part), other(part), rtol=0, atol=1e-13)
    assert np.abs(layer(x).numpy() - long(x).numpy()).max() > 1e-3


def test_stateful_model_keeps_its_state_between_batches():
    layer, _, x = lstm_pair(stateful=True, return_sequences=True)
    model = keras.Sequential([keras.Input(batch_shape=(4, 2, 3)), layer])
    layer.reset_state()
    parts = [model.predict(part, batch_size=4, verbose=0) for part in np.split(x, 3, axis=1)]
    layer.reset_state()
    np.testing.assert_allclose(np.concatenate(parts, axis=1), layer(x), rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="batch size"):
        layer(x[:3])


# Options taken over from Keras.


def test_dropout_of_inputs_is_keras_own():
    layer, other = pair("lstm", dropout=0.5, seed=7)
    x = inputs_of("lstm")
    results = [layer(x, training=training).numpy() for training in (True, False)]
    for y, training in zip(results, (True, False)):
        np.testing.assert_allclose(y, other(x, training=training), rtol=0, atol=1e-13)
    assert np.abs(results[0] - results[1]).max() > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_regularizers_are_of_the_shared_weights(name):
    options = dict(
        kernel_regularizer="l2",
        bias_regularizer=keras.regularizers.L1(0.5),
        bias_initializer="ones",
    )
    if name == "lstm":
        options.update(recurrent_regularizer=keras.regularizers.L2(0.1), unit_forget_bias=False)
    layer, other = pair(name, **options)
    losses, expected = [sorted(float(loss) for loss in some.losses) for some in (layer, other)]
    assert len(losses) == (3 if name == "lstm" else 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_factors_start_as_their_initializers_say(name):
    layer, _ = pair(name)
    assert (layer.u.numpy() == 1).all() and (layer.v.numpy() == 1).all()
    keras.utils.set_random_seed(0)
    uniform = keras.initializers.RandomUniform(0.99, 1.01, seed=3)
    layer = LAYERS[name][0](
        members=K,
        u_initializer=uniform,
        v_initializer=keras.initializers.Constant(0.5),
        **LAYERS[name][2],
    )
    layer.build(LAYERS[name][3])
    u = layer.u.numpy()
    assert (0.99 <= u).all() and (u <= 1.01).all() and len(set(u[0])) == u.shape[1]
    np.testing.assert_array_equal(u, np.broadcast_to(u[0], u.shape))
    assert (layer.v.numpy() == 0.5).all()


# Precision.


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_mixed_precision(name, half):
    layer, exact = with_random_weights(name, dtype=f"mixed_{half}"), with_random_weights(name)
    assert {weight.dtype for weight in layer.weights} == {"float32"}
    x = inputs_of(name)
    for training in (True, False):
        y = layer(x, training=training)
        assert y.dtype == half
        np.testing.assert_allclose(
            tf.cast(y, tf.float64), exact(x, training=training), rtol=0.05, atol=0.05
        )


def whole_model(policy=None):
    """All three kinds among Keras's own, one in a nested model, beside an operation."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((8, 7, 3))
    x = Rank1Conv2D(6, 3, members=K, padding="same", activation="relu", dtype=policy)(inputs)
    x = x + keras.Sequential(
        [Rank1Conv2D(6, 3, members=K, padding="same", dtype=policy)], name="block"
    )(x)
    x = keras.layers.Dense(10, dtype=policy)(keras.layers.Reshape((8, 42), dtype=policy)(x))
    x = Rank1LSTM(7, members=K, dtype=policy)(x)
    return keras.Model(inputs, Rank1Dense(5, members=K, dtype=policy)(x))


def examples(count=48):
    random = np.random.default_rng(6)
    return random.normal(size=(count, 8, 7, 3)), random.integers(0, 5, count)


def compile_and_fit(model):
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), members=K, start=3, sigma=0.3
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*examples(), batch_size=6, verbose=0)
    return optimizer


def test_mixed_bfloat16_trains():
    model = whole_model("mixed_bfloat16")
    before = model.get_weights()
    optimizer = compile_and_fit(model)
    assert int(optimizer.iterations.numpy()) == 8 and int(optimizer.member.numpy()) == 2
    for weight, start in zip(model.weights, before):
        assert weight.dtype == "float32" and np.isfinite(weight.numpy()).all()
        assert not np.array_equal(weight.numpy(), start), weight.path


# Saving and the way back to Keras's layers.


@pytest.fixture(scope="module")
def trained():
    model = whole_model()
    compile_and_fit(model)
    for weight in model.weights:
        if hasattr(weight, "late_phase_members"):
            assert len({row.tobytes() for row in weight.numpy()}) == K, weight.path
    return model


@pytest.mark.parametrize("name", LAYERS)
def test_config_goes_there_and_back(name):
    options = dict(
        u_initializer=keras.initializers.RandomUniform(0.9, 1.1, seed=3),
        name="its_name",
        trainable=False,
    )
    layer = LAYERS[name][0](members=K, **LAYERS[name][2], **options)
    other = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(other) is type(layer) and other.get_config() == layer.get_config()
    assert (other.members, other.name, other.trainable, other.u_initializer.minval) == (
        K,
        "its_name",
        False,
        0.9,
    )


def test_saved_model_is_the_same_and_goes_on(trained, tmp_path):
    x, y = examples()
    trained.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(other(x), trained(x))
    member = int(other.optimizer.member.numpy())
    assert member == int(trained.optimizer.member.numpy()) > 0
    other.train_on_batch(x[:6], y[:6])
    for weight, before in zip(other.weights, trained.get_weights(), strict=True):
        if hasattr(
            weight, "late_phase_members"
        ):  # of which the row of the member in turn was trained
            changed = [not np.array_equal(row, start) for row, start in zip(weight.numpy(), before)]
            assert changed == [k == member for k in range(K)], weight.path


def test_weights_are_saved_and_loaded(trained, tmp_path):
    trained.save_weights(tmp_path / "trained.weights.h5")
    other = whole_model()
    other.load_weights(tmp_path / "trained.weights.h5")
    for weight, expected in zip(other.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_collapsed_model_predicts_the_same_without_late_phase(trained, tmp_path):
    x, _ = examples()
    plain = late_phase.keras.collapse(trained)
    expected = trained(x)
    assert all(type(layer).__module__.startswith("keras.") for layer in plain._flatten_layers())
    assert not plain.compiled and plain.count_params() < trained.count_params()
    np.testing.assert_allclose(plain(x), expected, rtol=0, atol=1e-13)
    plain.save(tmp_path / "plain.keras")
    np.save(tmp_path / "x.npy", x)
    program = (
        "import sys, keras, numpy as np; model = keras.models.load_model('plain.keras'); "
        "np.save('y.npy', model(np.load('x.npy'))); "
        "assert not any('late_phase' in name for name in sys.modules)"
    )
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "LATE_PHASE_OPS")
    }
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_every_option_survives_collapse(name):
    layer = with_random_weights(name)
    model = keras.Sequential([keras.Input(LAYERS[name][3][1:]), layer])
    plain = late_phase.keras.collapse(model)
    assert type(plain.layers[-1]) is LAYERS[name][1]
    x = inputs_of(name)
    np.testing.assert_allclose(plain(x), model(x), rtol=0, atol=1e-13)


# Whole models.


def text_batches(length=12, batch=10, copies=30):
    """Of a repeated sentence: symbols [n, length], those that follow each, how many there are."""
    text = np.frombuffer(b"one member at a time, and all of them at the end. " * copies, np.uint8)
    vocab, tokens = np.unique(text, return_inverse=True)
    count = (len(tokens) - 1) // length // batch * batch
    return (
        tokens[:-1][: count * length].reshape(count, length),
        tokens[1:][: count * length].reshape(count, length),
        len(vocab),
    )


@pytest.mark.parametrize("members", [1, K])
def test_character_model_learns(members):
    tokens, labels, vocab = text_batches()
    keras.utils.set_random_seed(8)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(vocab, 16),
            Rank1LSTM(40, members=members, return_sequences=True, dtype="float32"),
            keras.layers.Dense(vocab, dtype="float32"),
        ]
    )
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.Adam(1e-2),
        keras.optimizers.Adam(1e-3),
        members=members,
        start=60,
        sigma=0.05,
        base_scale=1 / members,
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(tokens, labels, batch_size=10, epochs=12, verbose=0)
    loss, accuracy = model.evaluate(tokens, labels, verbose=0)
    assert accuracy > 0.7 and loss < 1, (loss, accuracy)


def test_wrapped_in_bidirectional_it_trains_and_collapses():
    wrapper = keras.layers.Bidirectional(Rank1LSTM(4, members=K), name="both")
    model = keras.Sequential([keras.Input((6, 3)), wrapper])
    model.compile(
        late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=K, sigma=0.1), "mse"
    )
    model.fit(np.ones((2 * K, 6, 3)), np.ones((2 * K, 8)), batch_size=2, verbose=0)
    for layer in (wrapper.forward_layer, wrapper.backward_layer):
        assert len({row.tobytes() for row in layer.u.numpy()}) == K
    plain, x = late_phase.keras.collapse(model), np.random.default_rng(0).normal(size=(4, 6, 3))
    assert (
        type(plain.layers[-1].forward_layer)
        is type(plain.layers[-1].backward_layer)
        is keras.layers.LSTM
    )
    np.testing.assert_allclose(plain(x), model(x), rtol=0, atol=1e-5)


def test_inference_saves_nothing_for_a_gradient():
    layer, x = with_random_weights("lstm"), tf.constant(inputs_of("lstm"))
    for training in (True, False):
        graph = tf.function(lambda x: layer(x, training=training)).get_concrete_function(x).graph
        ops = [op for op in graph.get_operations() if op.type == "LatePhase>Rank1Lstm"]
        assert [op.get_attr("is_training") for op in ops] == [training]


def test_layers_compile_under_xla():
    for name in KINDS:
        model = keras.Sequential([keras.Input(LAYERS[name][3][1:]), pair(name)[0]])
        expected = model.predict(inputs_of(name), verbose=0)
        model.compile(jit_compile=True)
        assert model.jit_compile
        actual = model.predict(inputs_of(name), verbose=0)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name, options, message",
    [
        (
            "lstm",
            dict(use_cudnn=True),
            "`use_cudnn` must be 'auto' in Rank1LSTM. Received: use_cudnn=True",
        ),
        ("lstm", dict(time_major=True), "Rank1LSTM: {'time_major': True}"),
        ("conv", dict(groups=2), "`groups` must be 1 in Rank1Conv2D. Received: groups=2"),
        (
            "conv",
            dict(data_format="channels_first"),
            "`data_format` must be 'channels_last' in Rank1Conv2D. Received: .*='channels_first'",
        ),
        (
            "conv",
            dict(lora_rank=2),
            "`lora_rank` must be None in Rank1Conv2D. Received: lora_rank=2",
        ),
        (
            "dense",
            dict(lora_rank=2),
            "`lora_rank` must be None in Rank1Dense. Received: lora_rank=2",
        ),
        *[
            (
                name,
                dict(members=0),
                "`members` must be an integer of at least 1. Received: members=0",
            )
            for name in KINDS
        ],
    ],
)
def test_what_a_layer_lacks_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        LAYERS[name][0](**{"members": K, **LAYERS[name][2], **options})
