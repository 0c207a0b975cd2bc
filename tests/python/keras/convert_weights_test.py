"""Which weights `convert` gives members to, and what becomes of the others."""

import keras
import numpy as np
import pytest

import late_phase.keras
from late_phase.keras.members import MemberLayer
from tests.support.keras_copies import scattered, transformer, with_members

pytest_plugins = ["tests.support.keras_copies"]  # its fixtures

layers = keras.layers


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
        ("head + ", "must name weights before and after each ' . '. Received: weights='head . '"),
        ("", "must name weights before and after each ' . '. Received: weights=''"),
        ("head + (", "must be a regular expression. Received: weights='\\(': missing"),
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
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(policy)


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
