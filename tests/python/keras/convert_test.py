"""`convert`, `collapse` and `summary`: what is copied, what gets members, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from tests.support.keras_copies import (
    assert_copies_equal,
    floats,
    scattered,
    transformer,
    with_members,
)

pytest_plugins = ["tests.support.keras_copies"]  # its fixtures

layers = keras.layers


# --- state that is no weight, or is computed from weights


def test_adapted_normalization_is_copied():
    norm, x = layers.Normalization(name="norm"), 100 + 50 * floats(30, 4)
    norm.adapt(x)
    model = keras.Sequential([keras.Input((4,)), norm, layers.Dense(3)])
    assert np.abs(model(x)).max() < 10  # without what has been adapted, hundreds
    converted = assert_copies_equal(model, x)
    np.testing.assert_allclose(converted.layers[0].mean, x.mean(axis=0, keepdims=True), rtol=1e-5)


def test_the_normalization_inside_an_application_is_copied():
    model = keras.applications.EfficientNetB0(weights=None, input_shape=(32, 32, 3), classes=4)
    x = 100 + 50 * floats(4, 32, 32, 3)
    next(layer for layer in model.layers if isinstance(layer, layers.Normalization)).adapt(x)
    assert_copies_equal(model, x)


def strings_to_tokens():
    lookup = layers.StringLookup()
    lookup.adapt(["a", "b", "c"])
    inputs = keras.Input((2,), dtype="string")
    x = layers.Flatten()(layers.Embedding(5, 3)(lookup(inputs)))
    return keras.Model(inputs, layers.Dense(2)(x)), tf.constant([["a", "c"], ["b", "?"]])


def text_to_tf_idf():
    text = layers.TextVectorization(output_mode="tf_idf")
    text.adapt(["a b", "b c", "c d"])
    inputs = keras.Input((), dtype="string")
    return keras.Model(inputs, layers.Dense(2)(text(inputs))), tf.constant(["a b", "d ?", "c c"])


@pytest.mark.parametrize("make", [strings_to_tokens, text_to_tf_idf])
def test_adapted_vocabularies_are_copied(make):
    model, x = make()
    assert_copies_equal(model, x, probe=x)
    with pytest.warns(
        UserWarning, match="have not been compared.*Pass `probe`.*Received: .*takes strings"
    ):
        late_phase.keras.convert(model, members=3)


def test_adapted_bins_are_copied():
    bins = layers.Discretization(num_bins=4)
    bins.adapt(floats(100, 2))
    model = keras.Sequential(
        [keras.Input((2,)), bins, layers.Embedding(5, 3), layers.Flatten(), layers.Dense(2)]
    )
    assert_copies_equal(model, floats(20, 2))


def test_which_layers_are_frozen_is_copied():
    class Frozen(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = layers.Dense(4)

        def call(self, inputs):
            return self.inner(inputs)

    model = keras.Sequential(
        [keras.Input((4,)), Frozen(), layers.Dense(3, trainable=False), layers.Dense(2)]
    )
    model.layers[0].inner.trainable = False
    converted = late_phase.keras.convert(model, members=3)
    assert [v.name for v in converted.trainable_variables] == ["kernel", "bias"] and len(
        converted.non_trainable_variables
    ) == 4


# --- the comparison of outputs


class Forgets(layers.Layer):
    """Its config leaves out the factor."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor

    def get_config(self):
        return {"name": self.name}


def forgetful(**head):
    return keras.Sequential([
        keras.Input((4,)), layers.Dense(4), Forgets(3.0, name="forgets"),
        layers.Dense(3), layers.Dense(2, **head),
    ], name="net")  # fmt: skip


@pytest.mark.parametrize("call", [
    lambda model: late_phase.keras.convert(model, members=2),
    lambda model: late_phase.keras.convert(model, members=2, probe=floats(5, 4)),
    lambda model: late_phase.keras.collapse(model),
], ids=["convert", "convert with a probe", "collapse"])  # fmt: skip
def test_other_outputs_are_an_error_that_names_the_layer(call):
    message = (
        "must give the outputs of its model.*differ by .* of the largest, because of net/forgets"
    )
    with pytest.raises(ValueError, match=message):
        call(forgetful())


def test_a_saturated_softmax_hides_no_difference():
    model = forgetful(activation="softmax")
    model.layers[-1].kernel.assign(np.array([[1e6, -1e6]] * 3))
    with pytest.raises(ValueError, match="because of net/forgets"):
        late_phase.keras.convert(model, members=2)


