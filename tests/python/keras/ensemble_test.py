"""`ensemble` against models that have one member each."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras.members import MemberLayer

MEMBERS = 3


def scattered(model):
    """Gives all weights, and so all members, values of their own."""
    random = np.random.default_rng(3)
    for weight in model.weights:
        if weight.dtype.startswith(("float", "bfloat")):
            low = 0.5 if "variance" in weight.name else -1.0
            weight.assign(random.uniform(low, 1.5, weight.shape))
    return model


def mean_of_single_members(model, x, activation=lambda y: y):
    """By setting all rows of a model to those of each member in turn, without an ensemble."""
    late = [
        v
        for layer in model._flatten_layers()
        if isinstance(layer, MemberLayer)
        for v in layer.weights
        if hasattr(v, "late_phase_members")
    ]
    own = [v.numpy() for v in late]
    outputs = []
    for k in range(MEMBERS):
        for variable, rows in zip(late, own):
            variable.assign(np.broadcast_to(rows[k], rows.shape))
        outputs.append(
            keras.tree.map_structure(
                lambda y: activation(np.float64(y)),
                late_phase.keras.collapse(model)(x, training=False),
            )
        )
    for variable, rows in zip(late, own):
        variable.assign(rows)
    return keras.tree.map_structure(lambda *ys: np.mean(ys, axis=0), *outputs)


def late_norm():
    return late_phase.keras.BatchNormalization(members=MEMBERS)


def images(channels=2):
    return np.random.default_rng(1).normal(size=(5, 6, 6, channels)).astype("float32")


def sequential():
    model = keras.Sequential([
        keras.Input((6, 6, 2)), keras.layers.Conv2D(4, 3), late_norm(),
        keras.layers.ReLU(), keras.layers.GlobalAveragePooling2D(),
        late_phase.keras.Dense(3, members=MEMBERS),
    ])  # fmt: skip
    return model, images()


def residual():
    """Merges what is per member with what is not, and with itself; by layers and operations."""
    inputs = keras.Input((6, 6, 2))
    plain = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    x = keras.layers.ReLU()(late_norm()(plain))
    x = keras.layers.Add()([plain, x])
    x = x * 2.0 + plain
    x = keras.layers.BatchNormalization()(x)
    return keras.Model(
        inputs, late_phase.keras.Dense(3, members=MEMBERS, activation="tanh", use_bias=False)(x)
    ), images()


def nested():
    """A Functional in a Sequential in a Functional, beside a plain model that is called twice."""
    inner_inputs = keras.Input((6, 6, 2))
    inner = keras.Model(
        inner_inputs,
        keras.layers.ReLU()(late_norm()(keras.layers.Conv2D(2, 3, padding="same")(inner_inputs))),
    )
    block = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.Conv2D(2, 1), inner])
    plain = keras.Sequential(
        [keras.Input((6, 6, 2)), keras.layers.Conv2D(2, 1), keras.layers.BatchNormalization()]
    )
    inputs = keras.Input((6, 6, 2))
    x = keras.layers.Concatenate()([plain(block(plain(inputs))), inputs])
    return keras.Model(inputs, keras.layers.Flatten()(x)), images()


def tied():
    """The same block twice: on what is not yet per member, and on what is."""
    block = keras.Sequential(
        [keras.Input((6, 6, 2)), keras.layers.Conv2D(2, 3, padding="same"), late_norm()]
    )
    inputs = keras.Input((6, 6, 2))
    return keras.Model(inputs, keras.layers.Flatten()(block(block(inputs)))), images()


def several():
    """Inputs and outputs in structures, one output without members."""
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((7, 4), name="b")}
    a = keras.layers.Dense(4)(inputs["a"])
    b = late_phase.keras.Dense(4, members=MEMBERS)(inputs["b"])
    both = keras.layers.Add()([keras.layers.RepeatVector(7)(a), b])
    outputs = {"plain": a, "late": keras.layers.LSTM(3)(both)}
    random = np.random.default_rng(2)
    x = {
        "a": random.normal(size=(5, 4)).astype("float32"),
        "b": random.normal(size=(5, 7, 4)).astype("float32"),
    }
    return keras.Model(inputs, outputs), x


def masked():
    """The mask of an embedding goes past a layer with members, and a plain one on replicas."""
    inputs = keras.Input((6,), dtype="int32")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    x = keras.layers.Add()([late_norm()(embedded), embedded])
    tokens = np.random.default_rng(4).integers(1, 9, (5, 6))
    tokens[0, 3:] = tokens[2, 1:] = 0
    return keras.Model(inputs, keras.layers.LSTM(3)(x)), tokens


def rank1():
    """Factors per member around shared kernels; the states of one LSTM start the next."""
    inputs = keras.Input((6, 6, 2))
    x = late_phase.keras.Rank1Conv2D(4, 3, members=MEMBERS, strides=2, activation="tanh")(inputs)
    x = keras.layers.Reshape((4, 4))(x)
    x, *states = late_phase.keras.Rank1LSTM(
        3, members=MEMBERS, return_sequences=True, return_state=True
    )(x)
    x = late_phase.keras.Rank1LSTM(3, members=MEMBERS, return_sequences=True, go_backwards=True)(
        x, initial_state=states
    )
    return keras.Model(inputs, late_phase.keras.Rank1Dense(3, members=MEMBERS)(x)), images()


MODELS = [sequential, residual, nested, several, masked, rank1]


@pytest.mark.parametrize("make", [*MODELS, tied])
def test_is_the_mean_of_single_members(make):
    model, x = make()
    scattered(model)
    expected = mean_of_single_members(model, x)
    together = late_phase.keras.ensemble(model)
    for actual in (together(x), together.predict(x, verbose=0, batch_size=2)):
        keras.tree.assert_same_structure(actual, expected)
        keras.tree.map_structure(
            lambda a, e: np.testing.assert_allclose(a, e, rtol=0, atol=1e-4), actual, expected
        )
    # The mean of predictions, not the prediction of the mean.
    gaps = keras.tree.map_structure(lambda a, e: np.abs(a - e).max(), model(x), expected)
    assert max(keras.tree.flatten(gaps)) > 1e-2


def test_activation_is_applied_to_each_member():
    model, x = sequential()
    scattered(model)

    def softmax(y):
        e = np.exp(y - y.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    expected = mean_of_single_members(model, x, softmax)
    actual = late_phase.keras.ensemble(model, activation="softmax")(x)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    of_mean_logits = softmax(mean_of_single_members(model, x))
    assert np.abs(of_mean_logits - expected).max() > 1e-3


@pytest.mark.parametrize("make", MODELS)
def test_is_saved_and_loaded(make, tmp_path):
    model, x = make()
    together = late_phase.keras.ensemble(scattered(model))
    together.save(tmp_path / "ensemble.keras")
    loaded = keras.models.load_model(tmp_path / "ensemble.keras")
    actual, expected = loaded(x), together(x)
    keras.tree.map_structure(np.testing.assert_array_equal, actual, expected)


class SeenBatch(keras.layers.Layer):
    """Notes the size of the batches that it sees."""

    def call(self, inputs):
        self.seen = inputs.shape[0]
        return inputs


def test_what_comes_before_the_members_is_computed_once():
    before, after = SeenBatch(), SeenBatch()
    model = keras.Sequential(
        [keras.Input((4,)), before, late_phase.keras.Dense(3, members=MEMBERS), after]
    )
    late_phase.keras.ensemble(model)(np.ones((5, 4), "float32"))
    assert (before.seen, after.seen) == (5, MEMBERS * 5)


def test_follows_the_model():
    model, x = sequential()
    together = late_phase.keras.ensemble(model)
    np.testing.assert_allclose(together(x), model(x), rtol=0, atol=1e-5)  # all members equal
    scattered(model)
    np.testing.assert_allclose(together(x), mean_of_single_members(model, x), rtol=0, atol=1e-4)
    assert {id(v) for v in together.variables} == {id(v) for v in model.variables}


def test_mixed_precision_averages_in_float():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, x = sequential()
    finally:
        keras.config.set_dtype_policy(before)
    scattered(model)
    actual = late_phase.keras.ensemble(model)(x)
    assert model(x).dtype == tf.bfloat16 and actual.dtype == tf.float32
    np.testing.assert_allclose(actual, mean_of_single_members(model, x), rtol=0, atol=0.1)


def test_an_empty_batch_stays_empty():
    # No convolution: TensorFlow's own, by oneDNN, gives an empty batch the channels of its inputs.
    model = keras.Sequential(
        [
            keras.Input((4,)),
            late_norm(),
            keras.layers.ReLU(),
            late_phase.keras.Dense(3, members=MEMBERS),
        ]
    )
    assert late_phase.keras.ensemble(model)(np.zeros((0, 4), "float32")).shape == (0, 3)


def stack(*layers):
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize(
    "model, message",
    [
        (
            lambda: stack(keras.layers.Dense(2)),
            r"`model` must have layers with members, all with the same number.*members=\[\]",
        ),
        (
            lambda: stack(
                late_phase.keras.Dense(2, members=2), late_phase.keras.Dense(2, members=3)
            ),
            r"Received: members=\[2, 3\]",
        ),
        (
            lambda: keras.Sequential([late_phase.keras.Dense(3, members=2)]),
            "`model` must be a Keras model that is built.*Received: Sequential without weights",
        ),
        (lambda: late_phase.keras.Dense(3, members=2), "must be a Keras model.*Received: Dense"),
    ],
)
def test_wrong_use_explains_itself(model, message):
    with pytest.raises(ValueError, match=message):
        late_phase.keras.ensemble(model())
