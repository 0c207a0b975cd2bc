"""Masks, regularizers, constraints and types in Dense layers: as Keras has them, or refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K = 3
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(24, 8)).astype("float32"), RANDOM.normal(size=(24, 4)).astype("float32")


@pytest.fixture(autouse=True)
def the_same_weights_in_every_run():
    keras.utils.set_random_seed(0)


def optimizer(members=K, start=0, sigma=0.5, base=None):
    return late_phase.keras.LatePhaseOptimizer(
        base or keras.optimizers.SGD(0.25), members=members, start=start, sigma=sigma
    )


def no_loss(_, y):
    """Leaves training to regularizers and constraints."""
    return 0.0 * keras.ops.sum(y, axis=-1)


def pair(members, **options):
    """Models of one layer: with members, and Keras's, with equal weights."""
    layer, plain = (
        late_phase.keras.Dense(4, members=members, **options),
        keras.layers.Dense(4, **options),
    )
    models = [keras.Sequential([keras.Input((8,)), some]) for some in (layer, plain)]
    plain.set_weights(
        [np.random.default_rng(1).uniform(-1, 1, w.shape) for w in plain.get_weights()]
    )
    layer.set_weights([np.repeat(w[np.newaxis], members, axis=0) for w in plain.get_weights()])
    return models


# Masks


def masked(head):
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            keras.layers.Masking(),
            keras.layers.LSTM(4, return_sequences=True),
            head,
        ]
    )


def test_a_mask_goes_through():
    x = np.random.default_rng(2).normal(size=(6, 5, 3)).astype("float32")
    for row, length in zip(x, (1, 2, 3, 4, 5, 2)):
        row[length:] = 0
    y = np.arange(30).reshape(6, 5) % 4
    plain = masked(keras.layers.Dense(4))
    converted = late_phase.keras.convert(plain, members=K)
    ensemble = late_phase.keras.ensemble(converted)
    losses = []
    for model in (plain, converted, ensemble):
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append(model.evaluate(x, y, verbose=0))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    unmasked = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
        y, plain.predict(x, verbose=0)
    )
    assert abs(losses[0] - float(unmasked)) > 1e-3  # or the mask would not matter


# Regularizers


@pytest.mark.parametrize("members", [1, K])
def test_regularizers_count_as_in_keras(members):
    options = dict(
        kernel_regularizer=keras.regularizers.L1L2(0.1, 0.2),
        bias_regularizer="l2",
        activity_regularizer="l1",
    )
    model, plain = pair(members, **options)
    assert len(model.losses) == len(plain.losses) == 2  # before any call
    model.compile(optimizer(members, start=100), "mse")
    plain.compile(keras.optimizers.SGD(0.25), "mse")
    results = [
        (some.evaluate(X, Y, verbose=0), some.train_on_batch(X, Y), some.evaluate(X, Y, verbose=0))
        for some in (model, plain)
    ]
    np.testing.assert_allclose(*results, rtol=1e-6)
    for weight, expected in zip(model.get_weights(), plain.get_weights()):
        for row in weight:
            np.testing.assert_allclose(row, expected, rtol=0, atol=1e-6)


def test_a_member_is_regularized_by_itself_and_inference_by_the_mean():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            late_phase.keras.Dense(4, members=K, kernel_regularizer=keras.regularizers.L2(0.5)),
        ]
    )
    model.compile(optimizer(), no_loss)
    model.optimizer.build(model.trainable_variables)
    rows = model.layers[0].kernel.numpy().astype("float64")
    assert len({row.tobytes() for row in rows}) == K
    # The mean of three rows and the sum of 32 squares round by some 2^-24 each.
    np.testing.assert_allclose(
        model.evaluate(X, Y, verbose=0), 0.5 * np.sum(rows.mean(axis=0) ** 2), rtol=40 * 2.0**-24
    )
    for k in range(K):
        np.testing.assert_allclose(
            model.train_on_batch(X, Y), 0.5 * np.sum(rows[k] ** 2), rtol=40 * 2.0**-24
        )
        rows[k] -= 0.25 * 2 * 0.5 * rows[k]  # of the member's turn alone
        np.testing.assert_allclose(model.layers[0].kernel.numpy(), rows, rtol=1e-6)


