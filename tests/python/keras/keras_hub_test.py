"""Members in Keras Hub's layers and backbones, with random weights. Run by name: it downloads."""

import importlib.util
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest

import late_phase.keras
from late_phase.keras import Members

if importlib.util.find_spec("keras_hub") is None:
    FOLDER = tempfile.TemporaryDirectory()
    INSTALL = ["install", "--quiet", "--no-deps", "--target", FOLDER.name]
    INSTALL += ["--requirement", "tools/requirements-keras-hub.txt"]
    subprocess.run([sys.executable, "-m", "pip", *INSTALL], check=True)
    sys.path.append(FOLDER.name)

import keras_hub  # noqa: E402

K, VOCABULARY, LENGTH, CLASSES = 3, 30, 7, 4
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(1, VOCABULARY, (24, LENGTH))
LABELS = RANDOM.integers(0, CLASSES, 24)
INPUTS = {"token_ids": TOKENS, "padding_mask": TOKENS > 3}
SIZES = dict(
    vocabulary_size=VOCABULARY,
    num_layers=2,
    num_heads=2,
    hidden_dim=8,
    intermediate_dim=12,
    max_sequence_length=LENGTH,
    dropout=0.1,
)
BACKBONES = {
    "BERT": (keras_hub.models.BertBackbone, {**INPUTS, "segment_ids": 0 * TOKENS}),
    "GPT-2": (keras_hub.models.GPT2Backbone, INPUTS),
}


def trained(model, x):
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.Adam(0.01), members=K, start=2, sigma=0.2, base_scale=1 / K
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, LABELS, batch_size=4, epochs=2, verbose=0)
    return model


def outputs(model, x):
    return model.predict(x, verbose=0)


def expect_members_collapse_to_plain_layers(model, x):
    plain = late_phase.keras.collapse(model)
    assert not any("late_phase" in type(layer).__module__ for layer in plain._flatten_layers())
    np.testing.assert_allclose(outputs(plain, x), outputs(model, x), rtol=0, atol=1e-5)
    members = [outputs(late_phase.keras.collapse(model, member=k), x) for k in range(K)]
    assert np.ptp(members, axis=0).max() > 1e-4
    mean = np.mean(np.float64(members), axis=0)
    ensemble = late_phase.keras.ensemble(model)
    np.testing.assert_allclose(outputs(ensemble, x), mean, rtol=0, atol=1e-5)
    return plain


def classifier(backbone, x):
    """A Functional model around a backbone, or around Members of one."""
    inputs = {name: keras.Input((LENGTH,), dtype="int32", name=name) for name in x}
    features = backbone(inputs)
    if isinstance(features, dict):
        features = features["sequence_output"]
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="head")(features[:, 0]))


def stacks(model):
    return {v.path for v in model.trainable_variables if hasattr(v, "late_phase_members")}


def test_transformer_encoder():
    keras.utils.set_random_seed(1)
    tokens = keras.Input((LENGTH,), dtype="int32")
    embedding = keras_hub.layers.TokenAndPositionEmbedding(VOCABULARY, LENGTH, 8, mask_zero=True)
    x = embedding(tokens)
    for _ in range(2):
        x = keras_hub.layers.TransformerEncoder(12, 2, dropout=0.1)(x)
    model = keras.Model(tokens, keras.layers.Dense(CLASSES)(x[:, 0]))
    late = late_phase.keras.convert(model, K, weights="norm|bias")
    padded = np.where(np.arange(LENGTH) < 5, TOKENS, 0)
    np.testing.assert_allclose(outputs(late, padded), outputs(model, padded), rtol=0, atol=1e-6)
    chosen = {v.path for v in model.trainable_variables if "norm" in v.path or "bias" in v.path}
    assert len(stacks(late)) == len(chosen) == 2 * 10 + 1
    expect_members_collapse_to_plain_layers(trained(late, padded), padded)


@pytest.mark.parametrize("name", BACKBONES)
def test_norms_and_biases_of_a_backbone(name):
    cls, x = BACKBONES[name]
    keras.utils.set_random_seed(1)
    late = classifier(Members(cls(**SIZES), members=K, weights="norm|bias"), x)
    late = late_phase.keras.convert(late, K, weights="head")
    trained(late, x)
    assert all("norm" in path or "bias" in path or "head" in path for path in stacks(late))
    expect_members_collapse_to_plain_layers(late, x)


@pytest.mark.parametrize("name", BACKBONES)
def test_lora_on_a_frozen_backbone_collapses_to_one_adapter(name):
    cls, x = BACKBONES[name]
    keras.utils.set_random_seed(1)
    backbone = cls(**SIZES)
    backbone.enable_lora(2)  # freezes all else
    late = classifier(Members(backbone, members=K, weights="lora"), x)
    frozen = [v for v in backbone.variables if not v.trainable and "seed" not in v.path]
    before = [v.numpy() for v in frozen]
    trained(late, x)
    assert len(stacks(late)) == 2 * 2 * 2 and all("lora" in path for path in stacks(late))
    for variable, value in zip(frozen, before, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.path)
    plain = expect_members_collapse_to_plain_layers(late, x)
    means = {v.path: v.numpy().mean(axis=0) for v in late.trainable_variables if "lora" in v.path}
    adapter = {v.path: v.numpy() for v in plain.trainable_variables if "lora" in v.path}
    assert adapter.keys() == means.keys()
    for path, value in adapter.items():
        np.testing.assert_allclose(value, means[path], rtol=0, atol=1e-6, err_msg=path)
    (copy,) = [layer for layer in plain.layers if isinstance(layer, cls)]
    # What Keras leaves trainable beside the factors, biases of the same layers, is the same.
    assert len(copy.trainable_variables) == len(backbone.trainable_variables)
