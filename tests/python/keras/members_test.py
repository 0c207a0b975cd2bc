"""Members(layer): any Keras layer with members, in training, saving, collapsing and ensembles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import Members
from tests.support import algorithm_1
from tests.support.algorithm_1 import BETA1, BETA2, EPSILON, RATE

K, START, STEPS, BATCH = 3, 2, 9, 6

keras.config.set_floatx("float64")

layers = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def adam():
    return keras.optimizers.Adam(RATE, beta_1=BETA1, beta_2=BETA2, epsilon=EPSILON)


def data(shape):
    random = np.random.default_rng(0)
    return random.normal(1, 2, (STEPS * BATCH, *shape)), random.integers(0, 4, STEPS * BATCH)


class Attention(layers.Layer):
    """A block that makes its layers itself: self-attention and a normalisation."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, 3, name="attention")
        self.norm = layers.LayerNormalization(name="norm")
        self.dropout = layers.Dropout(0.0)

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        self.norm.build(input_shape)

    def call(self, x, training=False):
        return self.norm(x + self.dropout(self.attention(x, x), training=training))

    def compute_output_shape(self, input_shape):
        return input_shape


def with_lora(layer, shape, rank=2):
    layer.build((None, *shape))
    layer.enable_lora(rank, lora_alpha=2 * rank)
    layer.lora_kernel_b.assign(np.random.default_rng(3).normal(size=layer.lora_kernel_b.shape))
    return layer


# Name -> (shape of the inputs, the layer, which weights, how many of its arrays have members).
LAYERS = {
    "LayerNormalization": ((5,), lambda: layers.LayerNormalization(), None, 2),
    "LayerNormalization, axis 1": ((4, 5), lambda: layers.LayerNormalization(axis=1), None, 2),
    "RMSNormalization": ((5,), lambda: layers.RMSNormalization(), None, 1),
    "GroupNormalization": ((4, 6), lambda: layers.GroupNormalization(2), None, 2),
    "Dense": ((5,), lambda: layers.Dense(6, "tanh"), None, 2),
    "bias of Dense": ((5,), lambda: layers.Dense(6, "tanh"), "bias", 1),
    "Conv1D": ((7, 3), lambda: layers.Conv1D(4, 3), ["kernel"], 1),
    "LSTM": ((4, 3), lambda: layers.LSTM(5, return_sequences=True), ["/bias", "recurrent"], 2),
    "Bidirectional": ((4, 3), lambda: layers.Bidirectional(layers.GRU(3)), "forward", 3),
    "attention block": ((4, 6), lambda: Attention(name="block"), "norm/|query.*bias", 3),
    "LoRA": ((5,), lambda: with_lora(layers.Dense(6), (5,)), "lora", 2),
    "by a function": ((5,), lambda: layers.Dense(6), lambda v: len(v.shape) == 1, 1),
    "Sequential": (
        (5,),
        lambda: keras.Sequential(
            [keras.Input((5,)), layers.Dense(6), layers.LayerNormalization()]),
        "gamma|beta", 2),
}  # fmt: skip


# Of these a saved model, and one with a single member, show the rest.
SOME = ["LayerNormalization", "Bidirectional", "attention block", "LoRA", "by a function"]


def tolerance(name):
    return 1e-5 if name == "LoRA" else 1e-9  # whose factors have 32 bits in Keras


def plain_model(name, seed=1):
    shape, make, _, _ = LAYERS[name]
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Dense(shape[-1], "tanh"),
            make(),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


def member_model(name, members=K, seed=1):
    shape, make, weights, _ = LAYERS[name]
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Dense(shape[-1], "tanh"),
            Members(make(), members=members, weights=weights),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


def train(model, name, first=0, last=STEPS):
    x, y = data(LAYERS[name][0])
    for t in range(first, last):
        part = slice(t * BATCH, (t + 1) * BATCH)
        model.train_on_batch(x[part], y[part])


def compiled(name, sigma=0.25, members=K):
    model = member_model(name, members)
    optimizer = late_phase.keras.LatePhaseOptimizer(
        adam(), members=members, start=START, sigma=sigma
    )
    model.compile(optimizer, LOSS)
    return model


def rows_of(model, plain, k=None):
    """Sets the weights of a plain model to those of member `k`, or to the members' mean."""
    for weight, other in zip(plain.weights, model.weights, strict=True):
        value = other.numpy()
        if hasattr(other, "late_phase_members"):
            value = value.mean(axis=0) if k is None else value[k]
        weight.assign(value)
    return plain