def several_inputs():
    specs = {
        "tokens": ((None,), "int32"),
        "images": ((None, None, 3), "float32"),
        "flag": ((1,), "bool"),
    }
    inputs = {
        name: keras.Input(shape, dtype=dtype, name=name) for name, (shape, dtype) in specs.items()
    }
    tokens = layers.GlobalAveragePooling1D()(layers.Embedding(4, 3)(inputs["tokens"]))
    images = layers.Conv2D(3, 9)(
        layers.BatchNormalization()(inputs["images"])
    )  # which 8 x 8 is too small for
    flag = layers.Dense(3)(keras.ops.cast(inputs["flag"], "float32"))
    return keras.Model(
        inputs, layers.Dense(2)(layers.Add()([tokens, layers.GlobalMaxPooling2D()(images), flag]))
    )


PROBED = {
    "several inputs, open sizes": several_inputs,
    "floats that are tokens": lambda: keras.Sequential(
        [keras.Input((6,)), layers.Embedding(3, 2), layers.Flatten(), layers.Dense(2)]
    ),
    "a batch of one size": lambda: keras.Sequential(
        [keras.Input(batch_shape=(5, 4)), layers.Dense(2)]
    ),
    "float64": lambda: keras.Sequential(
        [
            keras.Input((4,), dtype="float64"),
            layers.BatchNormalization(dtype="float64"),
            layers.Dense(2, dtype="float64"),
        ]
    ),
    "mixed_bfloat16": lambda: keras.Sequential(
        [
            keras.Input((4,)),
            *(layers.Dense(30, dtype="mixed_bfloat16") for _ in range(9)),
            layers.Dense(2),
        ]
    ),
    "without an Input": lambda: called(
        keras.Sequential([layers.BatchNormalization(), layers.Dense(2)])
    ),
}


def called(model):
    model(floats(5, 4))
    return model


@pytest.mark.parametrize("kind", PROBED)
def test_inputs_are_made_from_the_signature(kind):
    """No warning, so that the outputs have been compared."""
    model = PROBED[kind]()
    late_phase.keras.collapse(scattered(late_phase.keras.convert(model, members=3)))


def test_outputs_that_are_random_in_inference_are_not_compared():
    class Noise(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.seed = keras.random.SeedGenerator(7)

        def call(self, inputs):
            return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seed)

    model = keras.Sequential([keras.Input((4,)), Noise(), layers.Dense(2)])
    model(floats(2, 4))
    before = model.layers[0].seed.state.numpy()
    with pytest.warns(UserWarning, match="have not been compared.*random in inference"):
        late_phase.keras.convert(model, members=2)
    np.testing.assert_array_equal(model.layers[0].seed.state.numpy(), before)


