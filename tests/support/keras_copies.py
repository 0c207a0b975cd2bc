"""What tests of `convert` and `collapse` share: weights, inputs, and the comparison of copies."""

import warnings

import keras
import numpy as np
import pytest

import late_phase.keras
from late_phase.keras.members import MemberLayer


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


def transformer(heads=1):
    tokens = keras.Input((5,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(7, 6, name="embedding")(tokens)
    attended = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = keras.layers.LayerNormalization(name="norm")(x + attended)
    x = keras.layers.Bidirectional(keras.layers.GRU(3, name="gru"), name="both")(x)
    x = keras.layers.BatchNormalization(name="batch_norm")(x)
    outputs = [
        keras.layers.Activation("softmax")(keras.layers.Dense(4, name=f"head_{i}")(x))
        for i in range(heads)
    ]
    return scattered(keras.Model(tokens, outputs if heads > 1 else outputs[0], name="net"))