def reference(name, model):
    """Algorithm 1 on a plain model's arrays, one member after the other."""
    plain = plain_model(name)
    x, y = data(LAYERS[name][0])
    late = [hasattr(v, "late_phase_members") for v in model.trainable_variables]
    start = [v.numpy() for v in model.trainable_variables]

    def loss(base, row, part):
        base, row = iter(base), iter(row)
        values = [next(row if is_late else base) for is_late in late]
        outputs, _ = plain.stateless_call(
            values, [v.value for v in plain.non_trainable_variables], x[part], training=True
        )
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y[part], outputs))

    for variable, value in zip(plain.non_trainable_variables, model.non_trainable_variables):
        variable.assign(value)
    return algorithm_1.train(
        loss,
        [w for w, is_late in zip(start, late) if not is_late],
        [w[0] for w, is_late in zip(start, late) if is_late],
        [slice(t * BATCH, (t + 1) * BATCH) for t in range(STEPS)],
        K,
        START,
        "adam",
        "adam",
    )


@pytest.mark.parametrize("name", LAYERS)
def test_training_is_the_plain_loop(name):
    model = compiled(name, sigma=0.0)
    assert sum(hasattr(v, "late_phase_members") for v in model.weights) == LAYERS[name][3]
    base, rows = reference(name, model)
    train(model, name)
    own_base = [v for v in model.trainable_variables if not hasattr(v, "late_phase_members")]
    late = [v for v in model.trainable_variables if hasattr(v, "late_phase_members")]
    for weight, expected in zip(own_base, base, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=tolerance(name))
    for weight, *expected in zip(late, *rows, strict=True):
        np.testing.assert_allclose(weight, np.stack(expected), rtol=0, atol=tolerance(name))
        assert np.ptp(weight, axis=0).any(), weight.path


@pytest.mark.parametrize("name", SOME)
def test_one_member_is_keras(name):
    model, plain = compiled(name, members=1), plain_model(name)
    rows_of(model, plain, 0).compile(adam(), LOSS)
    train(model, name)
    train(plain, name)
    for weight, expected in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(
            np.reshape(weight, expected.shape), expected, rtol=0, atol=tolerance(name)
        )


@pytest.mark.parametrize("name", LAYERS)
def test_inference_and_collapse_are_the_mean_and_the_ensemble_is_each_member(name):
    model = compiled(name)
    train(model, name)
    x, _ = data(LAYERS[name][0])
    plain = plain_model(name)
    mean = rows_of(model, plain)(x)
    np.testing.assert_allclose(model(x), mean, rtol=0, atol=tolerance(name))
    collapsed = late_phase.keras.collapse(model)
    np.testing.assert_allclose(collapsed(x), mean, rtol=0, atol=tolerance(name))
    assert [type(layer) for layer in collapsed.layers] == [type(layer) for layer in plain.layers]
    assert [v.trainable for v in collapsed.weights] == [v.trainable for v in plain.weights]
    members = [rows_of(model, plain, k)(x).numpy() for k in range(K)]
    np.testing.assert_allclose(
        late_phase.keras.ensemble(model)(x), np.mean(members, axis=0), rtol=0, atol=tolerance(name)
    )
    assert np.ptp(members, axis=0).max() > 1e-3


@pytest.mark.parametrize("name", [*SOME, "Sequential"])
def test_a_saved_model_resumes_in_mid_cycle(name, tmp_path):
    whole, part = compiled(name), compiled(name)
    train(whole, name)
    train(part, name, last=START + 2)
    part.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"Attention": Attention}
    )
    train(resumed, name, first=START + 2)
    for weight, expected in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=weight.path)
    other = member_model(name, seed=5)
    part.save_weights(tmp_path / "some.weights.h5")
    other.load_weights(tmp_path / "some.weights.h5")
    for weight, expected in zip(other.weights, part.weights, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=weight.path)


def test_lora_inside_a_block_is_saved_and_collapsed_to_one_adapter(tmp_path):
    shape = (4, 6)
    block = Attention(name="block")
    block.build((None, *shape))
    query = block.attention.query_dense
    query.enable_lora(2, lora_alpha=5)
    query.lora_kernel_b.assign(np.random.default_rng(0).normal(size=query.lora_kernel_b.shape))
    members = Members(block, members=K, weights="lora")
    model = keras.Sequential([keras.Input(shape), members, layers.Flatten(), layers.Dense(4)])
    for weight in block.attention.query_dense.weights:
        if "lora" in weight.path:
            weight.assign(weight + np.random.default_rng(1).normal(size=weight.shape))
    x, _ = data(shape)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"Attention": Attention}
    )
    np.testing.assert_array_equal(loaded(x), model(x))
    plain = late_phase.keras.collapse(loaded)
    np.testing.assert_allclose(plain(x), model(x), rtol=0, atol=tolerance("LoRA"))
    assert plain.layers[0].attention.query_dense.lora_enabled


