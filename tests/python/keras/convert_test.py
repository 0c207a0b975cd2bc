"""`convert`, `collapse` and `summary`: what is copied, what gets members, and what is refused."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras.members import MemberLayer

layers = keras.layers


@pytest.fixture(autouse=True)
def the_same_weights_in_every_run():
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def no_warnings():
    """A warning that a test does not expect fails it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def scattered(model):
    """Gives all weights, and so all members, values of their own."""
    random = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(random.uniform(0.3, 1.5, weight.shape))
    return model


def floats(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def with_members(model):
    return [layer.name for layer in model._flatten_layers() if isinstance(layer, MemberLayer)]


def assert_copies_equal(model, x, probe=None):
    """The converted model's outputs, and the collapsed one's, are those of `model`."""
    converted = late_phase.keras.convert(model, members=3, probe=probe)
    collapsed = late_phase.keras.collapse(converted, probe=probe)
    for copy in (converted, collapsed):
        np.testing.assert_allclose(copy(x), model(x), rtol=1e-5, atol=1e-5)
    assert with_members(converted) and not with_members(collapsed)
    return converted


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


# --- which weights


def transformer(heads=1):
    tokens = keras.Input((5,), dtype="int32", name="tokens")
    x = layers.Embedding(7, 6, name="embedding")(tokens)
    attended = layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = layers.LayerNormalization(name="norm")(x + attended)
    x = layers.Bidirectional(layers.GRU(3, name="gru"), name="both")(x)
    x = layers.BatchNormalization(name="batch_norm")(x)
    outputs = [
        layers.Activation("softmax")(layers.Dense(4, name=f"head_{i}")(x)) for i in range(heads)
    ]
    return scattered(keras.Model(tokens, outputs if heads > 1 else outputs[0], name="net"))


NORM = ["norm/gamma", "norm/beta"]
BATCH_NORM = [f"batch_norm/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")]
HEADS = ["head_0/kernel", "head_0/bias", "head_1/kernel", "head_1/bias"]
BIASES = [f"attention/{name}/bias" for name in ("query", "key", "value", "attention_output")]
# What is chosen -> the paths of what gets members.
CHOSEN = {
    "batch_norm + head": [*BATCH_NORM, *HEADS],
    "head": HEADS,
    "normalization": [*NORM, *BATCH_NORM],
    "norm/ + attention.*bias": [*BIASES, *NORM, *BATCH_NORM],
    "forward.*recurrent": ["forward_gru/gru_cell/recurrent_kernel"],
    "head_1/bias": ["head_1/bias"],
}


@pytest.mark.parametrize("weights", CHOSEN)
def test_weights_are_chosen_by_name(weights, tmp_path):
    model, x = transformer(heads=2), np.arange(20).reshape(4, 5) % 7
    converted = late_phase.keras.convert(model, members=3, weights=weights)
    late = [v.path for v in converted.weights if hasattr(v, "late_phase_members")]
    assert late == CHOSEN[weights]
    for outputs, expected in zip(converted(x), model(x)):
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    converted.compile(
        late_phase.keras.LatePhaseOptimizer(
            keras.optimizers.Adam(0.01), members=3, start=1, sigma=0.1
        ),
        [keras.losses.SparseCategoricalCrossentropy()] * 2,
    )
    converted.fit(x, [np.arange(4)] * 2, batch_size=1, verbose=0)
    converted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    plain = late_phase.keras.collapse(converted)
    ensemble = late_phase.keras.ensemble(converted)
    for outputs, again, collapsed, averaged in zip(converted(x), loaded(x), plain(x), ensemble(x)):
        np.testing.assert_array_equal(outputs, again)
        np.testing.assert_allclose(outputs, collapsed, rtol=0, atol=1e-5)
        assert averaged.shape == outputs.shape
    assert not with_members(plain)


