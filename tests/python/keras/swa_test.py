"""SWA, against numpy and trainings that did without."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import Epoch
from tests.support.keras_trainings import MEMBERS, data, failing, fit, late_norm, state, stock_model

# Two replicas for tf.distribute; must be said before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def late_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((4,)), keras.layers.Dense(6), late_norm(),
        keras.layers.ReLU(), keras.layers.Dropout(0.3),
        late_phase.keras.Dense(3, members=MEMBERS),
    ])  # fmt: skip
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), members=MEMBERS, start=6, sigma=0.3
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Weights(keras.callbacks.Callback):
    """The trainable weights after each epoch."""

    def __init__(self):
        super().__init__()
        self.after = []

    def on_epoch_end(self, epoch, logs=None):
        self.after.append([np.float64(v) for v in self.model.trainable_variables])


@pytest.mark.parametrize(
    "start, frequency, sampled",
    [(0, 1, [0, 1, 2, 3, 4, 5]), (5, 1, [5]), (6, 1, []), (2, 4, [5]), (1, 2, [2, 4])],
)
def test_epochs_that_are_sampled(start, frequency, sampled):
    """The first one at the end of epoch start + frequency, counted from 1."""
    model, swa = (
        stock_model(),
        late_phase.keras.SWA(start and Epoch(start), Epoch(frequency), dataset=data()[0]),
    )
    swa.set_model(model)
    samples = []
    for epoch in range(6):
        swa.on_epoch_begin(epoch)
        before = swa.samples
        swa.on_epoch_end(epoch)
        samples += [epoch] * (swa.samples - before)
    assert samples == sampled


def test_average_of_a_late_phase_training():
    """The members are spawned between the first sample and the second. Training does not notice."""
    alone, model = late_model(), late_model()
    fit(alone, [], epochs=4)
    weights, swa = Weights(), late_phase.keras.SWA(0, dataset=data()[0])
    x, _ = data()

    def use(epoch, logs):
        with swa.averaged():
            model.predict(x, verbose=0)

    fit(model, [weights, swa, keras.callbacks.LambdaCallback(on_epoch_end=use)], epochs=4)
    own = state(model)
    assert own == state(alone)
    expected = [
        np.mean([after[i] for after in weights.after], axis=0)
        for i in range(len(model.trainable_variables))
    ]
    with swa.averaged() as lent:
        assert lent is model
        for variable, value in zip(model.trainable_variables, expected):
            np.testing.assert_allclose(variable, value, rtol=0, atol=1e-6)
        inside = state(model)
        predicted = model.predict(x, verbose=0)
        plain = late_phase.keras.collapse(model)
        assert state(model) == inside != own
    assert state(model) == own
    # Another model with these weights, by hand.
    for variable, value in zip(alone.trainable_variables, expected):
        variable.assign(value)
    late_phase.keras.reestimate_batch_norm(alone, x)
    np.testing.assert_allclose(predicted, alone(x), rtol=0, atol=1e-5)
    np.testing.assert_allclose(plain(x), predicted, rtol=0, atol=1e-5)
    # The ensemble of averaged members, which are not equal.
    assert np.abs(late_phase.keras.ensemble(alone)(x) - predicted).max() > 1e-4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_own_weights_come_back_after_an_exception(error):
    model = stock_model()
    swa = late_phase.keras.SWA(Epoch(1), dataset=data()[0])
    fit(model, [swa], epochs=3)
    before = state(model)
    with pytest.raises(error):
        with swa.averaged():
            assert state(model) != before
            raise error
    assert state(model) == before


def test_own_weights_come_back_if_the_data_fails():
    model = stock_model()
    swa = late_phase.keras.SWA(Epoch(1), dataset=Fails())
    fit(model, [swa], epochs=3)
    before = state(model)
    for use in (swa.apply, swa.averaged().__enter__):
        with pytest.raises(OSError, match="disk gone"):
            use()
        assert state(model) == before


class Fails:
    def __iter__(self):
        return failing([data()[0]])


class Counted:
    """Batches that count how often they are read."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([data()[0]])


def test_statistics_are_estimated_once_per_sample_and_when_needed():
    model, counted = stock_model(), Counted()
    swa = late_phase.keras.SWA(Epoch(1), dataset=counted)
    fit(model, [swa], epochs=4)
    assert counted.passes == 0
    for _ in range(2):
        with swa.averaged():
            with swa.averaged():
                inside = state(model)
    assert counted.passes == 1
    fit(model, [swa], epochs=5, initial_epoch=4)
    assert swa.samples == 4
    before = state(model)
    swa.apply()
    assert counted.passes == 2 and state(model) not in (before, inside)
    applied = state(model)
    with swa.averaged():
        assert state(model) == applied


