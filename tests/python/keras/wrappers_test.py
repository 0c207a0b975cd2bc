"""Layers with members inside Keras's wrappers, and in blocks of one's own."""

import keras
import numpy as np
import pytest

import late_phase.keras
from late_phase.keras.members import MemberLayer

K, TIME, FEATURES, UNITS = 3, 5, 6, 4
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, TIME, FEATURES)).astype("float32")
TARGETS = {3: RANDOM.normal(size=(24, TIME, 2 * UNITS)), 2: RANDOM.normal(size=(24, 2 * UNITS))}
layers = keras.layers


@keras.saving.register_keras_serializable("wrappers_test")
class Residual(layers.Wrapper):
    """A wrapper of one's own, which gives no training argument on and calls its layer twice."""

    def call(self, inputs):
        return inputs + self.layer(inputs) + self.layer(2 * inputs)


class Block(layers.Layer):
    """Makes its layers itself, and has none of them in its config."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = late_phase.keras.BatchNormalization(members=K)
        self.dense = late_phase.keras.Dense(2 * UNITS, members=K)

    def call(self, inputs, training=False):
        return self.dense(self.norm(inputs, training=training), training=training)


class OwnRows(MemberLayer):
    """A layer with members of one's own, without a pass over all of them."""

    def build(self, input_shape):
        self.scale = self.add_member_weight((input_shape[-1],), "ones", name="scale")

    def call(self, inputs, training=False):
        return inputs * self.row(self.scale, training)


def stack(*parts):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((TIME, FEATURES)), *parts])


def late(kind, *args, **options):
    return getattr(late_phase.keras, kind)(*args, members=K, **options)


def converted(weights, *parts):
    return late_phase.keras.convert(stack(*parts), K, weights=weights)


def cell():
    return late("Rank1LSTMCell", 2 * UNITS)


MODELS = {
    "Bidirectional(Rank1LSTM)": lambda: stack(
        layers.Bidirectional(late("Rank1LSTM", UNITS, return_sequences=True))
    ),
    "Bidirectional, masked": lambda: stack(
        layers.Masking(), layers.Bidirectional(late("Rank1LSTM", UNITS, return_sequences=True))
    ),
    "Bidirectional(RNN(Rank1LSTMCell))": lambda: stack(
        layers.Bidirectional(layers.RNN(late("Rank1LSTMCell", UNITS)))
    ),
    "RNN(Rank1LSTMCell)": lambda: stack(layers.RNN(cell(), return_sequences=True)),
    "RNN of two cells": lambda: stack(layers.RNN([cell(), cell()])),
    "Bidirectional(LSTM), converted": lambda: converted(
        "bias", layers.Bidirectional(layers.LSTM(UNITS))
    ),
    "TimeDistributed(Dense)": lambda: stack(layers.TimeDistributed(late("Dense", 2 * UNITS))),
    "TimeDistributed(Dense), converted": lambda: converted(
        "head", layers.TimeDistributed(layers.Dense(2 * UNITS))
    ),
    "TimeDistributed(Sequential), converted": lambda: converted(
        "batch_norm",
        layers.TimeDistributed(
            keras.Sequential([layers.Dense(2 * UNITS), layers.BatchNormalization()])
        ),
    ),
    "SpectralNormalization(Dense), converted": lambda: converted(
        "bias", layers.SpectralNormalization(layers.Dense(2 * UNITS)), layers.ReLU()
    ),
    "a wrapper of one's own": lambda: stack(
        Residual(late("Dense", FEATURES, activation="tanh")), layers.Dense(2 * UNITS)
    ),
    "Members(Bidirectional)": lambda: stack(
        late("Members", layers.Bidirectional(layers.GRU(UNITS)), weights="bias|recurrent")
    ),
}


def trained(model):
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.05), members=K, start=2, sigma=0.3
    )
    model.compile(optimizer, "mse")
    targets = TARGETS[len(model.output_shape)]
    model.fit(X, targets, batch_size=4, verbose=0, shuffle=False)
    return model


def outputs(model):
    return model.predict(X, verbose=0)


def is_plain(model):
    return not any("late_phase" in type(layer).__module__ for layer in model._flatten_layers())