def test_a_layer_called_twice_is_regularized_once_and_a_frozen_one_never():
    counts = []
    for layer in (
        late_phase.keras.Dense(8, members=K, kernel_regularizer="l2"),
        keras.layers.Dense(8, kernel_regularizer="l2"),
    ):
        model = keras.Sequential([keras.Input((8,)), layer, layer])
        model(X, training=True)
        counts.append([len(model.losses)])
        layer.trainable = False
        model(X, training=True)
        counts[-1].append(len(model.losses))
    assert counts == [[1, 0], [1, 0]]


@pytest.mark.parametrize("training", [False, True])
def test_regularizers_are_of_the_weights_not_of_their_16_bits(training):
    losses = []
    for make in (
        lambda **options: late_phase.keras.Dense(300, members=K, **options),
        lambda **options: keras.layers.Dense(300, **options),
    ):
        layer = make(
            dtype="mixed_float16",
            kernel_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(1e-3),
        )
        layer(np.ones((2, 300), "float32"), training=training)
        (loss,) = layer.losses
        losses.append(loss)
    assert losses[0].dtype == losses[1].dtype == tf.float32
    np.testing.assert_allclose(
        losses, 90, rtol=1e-5
    )  # 300 · 300 · 1e-3; more than 65504 squares are not finite in 16 bits


# Constraints


@pytest.mark.parametrize(
    "base", [keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.RMSprop]
)
@pytest.mark.parametrize("members", [1, K])
def test_constraints_hold_as_in_keras(members, base):
    model, plain = pair(
        members, kernel_constraint="non_neg", bias_constraint=keras.constraints.MaxNorm(0.1, axis=0)
    )
    model.compile(optimizer(members, start=100, base=base(0.1)), "mse")
    plain.compile(base(0.1), "mse")
    for some in (model, plain):
        for _ in range(3):
            some.train_on_batch(X, Y)
    assert (plain.layers[0].kernel.numpy() == 0).any()
    for weight, expected in zip(model.get_weights(), plain.get_weights()):
        for row in weight:
            np.testing.assert_allclose(row, expected, rtol=0, atol=2e-6)


def test_a_constraint_is_of_each_member_after_its_update():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            late_phase.keras.Dense(
                4, members=K, kernel_constraint=keras.constraints.UnitNorm(axis=0)
            ),
        ]
    )
    model.compile(optimizer(), no_loss)
    model.optimizer.build(model.trainable_variables)
    rows = model.layers[0].kernel.numpy().astype("float64")
    for k in range(K):
        model.train_on_batch(X, Y)
        rows[k] /= np.linalg.norm(rows[k], axis=0) + 1e-7  # Keras's epsilon
        np.testing.assert_allclose(model.layers[0].kernel.numpy(), rows, rtol=0, atol=1e-6)


def test_a_converted_head_keeps_its_options(tmp_path):
    options = dict(
        kernel_regularizer="l2",
        kernel_constraint="max_norm",
        bias_constraint="non_neg",
        activity_regularizer="l1",
    )
    _, plain = pair(1, **options)
    converted = late_phase.keras.convert(plain, members=K)
    converted.save(tmp_path / "converted.keras")
    loaded = keras.models.load_model(tmp_path / "converted.keras")
    for model in (converted, loaded, late_phase.keras.collapse(loaded)):
        config = model.layers[-1].get_config()
        assert {name: config[name] for name in options} == {
            name: plain.layers[-1].get_config()[name] for name in options
        }


# Types of inputs


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_integers_are_inputs_as_in_keras(policy):
    x = (np.arange(24).reshape(3, 8) % 3).astype("int32")
    plain = keras.layers.Dense(4, dtype=policy)
    plain.build((None, 8))
    plain.set_weights(
        [np.arange(32).reshape(8, 4) % 5 / 4 - 0.5, np.arange(4) / 4]
    )  # whose sums are exact in 8 bits
    for make in (late_phase.keras.Dense, late_phase.keras.Rank1Dense):
        layer = make(4, members=K, dtype=policy)
        layer.build((None, 8))
        shared = make is late_phase.keras.Rank1Dense
        layer.kernel.assign(
            plain.kernel.numpy()
            if shared
            else np.repeat(plain.kernel.numpy()[np.newaxis], K, axis=0)
        )
        layer.bias.assign(
            plain.bias.numpy() if shared else np.repeat(plain.bias.numpy()[np.newaxis], K, axis=0)
        )
        for outputs in (
            layer(x),
            layer(x, training=True),
            *([] if shared else [layer.call_members(x)]),
        ):
            assert outputs.dtype == plain(x).dtype
            np.testing.assert_array_equal(outputs, plain(x))


