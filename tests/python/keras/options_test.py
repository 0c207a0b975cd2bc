"""Options of Keras's layers in layers with members: what Keras does, or refused by name."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K, FEATURES = 3, 6
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(1, 2, size=(32, FEATURES)).astype("float32")
Y = RANDOM.normal(size=(32, 4)).astype("float32")
IMAGES = RANDOM.normal(1, 2, size=(32, 3, 5, 4)).astype("float32")
layers = keras.layers


def stack(*parts, shape=(FEATURES,), **options):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input(shape, **options), *parts])


def trained(model, x=X, y=Y, start=2, epochs=1):
    optimizer = keras.optimizers.SGD(0.05, momentum=0.5)
    if any(hasattr(v, "late_phase_members") for v in model.variables):
        optimizer = late_phase.keras.LatePhaseOptimizer(
            optimizer, members=K, start=start, sigma=0.3
        )
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, shuffle=False)
    return model


def norm(**options):
    return late_phase.keras.BatchNormalization(members=K, **options)


OPTIONS = {
    "beta_regularizer": keras.regularizers.L2(0.3),
    "gamma_regularizer": keras.regularizers.L1(0.2),
    "beta_constraint": keras.constraints.NonNeg(),
    "gamma_constraint": keras.constraints.MaxNorm(1.5),
}


@pytest.mark.filterwarnings("ignore:Training ended before `start`")
@pytest.mark.parametrize("option", OPTIONS)
def test_batch_norm_before_the_members_is_keras_s(option):
    """Trained as Keras's layer, with the same option, as long as there is one member."""
    options = {option: OPTIONS[option]}
    plain = stack(layers.BatchNormalization(**options), layers.Dense(4))
    late = late_phase.keras.convert(plain, K, weights="batch_norm")
    assert late.layers[0].get_config()[option] == plain.layers[0].get_config()[option]
    untrained = late_phase.keras.convert(plain, K, weights="batch_norm")
    trained(plain)
    trained(late, start=100)
    for weight, expected in zip(late.layers[0].weights, plain.layers[0].weights, strict=True):
        np.testing.assert_allclose(weight[0], expected, rtol=0, atol=1e-5, err_msg=weight.path)
    # Without the option it would be another training.
    other = stack(layers.BatchNormalization(), layers.Dense(4))
    other.set_weights(late_phase.keras.collapse(untrained).get_weights())
    trained(other)
    name = option.partition("_")[0]
    mine, theirs = (getattr(m.layers[0], name).numpy() for m in (plain, other))
    assert np.abs(mine - theirs).max() > 1e-3
    collapsed = late_phase.keras.collapse(late).layers[0].get_config()
    assert collapsed[option] == plain.layers[0].get_config()[option]


def test_regularizers_of_batch_norm_are_of_the_row_that_is_used():
    options = {name: OPTIONS[name] for name in ("beta_regularizer", "gamma_regularizer")}
    model = trained(stack(norm(**options), layers.Dense(4)))
    layer, member = model.layers[0], int(model.optimizer.member.numpy())
    gamma, beta = np.float64(layer.gamma), np.float64(layer.beta)
    for training, rows in (
        (True, (gamma[member], beta[member])),
        (False, (gamma.mean(0), beta.mean(0))),
    ):
        model(X, training=training)
        expected = 0.2 * np.abs(rows[0]).sum() + 0.3 * np.square(rows[1]).sum()
        assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)


def test_constraints_of_batch_norm_hold_for_every_member():
    model = stack(norm(beta_constraint="non_neg", gamma_constraint="unit_norm"), layers.Dense(4))
    trained(model, epochs=2)
    assert (model.layers[0].beta.numpy() >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(model.layers[0].gamma, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, -3])
def test_another_axis_is_that_of_transposed_inputs(axis):
    moved = np.moveaxis(IMAGES, axis, -1)
    targets = RANDOM.normal(size=(32, *IMAGES.shape[1:])).astype("float32")
    model = trained(stack(norm(axis=axis), shape=IMAGES.shape[1:]), IMAGES, targets)
    last = trained(stack(norm(), shape=moved.shape[1:]), moved, np.moveaxis(targets, axis, -1))
    for weight, expected in zip(model.weights, last.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-6)

    def outputs(model, x):
        return model.predict(x, verbose=0)

    def same(mine, theirs):
        np.testing.assert_allclose(
            outputs(mine, IMAGES), np.moveaxis(outputs(theirs, moved), -1, axis), rtol=0, atol=1e-5
        )

    same(model, last)
    same(late_phase.keras.collapse(model), last)
    same(late_phase.keras.ensemble(model), late_phase.keras.ensemble(last))
    for each, x in ((model, IMAGES), (last, moved)):
        late_phase.keras.reestimate_batch_norm(late_phase.keras.ensemble(each), x)
    for weight, expected in zip(model.weights, last.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-5)