def test_a_new_training_begins_a_new_average():
    model = stock_model()
    swa, weights = late_phase.keras.SWA(Epoch(1), dataset=data()[0]), Weights()
    fit(model, [swa], epochs=3)
    fit(model, [swa, weights], epochs=2)
    assert swa.samples == 1
    with swa.averaged():
        for variable, value in zip(model.trainable_variables, weights.after[1]):
            np.testing.assert_array_equal(np.float64(variable), value)


def test_half_types_are_averaged_in_float():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, use_bias=False, dtype="bfloat16")]
    )
    swa = late_phase.keras.SWA(0)
    swa.set_model(model)
    values = [1.0, 1.0078125, 1.0, 1.0]  # of neighbours in bfloat16
    for epoch, value in enumerate(values):
        model.layers[0].kernel.assign(np.full((4, 1), value))
        swa.on_epoch_begin(epoch)
        swa.on_epoch_end(epoch)
    average = swa._average.values()[0]
    np.testing.assert_array_equal(average, np.full((4, 1), np.mean(values), "float32"))


def plain_model(units=3):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def on_another_model():
    swa = late_phase.keras.SWA(0)
    fit(plain_model(), [swa], epochs=1)
    fit(plain_model(), [swa], epochs=2, initial_epoch=1)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: late_phase.keras.SWA(-1),
            "`start` must be an integer of at least 0, a percentage .* or a "
            "late_phase.keras.Epoch. Received: start=-1",
        ),
        (
            lambda: late_phase.keras.SWA(1.5),
            "`start` must be an integer of at least 0.* Received: start=1.5",
        ),
        (
            lambda: late_phase.keras.SWA(0, 0),
            "`frequency` must be a number of steps, at least 1, or a late_phase.keras.Epoch. "
            "Received: frequency=0",
        ),
        (
            lambda: late_phase.keras.SWA(Epoch(2), Epoch(3)).averaged().__enter__(),
            "the first one is taken at the end of epoch 5. Received: samples=0",
        ),
        (lambda: late_phase.keras.SWA(Epoch(2)).apply(), "There must be a sample to average"),
        (
            lambda: fit(stock_model(), [late_phase.keras.SWA(Epoch(9))]),
            "`dataset` must be given.*Received: dataset=None, a model with .*normal",
        ),
        (on_another_model, "A callback averages one set of weights"),
    ],
)
def test_wrong_use_explains_itself(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_average_of_another_model_is_refused(tmp_path):
    fit(plain_model(), [late_phase.keras.SWA(0, backup_dir=tmp_path)], epochs=1)
    with pytest.raises(
        ValueError,
        match=re.escape("Received: an average of shapes [(4, 3), (3,)], not [(4, 5), (5,)]"),
    ):
        fit(
            plain_model(5),
            [late_phase.keras.SWA(0, backup_dir=tmp_path)],
            epochs=2,
            initial_epoch=1,
        )


# --- tf.distribute


def test_two_replicas():
    """Statistics are each replica's own, and come back to each."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(3),
            ]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights, swa = Weights(), late_phase.keras.SWA(Epoch(1), dataset=data()[0])
    fit(model, [weights, swa], epochs=4)

    def copies():
        return [
            [np.array(copy) for copy in strategy.experimental_local_results(v.value)]
            for v in model.weights
        ]

    def bits(arrays):
        return [[copy.tobytes() for copy in pair] for pair in arrays]

    own = copies()
    assert [len(pair) for pair in own] == [2] * len(own)
    assert any(pair[0].tobytes() != pair[1].tobytes() for pair in own)  # of the statistics
    with swa.averaged():
        inside = copies()
        assert all(pair[0].tobytes() == pair[1].tobytes() for pair in inside)
        for i, variable in enumerate(model.trainable_variables):
            np.testing.assert_allclose(
                variable,
                np.mean([after[i] for after in weights.after[1:]], axis=0),
                rtol=0,
                atol=1e-6,
            )
        predicted = model.predict(data()[0], batch_size=20, verbose=0)
    assert bits(copies()) == bits(own)
    other = keras.models.clone_model(model)
    other.set_weights([pair[0] for pair in inside])
    late_phase.keras.reestimate_batch_norm(other, data()[0])
    np.testing.assert_allclose(predicted, other(data()[0]), rtol=0, atol=1e-5)