def test_regularizers_are_for_the_row_in_use():
    layer = Members(layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5)), members=2)
    layer.build((None, 3))
    rows = np.random.default_rng(0).normal(size=(2, 3, 2))
    layer.layer.kernel.assign(rows)
    layer(np.ones((1, 3)), training=True)
    np.testing.assert_allclose(sum(layer.losses), 0.5 * np.sum(rows[0] ** 2))
    layer(np.ones((1, 3)))
    np.testing.assert_allclose(sum(layer.losses), 0.5 * np.sum(rows.mean(axis=0) ** 2))


def test_constraints_are_for_each_member():
    keras.utils.set_random_seed(0)
    dense = layers.Dense(4, kernel_constraint=keras.constraints.UnitNorm())
    model = keras.Sequential([keras.Input((5,)), Members(dense, members=K)])
    model.compile(
        late_phase.keras.LatePhaseOptimizer(adam(), members=K, start=START, sigma=0.25), LOSS
    )
    x, y = data((5,))
    model.fit(x, y, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(np.linalg.norm(dense.kernel, axis=1), np.ones((K, 4)), rtol=1e-6)


def test_mixed_precision_casts_the_row():
    layer = Members(layers.Dense(2, dtype="mixed_bfloat16"), members=K)
    assert layer(np.ones((1, 3), "float32")).dtype == tf.bfloat16
    assert layer.layer.kernel.dtype == "float32" and layer.layer.kernel.value.dtype == tf.float32


def test_masks_reach_the_layer_and_pass_it():
    tokens = keras.Input((5,), dtype="int32")
    embedded = layers.Embedding(9, 4, mask_zero=True)(tokens)
    outputs = Members(layers.LSTM(3, return_sequences=True), members=K)(embedded)
    model = keras.Model(tokens, Members(layers.LSTM(2), members=K)(outputs))
    short, long = np.array([[1, 2, 0, 0, 0]]), np.array([[1, 2]])
    np.testing.assert_allclose(model(short), model.layers[-1](
        model.layers[-2](model.layers[1](long))), rtol=0, atol=1e-12)  # fmt: skip
    ensemble = late_phase.keras.ensemble(model)
    np.testing.assert_allclose(ensemble(short), model(short), rtol=0, atol=1e-12)


def test_the_layer_is_the_same_inside_a_wrapper():
    inner = layers.Dense(3)
    wrapped = layers.TimeDistributed(Members(inner, members=K))
    x = np.random.default_rng(0).normal(size=(2, 4, 5))
    outputs = wrapped(x)
    np.testing.assert_allclose(
        outputs, x @ inner.kernel.numpy()[0] + inner.bias.numpy()[0], rtol=0, atol=1e-12
    )


def test_members_must_be_those_of_the_file(tmp_path):
    member_model("Dense", members=2).save_weights(tmp_path / "two.weights.h5")
    with pytest.raises(ValueError, match="`members` must be that of the saved weights.*2 saved"):
        member_model("Dense", members=3).load_weights(tmp_path / "two.weights.h5")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Members("dense", members=2),
         "`layer` must be a Keras layer. Received: layer='dense'"),
        (lambda: Members(layers.Dense(2), members=0), "`members` must be an integer of at least 1"),
        (lambda: Members(layers.BatchNormalization(), members=2),
         "use late_phase.keras.BatchNormalization"),
        (lambda: Members(late_phase.keras.Dense(2, members=2), members=2),
         "`layer` must be without members"),
        (lambda: Members(layers.Dense(2), members=2, weights=3),
         "`weights` must be None, a regular.*Received: weights=3"),
        (lambda: Members(layers.Dense(2), members=2, weights="gamma")(np.ones((1, 2))),
         "must choose a trained weight.*Received: weights='gamma' for .*kernel.*bias"),
        (lambda: Members(layers.ReLU(), members=2)(np.ones((1, 2))), "re_lu.*, which has none"),
        (lambda: Members(layers.SpectralNormalization(layers.Dense(2)), members=2)(np.ones((1, 2))),
         "SpectralNormalization assigns the weight.*Received: weights=None for .*kernel"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_bias_of_a_normalised_layer_may_have_members():
    layer = Members(layers.SpectralNormalization(layers.Dense(2)), members=2, weights="bias")
    layer(np.ones((1, 2)), training=True)
    assert [v.name for v in layer.member_variables()] == ["bias"]


def test_a_layer_that_assigns_its_weight_is_refused():
    class Growing(layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, x):
            self.scale.assign(self.scale * 2)
            return x * self.scale

    with pytest.raises(ValueError, match="must not be assigned by its layer.*scale"):
        Members(Growing(), members=2)(np.ones((1, 2)))