def test_integers_are_normalised_as_floats():
    tokens = RANDOM.integers(0, 9, (32, FEATURES))
    model, other = stack(norm(), layers.Dense(4), dtype="int32"), stack(norm(), layers.Dense(4))
    other.set_weights(model.get_weights())
    trained(model, tokens)
    trained(other, np.float32(tokens))
    for weight, expected in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("kind", ["Dense", "Rank1Dense"])
def test_sparse_inputs_are_their_dense_ones(kind):
    values = np.float32(RANDOM.integers(0, 2, (32, FEATURES)))
    inputs = keras.Input((FEATURES,), sparse=True)
    keras.utils.set_random_seed(1)
    layer = getattr(late_phase.keras, kind)(4, members=K)
    model = keras.Model(inputs, layer(inputs))
    sparse = tf.sparse.from_dense(values)
    other = stack(getattr(late_phase.keras, kind)(4, members=K))
    other.set_weights(model.get_weights())
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.5), members=K, start=2, sigma=0.3
    )
    model.compile(optimizer, "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((sparse, Y)).batch(4), verbose=0)
    trained(other, values)
    for weight, expected in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-6)
    for change in (late_phase.keras.collapse, late_phase.keras.ensemble):
        np.testing.assert_allclose(change(model)(sparse), change(other)(values), rtol=0, atol=1e-5)


def without_activation(layer):
    model = stack(layer)
    model.layers[-1].activation = None
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: late_phase.keras.convert(without_activation(layers.Dense(4, "relu")), K),
        lambda: late_phase.keras.convert(
            without_activation(layers.Dense(4, "relu")), K, weights="bias"
        ),
        lambda: without_activation(late_phase.keras.Dense(4, members=K, activation="relu")),
        lambda: without_activation(late_phase.keras.Rank1Dense(4, members=K, activation="relu")),
    ],
)
def test_an_activation_that_was_taken_away(make, tmp_path):
    model = trained(make())
    expected = model.predict(X, verbose=0)
    assert (expected < 0).any()
    plain = late_phase.keras.collapse(model)
    np.testing.assert_allclose(plain.predict(X, verbose=0), expected, rtol=0, atol=1e-5)
    for each in (model, plain):
        each.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(loaded.predict(X, verbose=0), expected, rtol=0, atol=1e-5)


def test_copying_leaves_the_activation_away():
    model = without_activation(layers.Dense(4, "relu"))
    late_phase.keras.convert(model, K)
    assert model.layers[-1].activation is None


@pytest.mark.parametrize("mode, error", [("int8", 0.05), ("float8", 0.5)])
def test_a_collapsed_model_is_quantized(mode, error):
    model = trained(late_phase.keras.convert(stack(layers.Dense(8), layers.Dense(4)), K))
    plain = late_phase.keras.collapse(model)
    plain.quantize(mode)
    expected = model.predict(X, verbose=0)
    actual = plain.predict(X, verbose=0)
    assert 0 < np.abs(actual - expected).max() < error * np.abs(expected).max()


