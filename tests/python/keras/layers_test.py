"""The layers with members against Keras's own, and `collapse`."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

LAYERS = {
    "BatchNormalization": (
        late_phase.keras.BatchNormalization,
        keras.layers.BatchNormalization,
        dict(momentum=0.8, epsilon=1e-2),
        (6, 5, 4, 3),
    ),
    "BatchNormalization of rows": (
        late_phase.keras.BatchNormalization,
        keras.layers.BatchNormalization,
        {},
        (32, 3),
    ),
    "BatchNormalization alone": (
        late_phase.keras.BatchNormalization,
        keras.layers.BatchNormalization,
        dict(center=False, scale=False),
        (4, 7, 3),
    ),
    "Dense": (late_phase.keras.Dense, keras.layers.Dense, dict(units=4, activation="tanh"), (6, 3)),
    "Dense on sequences": (
        late_phase.keras.Dense,
        keras.layers.Dense,
        dict(units=4, use_bias=False),
        (6, 5, 3),
    ),
}


def pair(name, members, dtype="float32"):
    """A layer with members, Keras's layer, equal weights, and inputs."""
    with_members, plain, options, shape = LAYERS[name]
    keras.utils.set_random_seed(0)
    layer, other = (
        with_members(members=members, dtype=dtype, **options),
        plain(dtype=dtype, **options),
    )
    random = np.random.default_rng(1)
    x = random.normal(1, 2, shape).astype("float32")
    layer.build(shape)
    other.build(shape)
    for variable in other.weights:
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    layer.set_weights([np.repeat(w[np.newaxis], members, axis=0) for w in other.get_weights()])
    return layer, other, x


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_equals_keras_with_gradients(name, members):
    layer, other, x = pair(name, members)
    x = tf.constant(x)
    for training in (True, False, True):
        outputs, gradients = [], []
        for some in (layer, other):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = some(x, training=training)
                loss = tf.reduce_sum(tf.sin(y))
            dx, *dw = tape.gradient(loss, [x, *some.trainable_variables])
            outputs.append(y.numpy())
            gradients.append([dx.numpy(), *[tf.convert_to_tensor(g).numpy() for g in dw]])
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=1e-5)
        np.testing.assert_allclose(gradients[0][0], gradients[1][0], rtol=0, atol=2e-5)
        for stack, expected in zip(gradients[0][1:], gradients[1][1:]):
            # Training: of the member's row. Inference: spread over the rows whose mean is used.
            np.testing.assert_allclose(stack.sum(axis=0), expected, rtol=0, atol=1e-4)
    for stack, expected in zip(layer.get_weights(), other.get_weights()):
        for row in stack:
            np.testing.assert_allclose(row, expected, rtol=0, atol=1e-5)


def test_a_frozen_layer_normalises_by_what_it_has():
    layer, other, x = pair("BatchNormalization", 3)
    layer.trainable = other.trainable = False
    before = layer.get_weights()
    np.testing.assert_allclose(layer(x, training=True), other(x, training=True), rtol=0, atol=1e-5)
    for weight, expected in zip(layer.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_config_goes_there_and_back(name):
    layer, _, _ = pair(name, 3)
    other = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert other.get_config() == layer.get_config() and other.members == 3


@pytest.mark.parametrize("name", LAYERS)
def test_mixed_bfloat16(name):
    layer, other, x = pair(name, 2, dtype=keras.dtype_policies.DTypePolicy("mixed_bfloat16"))
    for training in (True, False):
        y, expected = layer(x, training=training), other(x, training=training)
        assert y.dtype == tf.bfloat16
        np.testing.assert_allclose(
            tf.cast(y, tf.float32), tf.cast(expected, tf.float32), rtol=0, atol=0.06
        )


def image_model(members=3):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(6, 3, padding="same", use_bias=False)(inputs)
    x = late_phase.keras.BatchNormalization(members=members)(x)
    x = keras.layers.ReLU()(x)
    block = keras.Sequential(
        [
            keras.layers.Conv2D(6, 3, padding="same"),
            late_phase.keras.BatchNormalization(members=members),
        ]
    )
    x = keras.layers.Add()([x, block(x)])
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, late_phase.keras.Dense(5, members=members)(x))


def images(count=96):
    random = np.random.default_rng(4)
    return random.normal(size=(count, 8, 8, 3)).astype("float32"), random.integers(0, 5, count)


@pytest.fixture(scope="module")
def trained():
    model = image_model()
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), members=3, start=3, sigma=0.3
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(*images(), batch_size=8, epochs=2, verbose=0, validation_data=images(16))
    assert np.isfinite(history.history["val_loss"]).all()
    return model


def test_members_have_statistics_of_their_own(trained):
    norm = next(
        layer
        for layer in trained._flatten_layers()
        if isinstance(layer, late_phase.keras.BatchNormalization)
    )
    for weight in norm.weights:
        assert len({row.tobytes() for row in weight.numpy()}) == 3, weight.path