def test_inputs_whose_outputs_are_random_are_passed_over():
    """As of a convolution of images that are too small for it, which TensorFlow does not refuse."""

    class Unwritten(layers.Layer):
        def call(self, inputs):
            return inputs + (np.random.normal() if inputs.shape[1] == 128 else 0)

    parts = [Unwritten(), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    model = keras.Sequential([keras.Input((None, 3)), *parts])
    late_phase.keras.convert(model, members=2)  # no warning: they have been compared


def test_the_comparison_leaves_states_alone():
    model = keras.Sequential(
        [keras.Input(batch_shape=(4, 5, 3)), layers.LSTM(4, stateful=True), layers.Dense(2)]
    )
    model(floats(4, 5, 3))
    states = [state.numpy() for state in model.layers[0].states]
    converted = late_phase.keras.convert(model, members=2)
    for state, before in zip(model.layers[0].states, states):
        np.testing.assert_array_equal(state.numpy(), before)
    assert not any(
        state.numpy().any() for state in converted.layers[0].states
    )  # as in a model that has been loaded


# --- layers inside of layers


class Block(layers.Layer):
    """Makes its layers itself."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.norm = (
            layers.Dense(4, name="dense"),
            layers.BatchNormalization(name="norm"),
        )

    def call(self, inputs, training=False):
        return self.norm(self.dense(inputs), training=training)


class OwnNorm(layers.BatchNormalization):
    pass


def test_layers_made_inside_others_get_members_too():
    model = keras.Sequential([
        keras.Input((4,)), Block(name="first"), layers.BatchNormalization(name="free"),
        OwnNorm(name="own"), layers.Dense(2, name="head"),
    ], name="net")  # fmt: skip
    with keras.saving.custom_object_scope({"Block": Block, "OwnNorm": OwnNorm}):
        converted = assert_copies_equal(scattered(model), floats(5, 4))
    assert with_members(converted) == ["first", "free", "own", "head"]
    late = [v.path for v in converted.weights if hasattr(v, "late_phase_members")]
    assert late == [
        *(f"net/first/norm/{name}" for name in ("gamma", "beta")),
        *(f"net/free/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")),
        *(f"net/own/{name}" for name in ("gamma", "beta")),
        *(f"net/head/{name}" for name in ("kernel", "bias")),
    ]
    head = late_phase.keras.convert(model, members=3, weights="head")
    assert with_members(head) == ["head"]


def test_a_head_made_inside_a_layer_gets_members():
    class Head(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.out = layers.Dense(2, name="out")

        def call(self, inputs):
            return self.out(inputs)

    model = keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(), Head(name="head")], name="net"
    )
    converted = late_phase.keras.convert(scattered(model), members=3, weights="head")
    late = [v.path for v in converted.weights if hasattr(v, "late_phase_members")]
    assert late == ["net/head/out/kernel", "net/head/out/bias"]


# --- models and layers of a user's own


class OwnStep(keras.Model):
    """A Functional model with a training step of its own."""

    def train_step(self, data):
        return {**super().train_step(data), "own": 1.0}


class OwnConstructor(OwnStep):
    def __init__(self, size, **kwargs):
        inputs = keras.Input((size,))
        super().__init__(inputs, layers.Dense(2)(inputs), **kwargs)


def test_a_functional_model_with_its_own_step_keeps_it():
    inputs = keras.Input((4,))
    model = OwnStep(inputs, layers.Dense(2)(layers.BatchNormalization()(inputs)))
    converted = late_phase.keras.convert(scattered(model), members=3)
    assert type(converted) is OwnStep
    converted.compile(
        late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=3, start=1), "mse"
    )
    logs = converted.fit(floats(6, 4), floats(6, 2), batch_size=2, verbose=0).history
    assert logs["own"] == [1.0]
    assert type(late_phase.keras.collapse(converted)) is OwnStep
    with pytest.raises(ValueError, match="Received: OwnConstructor, whose train_step the copy"):
        late_phase.keras.convert(OwnConstructor(4), members=3, weights="head")


class Around(layers.Wrapper):
    """A wrapper of a user's own, whose config holds the layer."""

    def call(self, inputs, training=False):
        return self.layer(inputs, training=training) + 1.0


def inner_model():
    inputs = keras.Input((3,))
    x = layers.BatchNormalization(name="norm")(layers.Dense(4)(inputs))
    return keras.Model(inputs, layers.Dense(2, name="head")(x))


INSIDE = {
    "TimeDistributed head": (
        lambda: layers.TimeDistributed(layers.Dense(2, name="head")),
        ["head"],
    ),
    "TimeDistributed Functional": (lambda: layers.TimeDistributed(inner_model()), ["head", "norm"]),
    "TimeDistributed Sequential": (
        lambda: layers.TimeDistributed(
            keras.Sequential(
                [
                    keras.Input((3,)),
                    layers.BatchNormalization(name="norm"),
                    layers.Dense(2, name="head"),
                ]
            )
        ),
        ["head", "norm"],
    ),
    "a wrapper in a wrapper": (
        lambda: Around(layers.TimeDistributed(layers.Dense(2, name="head"))),
        ["head"],
    ),
    "the last of a nested model": (
        lambda: keras.Sequential([layers.Dense(5, name="hidden"), layers.Dense(2, name="head")]),
        ["head"],
    ),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_layers_in_the_config_of_others_get_members_and_train(kind, tmp_path):
    make, expected = INSIDE[kind]
    model = scattered(keras.Sequential([keras.Input((5, 3)), make()]))
    x, y = floats(12, 5, 3), floats(12, 5, 2)
    with keras.saving.custom_object_scope({"Around": Around}):
        converted = assert_copies_equal(model, x)
        assert sorted(with_members(converted)) == expected
        converted.compile(
            late_phase.keras.LatePhaseOptimizer(
                keras.optimizers.SGD(0.05), members=3, start=2, sigma=0.1
            ),
            "mse",
        )
        converted.fit(x, y, batch_size=3, epochs=2, verbose=0)
        for v in converted.trainable_variables:
            assert (
                not hasattr(v, "late_phase_members")
                or len({row.tobytes() for row in v.numpy()}) == 3
            ), v.path
        converted.save(tmp_path / "converted.keras")
        loaded = keras.models.load_model(tmp_path / "converted.keras")
        np.testing.assert_array_equal(loaded(x), converted(x))
        np.testing.assert_allclose(
            late_phase.keras.collapse(converted)(x), converted(x), rtol=0, atol=1e-4
        )


def test_rank1_layers_in_bidirectional_collapse():
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            layers.Bidirectional(late_phase.keras.Rank1LSTM(4, members=3)),
            layers.Dense(2),
        ]
    )
    plain, x = late_phase.keras.collapse(scattered(model)), floats(6, 5, 3)
    assert not with_members(plain)
    np.testing.assert_allclose(plain(x), model(x), rtol=0, atol=1e-5)