def test_weights_may_be_a_list_or_a_function():
    model = transformer()
    listed = late_phase.keras.convert(model, members=3, weights=["norm/gamma", "head"])
    chosen = late_phase.keras.convert(
        model, members=3, weights=lambda v: v.path.endswith("norm/gamma") or "head" in v.path
    )
    paths = [
        [v.path for v in copy.weights if hasattr(v, "late_phase_members")]
        for copy in (listed, chosen)
    ]
    assert paths[0] == paths[1] == [
        "norm/gamma", "batch_norm/gamma", "head_0/kernel", "head_0/bias"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "weights, message",
    [
        ("batchnorm",
         "found in paths of trained weights.*Received: weights='batchnorm', which chooses none"),
        ("head + typo", "Received: weights='typo', which chooses none"),
        (lambda v: False, "which chooses none"),
        (3, "`weights` must be None, a regular expression.*Received: weights=3"),
        (["head", 4], "Received: weights="),
    ],
)  # fmt: skip
def test_a_choice_of_nothing_is_named(weights, message):
    with pytest.raises(ValueError, match=message):
        late_phase.keras.convert(transformer(), members=3, weights=weights)


def test_lora_of_a_frozen_transformer_is_fine_tuned_and_collapsed_to_one_adapter(tmp_path):
    """Frozen layer by layer; the factors alone are trained, and the copy has one pair of each."""
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8, name="table")(tokens)
    attention = layers.MultiHeadAttention(2, 4, name="attention")
    x = layers.LayerNormalization(name="norm")(x + attention(x, x))
    x = layers.Dense(8, name="up")(x)
    model = keras.Model(tokens, layers.Dense(4, name="head")(layers.GlobalAveragePooling1D()(x)))
    adapted = [attention.query_dense, attention.value_dense, model.get_layer("up")]
    for layer in model._flatten_layers(include_self=False):
        if layer not in adapted and layer is not attention:
            layer.trainable = False
    for layer in adapted:
        layer.enable_lora(2, lora_alpha=5)
        layer.bias.trainable = False
    factors = [v.path for v in model.trainable_variables]
    assert len(factors) == 6 and all("lora" in path for path in factors)
    late = late_phase.keras.convert(model, members=3, weights="lora")
    assert [v.path for v in late.trainable_variables] == factors
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.Adam(0.05), members=3, start=2, sigma=0.1
    )
    late.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.random.default_rng(0).integers(0, 11, (24, 6)), np.arange(24) % 4
    late.fit(x, y, batch_size=4, epochs=2, verbose=0)
    stacks = [v for v in late.trainable_variables if hasattr(v, "late_phase_members")]
    assert len(stacks) == 6 and all(np.ptp(v, axis=0).max() > 1e-3 for v in stacks)
    plain = late_phase.keras.collapse(late)
    assert [v.path for v in plain.trainable_variables] == factors
    np.testing.assert_allclose(plain(x), late(x), rtol=0, atol=1e-5)
    for name, before in model_weights(model).items():
        if "lora" not in name:
            np.testing.assert_array_equal(model_weights(plain)[name], before)
    plain.save(tmp_path / "plain.keras")  # Keras merges an adapter into the kernel that it saves
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    np.testing.assert_allclose(loaded(x), plain(x), rtol=0, atol=1e-5)


@pytest.fixture
def in_64_bits():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


def test_an_adapter_of_32_bits_in_a_model_of_64_is_collapsed(in_64_bits):
    """Keras makes the factors in 32 bits, whatever the layer's type: so their mean is rounded."""
    dense = layers.Dense(4, use_bias=False)
    model = keras.Sequential([keras.Input((64,)), dense])
    dense.enable_lora(8)
    assert dense.lora_kernel_a.dtype == "float32" and dense.kernel.dtype == "float64"
    late = late_phase.keras.convert(model, members=3, weights="lora")
    random = np.random.default_rng(0)
    for stack in late.trainable_variables:  # members that nearly cancel
        first, last = random.normal(size=(2, *stack.shape[1:]))
        stack.assign([300 * first, -300 * first, last])
    plain = late_phase.keras.collapse(late)
    inputs = random.normal(size=(5, 64))
    difference = np.abs(plain(inputs) - late(inputs)).max() / np.abs(late(inputs)).max()
    assert 1e-7 < difference < 1e-3