@pytest.mark.parametrize("name", MODELS)
def test_training_collapsing_and_averaging(name, tmp_path):
    model = trained(MODELS[name]())
    rows = [v.numpy() for v in model.trainable_variables if hasattr(v, "late_phase_members")]
    assert rows and all(len({row.tobytes() for row in stack}) == K for stack in rows)
    plain = late_phase.keras.collapse(model)
    assert is_plain(plain)
    np.testing.assert_allclose(outputs(plain), outputs(model), rtol=0, atol=2e-6)
    members = [outputs(late_phase.keras.collapse(model, member=k)) for k in range(K)]
    assert np.ptp(members, axis=0).max() > 1e-3
    ensemble = late_phase.keras.ensemble(model)
    expected = np.mean(np.float64(members), axis=0)
    np.testing.assert_allclose(outputs(ensemble), expected, rtol=0, atol=2e-6)
    # Whatever mode it is called in.
    np.testing.assert_allclose(ensemble(X, training=True), expected, rtol=0, atol=2e-6)
    ensemble.save(tmp_path / "ensemble.keras")
    loaded = keras.models.load_model(tmp_path / "ensemble.keras")
    np.testing.assert_array_equal(outputs(loaded), outputs(ensemble))


def test_time_distributed_is_trained_like_the_layer():
    """A Dense acts on the last axis alone, so that the wrapper changes nothing."""
    wrapped = stack(layers.TimeDistributed(late("Dense", 2 * UNITS)))
    expect_same_training(wrapped, stack(late("Dense", 2 * UNITS)))


def expect_same_training(model, other):
    other.set_weights(model.get_weights())
    trained(model)
    trained(other)
    for mine, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5, err_msg=mine.path)


def test_bidirectional_is_trained_like_two_layers():
    wrapped = stack(layers.Bidirectional(late("Rank1LSTM", UNITS)))
    inputs = keras.Input((TIME, FEATURES))
    forward, backward = late("Rank1LSTM", UNITS), late("Rank1LSTM", UNITS, go_backwards=True)
    alone = keras.Model(inputs, layers.Concatenate()([forward(inputs), backward(inputs)]))
    expect_same_training(wrapped, alone)


def test_a_block_of_ones_own_is_averaged():
    """It cannot be collapsed, as its config does not have its layers."""
    model = trained(stack(Block()))
    with pytest.raises(ValueError, match="which another layer makes itself"):
        late_phase.keras.collapse(model)
    block, expected = model.layers[0], []
    for k in range(K):
        rows = [np.float64(w[k]) for w in block.get_weights()]
        gamma, beta, mean, variance, kernel, bias = rows
        expected.append(((X - mean) / np.sqrt(variance + 1e-3) * gamma + beta) @ kernel + bias)
    ensemble = late_phase.keras.ensemble(model)
    np.testing.assert_allclose(outputs(ensemble), np.mean(expected, axis=0), rtol=0, atol=1e-5)


def test_a_layer_of_ones_own_needs_no_pass_over_all_members():
    model = trained(stack(OwnRows(members=K), layers.Dense(2 * UNITS)))
    rows, kernel, bias = (np.float64(w) for w in model.get_weights())
    expected = np.mean([X * row @ kernel + bias for row in rows], axis=0)
    ensemble = late_phase.keras.ensemble(model)
    np.testing.assert_allclose(outputs(ensemble), expected, rtol=0, atol=1e-5)


def test_statistics_inside_a_wrapper_are_estimated_for_each_member():
    """As those of the same layer outside of one."""
    norm = late_phase.keras.BatchNormalization(members=K)
    first = late("Dense", FEATURES)
    wrapped = trained(stack(first, Residual(norm), layers.Dense(2 * UNITS)))
    late_phase.keras.reestimate_batch_norm(late_phase.keras.ensemble(wrapped), X)
    kernels, biases = (np.float64(w) for w in first.get_weights())
    sums, count = np.zeros((2, K, FEATURES)), 0
    for part in (X[i : i + 32] for i in range(0, len(X), 32)):
        for factor in (1, 2):  # of the wrapper's two calls
            count += part[..., 0].size
            for k in range(K):
                hidden = factor * (part @ kernels[k] + biases[k]).reshape(-1, FEATURES)
                sums[:, k] += len(hidden) * np.array([hidden.mean(axis=0), hidden.var(axis=0)])
    for statistic, expected in zip((norm.moving_mean, norm.moving_variance), sums / count):
        np.testing.assert_allclose(statistic, expected, rtol=1e-4, atol=1e-5)


def test_states_are_refused_by_name():
    keras.utils.set_random_seed(1)
    inputs = keras.Input(batch_shape=(4, TIME, FEATURES))
    lstm = late("Rank1LSTM", UNITS, stateful=True)
    model = keras.Model(inputs, layers.Bidirectional(lstm)(inputs))
    with pytest.raises(
        ValueError, match="has no states to keep. Received: stateful=True in bidirectional"
    ):
        late_phase.keras.ensemble(model)(X[:4])