def test_members_made_inside_a_layer_cannot_be_collapsed():
    class Late(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = late_phase.keras.BatchNormalization(members=2, name="norm")

        def call(self, inputs, training=False):
            return self.norm(inputs, training=training)

    model = keras.Sequential([keras.Input((4,)), Late(name="late")], name="net")
    with pytest.raises(
        ValueError, match="or in the config of its layers, to be collapsed. Received: net/late/norm"
    ):
        late_phase.keras.collapse(model)


# --- converting twice


def plain_norm_and_head():
    return keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(name="norm"), layers.Dense(2, name="head")],
        name="net",
    )


def test_a_converted_model_says_so():
    converted = late_phase.keras.convert(plain_norm_and_head(), members=3)
    for options, layer in (
        ({}, "norm"),
        ({"weights": "head"}, "head"),
        ({"weights": "batch_norm"}, "norm"),
        ({"weights": "gamma"}, "net/norm/gamma"),
    ):
        message = (
            f"has been converted already, or built with members. Received: {layer} with members=3"
        )
        with pytest.raises(ValueError, match=message):
            late_phase.keras.convert(converted, members=3, **options)


def test_the_rest_of_a_converted_model_can_be_converted():
    norm = late_phase.keras.convert(
        scattered(plain_norm_and_head()), members=3, weights="batch_norm"
    )
    both = late_phase.keras.convert(scattered(norm), members=3, weights="head")
    assert with_members(both) == ["norm", "head"]
    np.testing.assert_allclose(both(floats(5, 4)), norm(floats(5, 4)), rtol=1e-5)
    wrapped = late_phase.keras.convert(transformer(), members=3, weights="attention.*query/bias")
    twice = late_phase.keras.convert(scattered(wrapped), members=3, weights="attention.*key/bias")
    assert [v.path for v in twice.weights if hasattr(v, "late_phase_members")] == [
        "attention/query/bias", "attention/key/bias"
    ]  # fmt: skip
    message = "must be the number of members that layers already have. Received: members=4, 3 in"
    with pytest.raises(ValueError, match=message):
        late_phase.keras.convert(norm, members=4, weights="head")


# --- summary


def test_summary_lists_every_weight():
    model = late_phase.keras.convert(plain_norm_and_head(), members=3)
    model.layers[-1].bias.trainable = False
    lines = []
    late_phase.keras.summary(model, print_fn=lines.append)
    assert [tuple(part.strip() for part in line.split("  ") if part) for line in lines] == [
        ("weight", "shape", "members"),
        ("net/norm/gamma", "(3, 4)", "3"),
        ("net/norm/beta", "(3, 4)", "3"),
        ("net/norm/moving_mean", "(3, 4)", "3, not trained"),
        ("net/norm/moving_variance", "(3, 4)", "3, not trained"),
        ("net/head/kernel", "(3, 4, 2)", "3"),
        ("net/head/bias", "(3, 2)", "3, not trained"),
        ("trained: 0 numbers of base weights, 16 of each member",),
    ]


def test_summary_of_a_model_of_any_class():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.block = Block(name="block")

        def call(self, inputs, training=False):
            return self.block(inputs, training=training)

    lines = []
    with pytest.raises(ValueError, match="`model` must be built"):
        late_phase.keras.summary(Own())
    late_phase.keras.summary(called(Own()), print_fn=lines.append)
    assert len(lines) == 1 + 6 + 1 and not any("3" in line for line in lines[1:-1])
    assert lines[-1] == "trained: 28 numbers of base weights, 0 of each member"


def test_steps_need_a_dataset():
    with pytest.raises(
        ValueError, match="`steps` must be None without `dataset`. Received: steps=2"
    ):
        late_phase.keras.collapse(
            late_phase.keras.convert(plain_norm_and_head(), members=3), steps=2
        )