IN_TIME = {
    "Dense": (
        lambda **o: late_phase.keras.Dense(4, members=K, **o),
        lambda **o: keras.layers.Dense(4, **o),
        (2, 5, 8),
    ),
    "Rank1Dense": (
        lambda **o: late_phase.keras.Rank1Dense(4, members=K, **o),
        lambda **o: keras.layers.Dense(4, **o),
        (2, 5, 8),
    ),
    "Rank1Conv2D": (
        lambda **o: late_phase.keras.Rank1Conv2D(4, 2, members=K, **o),
        lambda **o: keras.layers.Conv2D(4, 2, **o),
        (2, 5, 4, 4, 3),
    ),
    "Rank1LSTM": (
        lambda **o: late_phase.keras.Rank1LSTM(4, members=K, **o),
        lambda **o: keras.layers.LSTM(4, **o),
        (2, 5, 3, 4),
    ),
}


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
@pytest.mark.parametrize("name", IN_TIME)
def test_a_layer_of_16_bits_inside_a_wrapper_of_32(name, policy):
    """TimeDistributed hands its own inputs on, which are not of the layer's type."""
    make, make_plain, shape = IN_TIME[name]
    x = RANDOM.normal(size=shape).astype("float32")
    keras.utils.set_random_seed(0)
    layer = make(dtype=policy)
    outputs = keras.layers.TimeDistributed(layer)(x)
    plain = make_plain(dtype=policy)
    plain.build((shape[0], *shape[2:]))
    plain.set_weights(layer.plain_weights())
    if (name, policy) == ("Rank1Conv2D", "float16"):
        return  # Keras's fails: there is nothing to compare with
    expected = keras.layers.TimeDistributed(plain)(x)
    assert outputs.dtype == expected.dtype
    np.testing.assert_allclose(
        tf.cast(outputs, tf.float64), tf.cast(expected, tf.float64), rtol=0, atol=4 * 2.0**-11
    )


@pytest.mark.parametrize("training", [False, True])
def test_sparse_inputs(training):
    x = X * (X > 0.5)
    for layer in (
        late_phase.keras.Dense(4, members=K),
        late_phase.keras.Rank1Dense(4, members=K, u_initializer="uniform", v_initializer="uniform"),
    ):
        np.testing.assert_allclose(
            layer(tf.sparse.from_dense(x), training=training),
            layer(x, training=training),
            rtol=0,
            atol=1e-6,
        )


# What there is not


@pytest.mark.parametrize("units", [0, -3, 2.5, None, "64"])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(
        ValueError, match=f"`units` must be a positive integer. Received: units={units!r}"
    ):
        late_phase.keras.Dense(units, members=K)


@pytest.mark.parametrize(
    "layer, shape",
    [
        (late_phase.keras.Rank1Dense(4, members=K), (8,)),
        (late_phase.keras.Rank1Conv2D(4, 1, members=K), (6, 6, 3)),
    ],
)
def test_lora_is_refused_and_the_layer_stays_as_it_is(layer, shape, tmp_path):
    model = keras.Sequential([keras.Input(shape), layer])
    with pytest.raises(
        ValueError,
        match=f"{type(layer).__name__} has no LoRA.*Received: enable_lora of .*{layer.name}",
    ):
        layer.enable_lora(2)
    model.save(tmp_path / "model.keras")
    x = np.ones((2, *shape), "float32")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), model(x))


@pytest.mark.parametrize(
    "make", [late_phase.keras.Dense, late_phase.keras.Rank1Dense, late_phase.keras.Rank1LSTM]
)
def test_quantization_is_refused(make):
    message = (
        f"`dtype` must be without quantization in {make.__name__}.*"
        "Received: dtype=int8_from_float32"
    )
    with pytest.raises(ValueError, match=message):
        make(4, members=K, dtype="int8_from_float32")


@pytest.mark.parametrize("option", ["lora_rank", "quantization_config", "renorm"])
def test_an_option_that_dense_lacks_is_named(option):
    with pytest.raises(ValueError, match=option):
        late_phase.keras.Dense(4, members=K, **{option: 2})
