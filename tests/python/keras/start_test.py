"""When members start: each way to say it is the training with the step that it stands for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import Epoch, StartOnPlateau

K, BATCH, STEPS, EPOCHS = 3, 4, 5, 4  # steps per epoch

keras.config.set_floatx("float64")

X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 6))
Y = np.random.default_rng(1).normal(size=(STEPS * BATCH, 2))


def made(start, rule="adam", **options):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, "tanh"), late_phase.keras.Dense(2, members=K)]
    )
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.get({"class_name": rule, "config": {"learning_rate": 0.05}}),
        members=K,
        start=start,
        sigma=0.25,
    )
    model.compile(optimizer, "mse", **options)
    return model


def fit(model, callbacks=(), **options):
    return model.fit(
        X,
        Y,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


def expect_equal(model, expected):
    for weight, other in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(weight, other, err_msg=weight.path)
    assert int(model.optimizer.member.numpy()) == int(expected.optimizer.member.numpy())


@pytest.mark.parametrize(
    "start, step, rule, options",
    [
        ("60%", 12, "adam", {}),
        ("12.5%", 2, "adamax", {}),  # not fused
        (Epoch(1), 5, "adam", dict(run_eagerly=True)),
        (Epoch(np.int64(3)), 15, "sgd", dict(steps_per_execution=3)),
        (np.int64(7), 7, "adam", {}),
    ],
)
def test_a_start_is_its_step(start, step, rule, options):
    expected, model = made(step, rule), made(start, rule, **options)
    fit(expected)
    fit(model)
    assert model.optimizer.start == step
    expect_equal(model, expected)
    assert np.ptp(model.layers[-1].kernel, axis=0).any()


@pytest.mark.parametrize("rule", ["adam", "adamax"])
def test_spawn_is_a_start_at_that_step(rule):
    expected, model = made(7, rule), made(None, rule)
    for step in range(13):
        part = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
        if step == 7:
            assert (
                model.optimizer.start is None and not np.ptp(model.layers[-1].kernel, axis=0).any()
            )
            model.optimizer.spawn()
        for each in (expected, model):
            each.train_on_batch(X[part], Y[part])
    assert model.optimizer.start == 7
    expect_equal(model, expected)


def test_spawn_starts_from_the_mean_of_rows_from_elsewhere():
    model, expected = made(None), made(None)
    rows = np.random.default_rng(3).normal(size=(K, 4, 2))
    for each, kernel in ((model, rows), (expected, rows.mean(axis=0)[np.newaxis].repeat(K, 0))):
        fit(each)
        each.layers[-1].kernel.assign(kernel)
        each.optimizer.spawn()
    np.testing.assert_allclose(
        model.layers[-1].kernel, expected.layers[-1].kernel, rtol=0, atol=1e-12
    )


def test_a_second_fit_does_not_plan_anew():
    model = made("50%", run_eagerly=True)  # asks in every step, not only while it is traced
    fit(model)
    assert model.optimizer.start == 10
    model.fit(X, Y, batch_size=BATCH, epochs=2 * EPOCHS, verbose=0)
    assert model.optimizer.start == 10


def test_spawn_under_a_strategy():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = made(None)
    fit(model)
    model.optimizer.spawn()
    assert model.optimizer.start == STEPS * EPOCHS and np.ptp(model.layers[-1].kernel, axis=0).any()


@pytest.mark.parametrize("saved_after", [1, 3])
def test_a_saved_start_is_kept(tmp_path, saved_after):
    """Before and after the members have started, at epoch 2."""
    whole, part = made(Epoch(2)), made(Epoch(2))
    fit(whole)
    part.fit(X, Y, batch_size=BATCH, epochs=saved_after, shuffle=False, verbose=0)
    part.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(tmp_path / "model.keras")
    assert resumed.optimizer.start == 2 * STEPS
    assert resumed.optimizer.get_config()["start"]["config"] == {"number": 2}
    fit(resumed, initial_epoch=saved_after)
    expect_equal(resumed, whole)


class Logged(keras.callbacks.Callback):
    """Makes `fit` log given values; it comes first."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["figure"] = self.values[epoch]


@pytest.mark.parametrize(
    "values, options, epochs",
    [
        ([5, 4, 4, 4], dict(patience=1), 3),
        ([5, 4, 4, 4], dict(patience=2), 4),
        ([5, 4.5, 4.2, 3], dict(patience=1, min_delta=1), 2),
        ([1, 2, 2, 3], dict(patience=1, mode="max"), 3),
        ([1, 2, 2, 3], dict(patience=2, mode="min"), 3),
    ],
)
def test_plateau(values, options, epochs):
    expected, model = made(epochs * STEPS), made(None)
    fit(expected)
    fit(model, [Logged(values), StartOnPlateau("figure", **options)])
    assert model.optimizer.start == epochs * STEPS
    expect_equal(model, expected)


@pytest.mark.parametrize("values, patience", [([4, 3, 2, 1], 1), ([4, 4, 3, 3], 2)])
def test_a_metric_that_keeps_improving_starts_nothing(values, patience):
    model = made(None)
    with pytest.warns(UserWarning, match="Training ended before `start`.*Received: start=None"):
        fit(model, [Logged(values), StartOnPlateau("figure", patience=patience)])
    assert model.optimizer.start is None


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: made("60"), "`start` must be an integer.*Received: start='60'"),
        (lambda: made("0%"), "`start` must be an integer.*Received: start='0%'"),
        (lambda: made("x%"), "`start` must be an integer.*Received: start='x%'"),
        (lambda: made(True), "`start` must be an integer.*Received: start=True"),
        (lambda: made(2.0), "`start` must be an integer.*Received: start=2.0"),
        (lambda: Epoch(0), "`number` must be an integer of at least 1. Received: number=0"),
        (lambda: StartOnPlateau(patience=0), "`patience` must be.*Received: patience=0"),
        (lambda: StartOnPlateau(min_delta=-1),
         "`min_delta` must be at least 0. Received: min_delta=-1"),
        (lambda: StartOnPlateau(mode="auto"),
         "`mode` must be 'min' or 'max'. Received: mode='auto'"),
        (lambda: made("60%").train_on_batch(X, Y),
         "if the length of the training is not known.*Received: start='60%'"),
        (lambda: made(3).optimizer.spawn(), "`start` must be None.*Received: start=3, members=3"),
        (lambda: made(None).optimizer.spawn(), "The optimizer must be built"),
        (lambda: fit(made(3), [StartOnPlateau()]),
         "with start=None.*Received: LatePhaseOptimizer, start=3"),
        (lambda: fit(made(None), [StartOnPlateau()]),
         "`monitor` must be a metric.*: loss. Received: monitor='val_loss'"),
    ],
)  # fmt: skip
def test_wrong_use_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_members_start_once():
    model = made(None)
    fit(model)
    model.optimizer.spawn()
    with pytest.raises(ValueError, match="must not have started yet. Received: start=20"):
        model.optimizer.spawn()