@pytest.mark.parametrize("inside", [True, False])
def test_an_adapter_that_is_not_chosen_stays_one_in_every_copy(inside):
    """Beside a frozen kernel; Keras, which saves the two as one, would make copies train both."""
    x = keras.Input((5, 8))
    if inside:
        attention = layers.MultiHeadAttention(2, 4, name="attention")
        y, adapted = attention(x, x), attention
    else:
        adapted = layers.Dense(8, name="dense")
        y = adapted(x)
    model = keras.Model(x, layers.Dense(3, name="head")(y))
    for layer in [attention.query_dense, attention.output_dense] if inside else [adapted]:
        layer.enable_lora(2, lora_alpha=5)
        layer.bias.trainable = False
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    late = late_phase.keras.convert(model, members=3, weights="head")
    for copy in (late, late_phase.keras.collapse(late)):
        other = copy.get_layer(adapted.name)
        assert [v.path for v in other.trainable_variables] == [
            v.path for v in adapted.trainable_variables
        ]
        for mine, theirs in zip(adapted.weights, other.weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        data = random.normal(size=(2, 5, 8)).astype("float32")
        np.testing.assert_allclose(copy(data), model(data), rtol=0, atol=1e-5)


def test_a_weight_that_is_frozen_by_itself_stays_so_in_every_copy():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5, name="hidden"), layers.Dense(3)])
    model.get_layer("hidden").bias.trainable = False
    late = late_phase.keras.convert(model, members=3, weights="head")
    for copy in (late, late_phase.keras.collapse(late)):
        (trained,) = copy.get_layer("hidden").trainable_variables
        assert trained.path.endswith("hidden/kernel")


def model_weights(model):
    return {v.path: v.numpy() for v in model.weights}


def test_a_choice_of_frozen_weights_is_named():
    model = transformer()
    model.trainable = False
    with pytest.raises(ValueError, match="chooses none but .*norm/gamma, which is frozen"):
        late_phase.keras.convert(model, members=3, weights="norm/gamma")


NORMALIZATIONS = {
    "batch": layers.BatchNormalization,
    "group": lambda: layers.GroupNormalization(2),
    "layer": layers.LayerNormalization,
    "rms": layers.RMSNormalization,
}


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_every_normalization_is_one(kind):
    model = keras.Sequential([keras.Input((4,)), NORMALIZATIONS[kind](), layers.Dense(2)])
    converted = late_phase.keras.convert(scattered(model), members=3, weights="normalization")
    norm, head = converted.layers
    assert all(hasattr(v, "late_phase_members") for v in norm.trainable_variables)
    assert norm.trainable_variables and not isinstance(head, MemberLayer)


# The shape of the inputs, and the last layer.
LAST = {
    "Dense": ((4,), lambda: layers.Dense(2)),
    "EinsumDense": ((4,), lambda: layers.EinsumDense("ab,bc->ac", output_shape=2)),
    "Conv1D": ((5, 4), lambda: layers.Conv1D(2, 3)),
    "Conv2D": ((5, 5, 4), lambda: layers.Conv2D(2, 3)),
    "Conv3D": ((5, 5, 5, 4), lambda: layers.Conv3D(2, 3)),
}


@pytest.mark.parametrize("kind", LAST)
def test_every_kind_of_head_is_one(kind):
    shape, make = LAST[kind]
    model = keras.Sequential([keras.Input(shape), layers.Dense(4), make(), layers.Softmax()])
    converted = late_phase.keras.convert(scattered(model), members=3, weights="head")
    first, head, _ = converted.layers
    assert all(hasattr(v, "late_phase_members") for v in head.trainable_variables)
    assert head.trainable_variables and not isinstance(first, MemberLayer)


def test_a_head_of_another_kind_is_named():
    inputs = keras.Input((5, 3))
    recurrent = keras.Model(inputs, layers.Activation("tanh")(layers.LSTM(2, name="last")(inputs)))
    summed = keras.Model(inputs, layers.Add()([layers.Dense(2)(inputs), layers.Dense(2)(inputs)]))
    for model, name in ((recurrent, "last, LSTM"), (summed, "add.*, Add")):
        with pytest.raises(ValueError, match=f"The head must be a Dense.*Received: {name}"):
            late_phase.keras.convert(model, members=3, weights="head")


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
    message = (
        "`members` must be that of the layers that have members. Received: members=4, 3 in norm"
    )
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