@pytest.mark.parametrize(
    "head",
    [
        lambda: late_phase.keras.Dense(4, members=K, name="head"),
        lambda: late_phase.keras.Members(layers.Dense(4, name="head"), members=K),
    ],
)
def test_members_are_not_quantized_and_that_is_said(head):
    model = trained(stack(layers.Dense(8), head()))
    before = model.layers[-1].get_weights()
    with pytest.warns(UserWarning, match="collapse the model first. Received: .*head"):
        model.quantize("int8")
    for weight, value in zip(model.layers[-1].get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.parametrize(
    "kind, arguments, x", [("Dense", (4,), X), ("Conv2D", (4, 2), IMAGES)], ids=["Dense", "Conv2D"]
)
def test_weights_of_keras_s_layer_are_taken(kind, arguments, x):
    plain = getattr(layers, kind)(*arguments, bias_initializer="normal")
    expected = plain(x)
    layer = getattr(late_phase.keras, f"Rank1{kind}")(*arguments, members=K, u_initializer="normal")
    assert np.abs(layer(x) - expected).max() > 1e-2
    layer.set_weights(plain.get_weights())
    np.testing.assert_allclose(layer(x), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="weight list of length 1"):
        layer.set_weights(plain.get_weights()[:1])


# A value for every option of Keras's layers that is not its default.
ANOTHER = {
    "activation": "relu", "recurrent_activation": "hard_sigmoid",
    "use_bias": False, "unit_forget_bias": False,
    "kernel_initializer": "ones", "recurrent_initializer": "ones", "bias_initializer": "normal",
    "beta_initializer": "ones", "gamma_initializer": "zeros",
    "moving_mean_initializer": "ones", "moving_variance_initializer": "zeros",
    "kernel_regularizer": "l2", "recurrent_regularizer": "l1", "bias_regularizer": "l2",
    "activity_regularizer": "l2",
    "beta_regularizer": "l2", "gamma_regularizer": "l1",
    "kernel_constraint": "non_neg", "recurrent_constraint": "non_neg", "bias_constraint": "non_neg",
    "beta_constraint": "non_neg", "gamma_constraint": "non_neg",
    "lora_rank": 2, "lora_alpha": 3,
    "quantization_config": keras.quantizers.Int8QuantizationConfig(),
    "strides": 2, "padding": "same", "data_format": "channels_first", "dilation_rate": 2,
    "groups": 2,
    "dropout": 0.25, "recurrent_dropout": 0.5, "seed": 7,
    "return_sequences": True, "return_state": True, "go_backwards": True,
    "stateful": True, "unroll": True, "use_cudnn": True,
    "axis": 1, "momentum": 0.5, "epsilon": 0.1, "center": False, "scale": False,
    "synchronized": True,
    "renorm": True, "renorm_clipping": {"rmax": 2.0}, "renorm_momentum": 0.5,
}  # fmt: skip
LORA_AND_QUANTIZATION = {"lora_rank", "lora_alpha", "quantization_config"}
RENORM = {"renorm", "renorm_clipping", "renorm_momentum"}
# Layer with members -> Keras's, its required arguments, and which options are refused.
LAYERS = {
    "Dense": (layers.Dense, {"units": 4}, LORA_AND_QUANTIZATION),
    "BatchNormalization": (layers.BatchNormalization, {}, RENORM),
    "Rank1Dense": (layers.Dense, {"units": 4}, LORA_AND_QUANTIZATION),
    "Rank1Conv2D": (layers.Conv2D, {"filters": 4, "kernel_size": 3}, {"data_format", "groups"}),
    "Rank1LSTM": (layers.LSTM, {"units": 4}, {"use_cudnn"}),
    "Rank1LSTMCell": (layers.LSTMCell, {"units": 4}, set()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_option_of_keras_is_taken_or_refused_by_name(name):
    """As many as this release of Keras has; a new one has no value in ANOTHER, and is an error."""
    plain, required, refused = LAYERS[name]
    layer, found = getattr(late_phase.keras, name), set()
    for option, parameter in inspect.signature(plain.__init__).parameters.items():
        if option in ("self", *required) or parameter.kind is parameter.VAR_KEYWORD:
            continue
        options = {**required, option: ANOTHER[option]}
        try:
            made = layer(members=K, **options)
        except (TypeError, ValueError) as error:
            assert option in str(error)
            found.add(option)
            continue
        expected = plain(**options).get_config()
        assert expected[option] != plain(**required).get_config().get(option), option
        assert made.get_config()[option] == expected[option]
        assert made.plain_layer().get_config()[option] == expected[option]
    assert found == refused


def test_numpy_s_integers_are_integers(tmp_path):
    three = np.int64(3)
    layer = late_phase.keras.Dense(np.int32(4), members=three)
    model = late_phase.keras.convert(stack(layers.BatchNormalization(), layers.Dense(4)), three)
    optimizer = late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=three)
    for value in (layer.units, layer.members, model.layers[0].members, optimizer.members):
        assert type(value) is int
    model.compile(optimizer, "mse")
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").optimizer.members == 3


def masked(layer):
    inputs = keras.Input((5, FEATURES))
    return keras.Model(inputs, layer(layers.Masking()(inputs)))(np.ones((2, 5, FEATURES)))


def quantized():
    model = stack(layers.Dense(8), layers.Dense(4))
    model.quantize("int8")
    return model


def renorm():
    return layers.BatchNormalization(renorm=True)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: norm(renorm=True), "has no `renorm`.*Received: renorm=True"),
        (lambda: late_phase.keras.convert(stack(renorm()), K, weights="batch_norm"),
         "cannot get members.*Received: renorm=True"),
        (lambda: late_phase.keras.convert(quantized(), K),
         "cannot get members.*Received: quantization_config="),
        (lambda: stack(norm(axis=0)),
         "`axis` must be that of the channels.*Received: axis=0, input shape .None, 6"),
        (lambda: stack(norm(axis=2)), "`axis` must be that of the channels.*Received: axis=2"),
        (lambda: stack(norm(axis=[1, 2]), shape=(3, 4, 5)),
         r"`axis` must be that of the channels.*Received: axis=\[1, 2\]"),
        (lambda: stack(norm(axis=1), shape=(None, 4)),
         r"`axis` must be of a known size. Received: axis=1"),
        (lambda: masked(norm(axis=1)),
         "`axis` must be the last for inputs with a mask. Received: axis=1"),
        (lambda: late_phase.keras.Dense(4, members=K, dtype="int8_from_float32"),
         "must be without quantization.*Received: dtype=int8_from_float32"),
        (lambda: late_phase.keras.Dense(4, members=K, lora_rank=2), "lora_rank"),
        (lambda: late_phase.keras.Rank1LSTM(4, members=K, use_cudnn=True),
         "`use_cudnn` must be.*Received: use_cudnn=True"),
        (lambda: late_phase.keras.Rank1Conv2D(4, 3, members=K, groups=2),
         "`groups` must be 1.*Received: groups=2"),
        (lambda: late_phase.keras.Rank1Conv2D(4, 3, members=K, lora_rank=2),
         "`lora_rank` must be None.*Received: lora_rank=2"),
        (lambda: late_phase.keras.Dense(True, members=K),
         "`units` must be a positive integer. Received: units=True"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