def test_collapsed_model_predicts_the_same(trained):
    plain = late_phase.keras.collapse(trained)
    assert all(type(layer).__module__.startswith("keras.") for layer in plain._flatten_layers())
    x, _ = images()
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), trained.predict(x, verbose=0), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("how", ["keras", "saved_model"])
def test_collapsed_model_loads_without_late_phase(trained, tmp_path, how):
    plain = late_phase.keras.collapse(trained)
    path = tmp_path / ("plain.keras" if how == "keras" else "plain")
    plain.save(path) if how == "keras" else plain.export(path, verbose=False)
    x, _ = images(4)
    np.save(tmp_path / "x.npy", x)
    load = {
        "keras": "import keras; m = keras.models.load_model(path); y = m(x)",
        "saved_model": "import tensorflow as tf; m = tf.saved_model.load(path); y = m.serve(x)",
    }[how]
    program = (
        f"import sys, numpy as np; path = {str(path)!r}; x = np.load({str(tmp_path / 'x.npy')!r}); "
        f"{load}; np.save({str(tmp_path / 'y.npy')!r}, np.asarray(y)); "
        "assert not any('late_phase' in name for name in sys.modules)"
    )
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "LATE_PHASE_OPS")
    }
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), trained.predict(x, verbose=0), rtol=0, atol=1e-5
    )


def test_weights_are_saved_and_loaded(trained, tmp_path):
    trained.save_weights(tmp_path / "trained.weights.h5")
    other = image_model()
    other.load_weights(tmp_path / "trained.weights.h5")
    x, _ = images(16)
    np.testing.assert_array_equal(other.predict(x, verbose=0), trained.predict(x, verbose=0))


@pytest.mark.parametrize("application", ["ResNet50", "DenseNet121"])
def test_converted_application_predicts_the_same_at_once(application):
    model = getattr(keras.applications, application)(
        weights=None, input_shape=(64, 64, 3), classes=10
    )
    random = np.random.default_rng(5)
    for weight in model.weights:  # statistics that are not those of a fresh model
        if "moving" in weight.name or "gamma" in weight.name:
            weight.assign(random.uniform(0.8, 1.2, weight.shape))
    converted = late_phase.keras.convert(model, members=3)
    norms = [
        layer
        for layer in converted.layers
        if isinstance(layer, late_phase.keras.BatchNormalization)
    ]
    assert (
        len(norms)
        == sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
        > 50
    )
    assert isinstance(converted.layers[-1], late_phase.keras.Dense)
    x = random.normal(size=(2, 64, 64, 3)).astype("float32")
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(converted.predict(x, verbose=0), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        late_phase.keras.collapse(converted).predict(x, verbose=0), expected, rtol=0, atol=1e-6
    )


def test_the_weights_of_a_resnet50_are_traced_once():
    model = late_phase.keras.convert(
        keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10), members=3
    )
    variables = model.trainable_variables
    assert len(variables) == 214
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), members=3, start=2, sigma=0.1
    )
    optimizer.build(variables)
    traces = []

    def gradient(variable):
        if not hasattr(variable, "late_phase_members"):
            return tf.ones(variable.shape)
        return tf.IndexedSlices(
            tf.ones([1, *variable.shape[1:]]), optimizer.member.value[tf.newaxis], variable.shape
        )

    @tf.function
    def step():
        traces.append(1)
        optimizer.apply([gradient(v) for v in variables], variables)

    for _ in range(2 + 3 + 1):
        step()
    assert len(traces) == 1 and int(optimizer.member.numpy()) == 1


class Subclassed(keras.Model):
    def call(self, x):
        return x


def stock(last):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), last])


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: late_phase.keras.Dense(3, members=0),
            "`members` must be an integer of at least 1. Received: members=0",
        ),
        (
            lambda: late_phase.keras.BatchNormalization(members=2, momentum=1.5),
            r"`momentum` must be in \[0, 1\]. Received: momentum=1.5",
        ),
        (
            lambda: late_phase.keras.BatchNormalization(members=2, epsilon=0),
            "`epsilon` must be greater than 0. Received: epsilon=0",
        ),
        (
            lambda: late_phase.keras.collapse(
                keras.Sequential([late_phase.keras.Dense(3, members=2)])
            ),
            "`model` must be a Keras model that is built.*Received: Sequential without weights",
        ),
        (
            lambda: late_phase.keras.convert(stock(keras.layers.PReLU(name="last")), members=2),
            "The head must be a Dense.*Received: last, PReLU",
        ),
        (
            lambda: late_phase.keras.convert(
                stock(keras.layers.BatchNormalization(renorm=True, name="norm")),
                members=2,
                weights="batch_norm",
            ),
            "norm cannot get members: BatchNormalization with members has no such option. "
            "Received: renorm=True",
        ),
        (
            lambda: late_phase.keras.convert(
                stock(keras.layers.ReLU()), members=2, weights="batch_norm"
            ),
            "must choose weights that the model has. Received: weights='batch_norm'",
        ),
        (
            lambda: late_phase.keras.collapse(Subclassed()),
            "`model` must be a Keras model that is built.*Received: Subclassed without weights",
        ),
    ],
)
def test_wrong_use_explains_itself(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = image_model()
    finally:
        keras.config.set_dtype_policy(before)
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.Adam(1e-3), members=3, start=2, sigma=0.1
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer,
        loss,
    )
    model.fit(*images(48), batch_size=8, verbose=0)
    assert all(np.isfinite(weight.numpy()).all() for weight in model.weights)
    assert int(optimizer.iterations.numpy()) == 6 and int(optimizer.member.numpy()) == 1
    kernel = model.layers[-1].kernel.numpy()
    assert len({row.tobytes() for row in kernel}) == 3


def test_layers_claim_to_compile_under_xla():
    from keras.src.trainers.trainer import model_supports_jit

    assert model_supports_jit(image_model())  # they do: xla_training_test.py
