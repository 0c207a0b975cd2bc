"""Masks and other options in Rank1LSTM, Rank1LSTMCell and BatchNormalization, against Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import Rank1LSTM, Rank1LSTMCell

K, N, T, C, H = 3, 4, 6, 3, 5

keras.config.set_floatx("float64")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, T, C))
# Masked at the end, at the beginning and in between; and not at all.
MASK = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [1] * 6], bool)


def scattered(layer, seed=0):
    """Every weight random, all rows different."""
    random = np.random.default_rng(seed)
    layer.set_weights([random.normal(0.5, 0.5, w.shape) for w in layer.get_weights()])
    return layer


def plain_lstm(layer, member=None, **options):
    """Keras's LSTM with a member's factors, or the mean ones, in its recurrent kernel."""
    u, v = (
        f.numpy().mean(axis=0) if member is None else f.numpy()[member] for f in (layer.u, layer.v)
    )
    plain = keras.layers.LSTM(H, return_sequences=True, return_state=True, **options)
    plain.build((None, T, C))
    kernel, recurrent_kernel, bias = (
        w.numpy() for w in (layer.cell.kernel, layer.cell.recurrent_kernel, layer.cell.bias)
    )
    plain.set_weights([kernel, recurrent_kernel * u[:, np.newaxis] * v, bias])
    return plain


def lstm(**options):
    layer = Rank1LSTM(H, members=K, return_sequences=True, return_state=True, **options)
    layer.build((None, T, C))
    return scattered(layer)


OPTIONS = {
    "tanh": {},
    "backwards": dict(go_backwards=True),
    "relu": dict(activation="relu"),
    "linear": dict(activation=None),
    "hard_sigmoid": dict(recurrent_activation="hard_sigmoid"),
    "unrolled": dict(unroll=True),
    "recurrent_dropout": dict(recurrent_dropout=0.5),  # no difference in inference
}


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("name", OPTIONS)
def test_lstm_is_keras_with_the_mean_factors(name, mask):
    layer = lstm(**OPTIONS[name])
    plain = plain_lstm(layer, **OPTIONS[name])
    for output, expected in zip(layer(X, mask=mask), plain(X, mask=mask), strict=True):
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-10)


def test_masked_training_has_the_gradients_of_keras():
    layer = lstm()
    plain = plain_lstm(layer, member=0)
    u, v = layer.u.numpy()[0], layer.v.numpy()[0]

    def gradients(of, variables, training):
        with tf.GradientTape() as tape:
            outputs = of(X, mask=MASK, training=training)
            loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in outputs])
        return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, variables)]

    cell = layer.cell
    found = gradients(
        layer, [cell.kernel, cell.recurrent_kernel, cell.bias, layer.u, layer.v], True
    )
    kernel, recurrent, bias = gradients(plain, plain.trainable_variables, True)
    own = cell.recurrent_kernel.numpy()
    expected = [
        kernel,
        recurrent * u[:, np.newaxis] * v,
        bias,
        np.stack([(recurrent * own * v).sum(axis=1)] + [np.zeros(H)] * (K - 1)),
        np.stack([(recurrent * own * u[:, np.newaxis]).sum(axis=0)] + [np.zeros(4 * H)] * (K - 1)),
    ]
    for gradient, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=0, atol=1e-9)


def test_recurrent_dropout_is_keras_with_the_same_seed():
    options = dict(recurrent_dropout=0.5, dropout=0.25, seed=7)
    layer = lstm(**options)
    plain = plain_lstm(layer, member=0, **options)
    for output, expected in zip(layer(X, training=True), plain(X, training=True), strict=True):
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-10)
    assert np.abs(layer(X, training=True)[0] - layer(X)[0]).max() > 1e-2


@pytest.mark.parametrize("training", [False, True])
def test_the_cell_in_a_loop_is_the_fused_layer(training):
    layer = lstm()
    cell = Rank1LSTMCell(H, members=K)
    cell.build((None, C))
    for name in ("u", "v"):
        getattr(cell, name).assign(getattr(layer, name))
    for name in ("kernel", "recurrent_kernel", "bias"):
        getattr(cell, name).assign(getattr(layer.cell, name))
    loop = keras.layers.RNN(cell, return_sequences=True, return_state=True)

    def run(of, variables):
        with tf.GradientTape() as tape:
            outputs = of(X, training=training)
            loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in outputs])
        return outputs, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

    names = ["kernel", "recurrent_kernel", "bias"]
    outputs, gradients = run(loop, [getattr(cell, n) for n in names] + [cell.u, cell.v])
    expected, others = run(layer, [getattr(layer.cell, n) for n in names] + [layer.u, layer.v])
    for output, other in zip([*outputs, *gradients], [*expected, *others], strict=True):
        np.testing.assert_allclose(output, other, rtol=0, atol=1e-9)
    states = [np.zeros((N, H))] * 2
    for t in range(T):  # a loop of one's own
        y, states = cell(X[:, t], states, training=training)
        np.testing.assert_allclose(y, expected[0][:, t], rtol=0, atol=1e-10)


def cell_model(members=K):
    keras.utils.set_random_seed(3)
    cell = Rank1LSTMCell(H, members=members)
    return keras.Sequential([keras.Input((T, C)), keras.layers.RNN(cell), keras.layers.Dense(2)])


def test_a_cell_trains_as_the_layer_does_and_is_saved_and_collapsed(tmp_path):
    fused = keras.Sequential([keras.Input((T, C)), Rank1LSTM(H, members=K), keras.layers.Dense(2)])
    model = cell_model()
    cell, layer = model.layers[0].cell, fused.layers[0]
    layer.u.assign(cell.u)
    layer.v.assign(cell.v)
    for name in ("kernel", "recurrent_kernel", "bias"):
        getattr(layer.cell, name).assign(getattr(cell, name))
    fused.layers[-1].set_weights(model.layers[-1].get_weights())
    x, y = RANDOM.normal(size=(8 * N, T, C)), RANDOM.normal(size=(8 * N, 2))
    for each in (model, fused):
        optimizer = late_phase.keras.LatePhaseOptimizer(
            keras.optimizers.SGD(0.1), members=K, start=2, sigma=0.0
        )
        each.compile(optimizer, "mse")
        each.fit(x, y, batch_size=N, shuffle=False, verbose=0)
    np.testing.assert_allclose(cell.u, layer.u, rtol=0, atol=1e-8)
    np.testing.assert_allclose(
        cell.recurrent_kernel, layer.cell.recurrent_kernel, rtol=0, atol=1e-8
    )
    assert np.ptp(cell.u, axis=0).any()
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), model(x))
    plain = late_phase.keras.collapse(model)
    assert type(plain.layers[0].cell) is keras.layers.LSTMCell
    np.testing.assert_allclose(plain(x), model(x), rtol=0, atol=1e-10)
    for k in range(K):
        one, other = (late_phase.keras.collapse(each, member=k) for each in (model, fused))
        np.testing.assert_allclose(one(x), other(x), rtol=0, atol=1e-7)
        assert np.abs(one(x) - plain(x)).max() > 1e-5


def test_weights_of_a_keras_lstm_are_taken():
    plain = keras.layers.LSTM(H, return_sequences=True)
    plain.build((None, T, C))
    layer = scattered(lstm())
    layer.set_weights(plain.get_weights())
    np.testing.assert_allclose(layer(X)[0], plain(X), rtol=0, atol=1e-10)
    own = scattered(lstm(), seed=1).get_weights()
    layer.set_weights(own)
    for weight, expected in zip(layer.get_weights(), own, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_weights_of_a_keras_cell_are_taken():
    plain, cell = keras.layers.LSTMCell(H), Rank1LSTMCell(H, members=K)
    for each in (plain, cell):
        each.build((None, C))
    scattered(cell).set_weights(plain.get_weights())
    states = [RANDOM.normal(size=(N, H))] * 2
    np.testing.assert_allclose(
        cell(X[:, 0], states)[0], plain(X[:, 0], states)[0], rtol=0, atol=1e-10
    )


def test_ensemble_of_masked_sequences_is_each_member():
    tokens = keras.Input((T,), dtype="int32")
    embedded = keras.layers.Embedding(9, C, mask_zero=True)(tokens)
    layer = Rank1LSTM(H, members=K)
    model = keras.Model(tokens, layer(embedded))
    scattered(layer)
    x = RANDOM.integers(1, 9, (N, T)) * MASK
    table = model.layers[1].embeddings.numpy()
    expected = [plain_lstm(layer, k)(table[x], mask=MASK)[1] for k in range(K)]
    np.testing.assert_allclose(
        late_phase.keras.ensemble(model)(x), np.mean(expected, axis=0), rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(
        late_phase.keras.collapse(model)(x), plain_lstm(layer)(table[x], mask=MASK)[1], atol=1e-10
    )


# BatchNormalization.


@pytest.mark.parametrize("members", [1, K])
def test_masked_batch_norm_is_keras(members):
    layer = late_phase.keras.BatchNormalization(members=members, momentum=0.5)
    plain = keras.layers.BatchNormalization(momentum=0.5)
    for each in (layer, plain):
        each.build(X.shape)
    random = np.random.default_rng(2)
    weights = [random.uniform(0.5, 1.5, (members, C)) for _ in range(4)]
    weights = [w[:1].repeat(members, axis=0) for w in weights]  # one member yet
    layer.set_weights(weights)
    plain.set_weights([w[0] for w in weights])

    def run(of):
        with tf.GradientTape() as tape:
            x = tf.constant(X)
            tape.watch(x)
            y = of(x, mask=tf.constant(MASK), training=True)
            loss = tf.reduce_sum(tf.sin(y))
        return y, *(tf.convert_to_tensor(g) for g in tape.gradient(loss, [x, of.gamma, of.beta]))

    (y, dx, dgamma, dbeta), (z, *expected) = run(layer), run(plain)
    np.testing.assert_allclose(y, z, rtol=0, atol=1e-5)  # Keras adds 1e-7 to the number of values
    np.testing.assert_allclose(dx, expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(dgamma[0], expected[1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(dbeta[0], expected[2], rtol=0, atol=1e-5)
    for name in ("moving_mean", "moving_variance"):
        rows = getattr(layer, name).numpy()
        np.testing.assert_allclose(
            rows, [getattr(plain, name).numpy()] * members, rtol=0, atol=1e-5
        )


def test_masked_batch_norm_trains_the_current_member():
    """With its row of every weight; its statistics are moved as those of K minibatches."""
    layer = late_phase.keras.BatchNormalization(members=K, momentum=0.5)
    plain = keras.layers.BatchNormalization(momentum=0.5**K)
    for each in (layer, plain):
        each.build(X.shape)
    random = np.random.default_rng(2)
    rows = [random.uniform(0.5, 1.5, (K, C)) for _ in range(4)]
    layer.set_weights(rows)
    plain.set_weights([w[1] for w in rows])
    optimizer = late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=K)
    layer.attach(optimizer)
    optimizer.member.assign(1)
    y, z = (each(X, mask=MASK, training=True) for each in (layer, plain))
    np.testing.assert_allclose(y, z, rtol=0, atol=1e-5)  # Keras adds 1e-7 to the number of values
    for weight, before, expected in zip(layer.weights, rows, plain.weights, strict=True):
        np.testing.assert_allclose(weight[1], expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(weight.numpy()[[0, 2]], before[[0, 2]])


def test_masked_values_do_not_count():
    layer = late_phase.keras.BatchNormalization(members=K, momentum=0.5)
    other = X + 100 * ~MASK[..., np.newaxis]
    y, z = layer(X, mask=MASK, training=True), layer(other, mask=MASK, training=True)
    np.testing.assert_allclose(np.array(y)[MASK], np.array(z)[MASK], rtol=0, atol=1e-9)
    y = np.array(y)[MASK]
    np.testing.assert_allclose(y.mean(axis=0), np.zeros(C), rtol=0, atol=1e-9)


def test_ensemble_of_a_layer_that_looks_for_masks_itself():
    """MultiHeadAttention has no `mask` argument; the masks of its inputs are not lost."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(tokens)
    attention = late_phase.keras.Members(keras.layers.MultiHeadAttention(2, 3), members=3)
    model = keras.Model(tokens, attention(embedded, embedded)[:, 0])
    random = np.random.default_rng(1)
    for variable in attention.member_variables():
        variable.assign(random.normal(size=variable.shape))
    x = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]])
    expected = [late_phase.keras.collapse(model, member=k)(x) for k in range(3)]
    actual = late_phase.keras.ensemble(model)(x)
    np.testing.assert_allclose(actual, np.mean(expected, axis=0), rtol=0, atol=1e-5)
    assert np.abs(model(x)[0] - model(x[:, ::-1])[0]).max() > 1e-3  # the mask matters
