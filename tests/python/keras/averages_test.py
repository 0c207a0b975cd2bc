"""What SWA averages, and when it takes its samples, against definitions in double precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import SWA, Epoch

keras.config.set_floatx("float64")

STEPS, EPOCHS, BATCH, RATE = 5, 6, 4, 0.1  # steps per epoch
K = 3

X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4))
Y = np.random.default_rng(1).normal(size=(STEPS * BATCH, 2))


def made(**options):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)]
    )
    model.compile(keras.optimizers.SGD(RATE), "mse", **options)
    return model


class Steps(keras.callbacks.Callback):
    """All weights, as one vector, before the first step and after every step."""

    def on_train_begin(self, logs=None):
        self.after = [self._weights()]

    def on_train_batch_end(self, batch, logs=None):
        self.after.append(self._weights())

    def _weights(self):
        return vector(self.model)


def vector(model):
    return np.concatenate([np.ravel(v) for v in model.trainable_variables])


def fit(model, callbacks, epochs=EPOCHS, **options):
    model.fit(
        X,
        Y,
        batch_size=BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        **options,
    )


def averaged(swa, model):
    with swa.averaged():
        return vector(model)


# --- when


@pytest.mark.parametrize(
    "start, frequency, sampled",
    [
        (7, 3, range(10, 31, 3)),
        (np.int64(0), np.int64(1), range(1, 31)),
        (Epoch(4), 5, [25, 30]),
        ("50%", 4, [19, 23, 27]),
        (29, 1, [30]),
        (12, Epoch(1), [20, 25, 30]),  # begins with the epoch that begins after it
        (10, Epoch(2), [20, 30]),
        ("50%", Epoch(1), [20, 25, 30]),
        ("60%", Epoch(1), [25, 30]),  # of 18 steps, in the middle of the fourth epoch
        (Epoch(np.int64(2)), Epoch(3), [25]),
    ],
)
def test_samples(start, frequency, sampled):
    model, steps, swa = made(), Steps(), SWA(start, frequency)
    fit(model, [steps, swa])
    assert swa.samples == len(sampled)
    expected = np.mean([steps.after[step] for step in sampled], axis=0)
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-13)


@pytest.mark.parametrize("start, frequency", [(10, 10), ("50%", 5), (Epoch(2), 5)])
def test_several_steps_per_execution(start, frequency):
    plain, model = made(), made(steps_per_execution=5)
    swa, other = SWA(start, frequency), SWA(start, frequency)
    fit(plain, [swa])
    fit(model, [other])
    assert swa.samples == other.samples > 1
    np.testing.assert_allclose(averaged(other, model), averaged(swa, plain), rtol=1e-13)


def test_steps_are_the_optimizers():
    """A second `fit` continues the steps of the first, as a start of the optimizer does."""
    model, steps, swa = made(), Steps(), SWA(3 * STEPS + 1, 2)
    fit(model, [swa], epochs=3)
    assert swa.samples == 0
    fit(model, [steps, swa], epochs=2)
    expected = np.mean([steps.after[step] for step in (3, 5, 7, 9)], axis=0)
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-13)


@pytest.mark.parametrize("wrap", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_accumulated_gradients_are_of_steps_too(wrap):
    """Also where an epoch ends between two updates."""
    model, steps, swa = made(), Steps(), SWA(STEPS, 2)
    model.compile(wrap(keras.optimizers.SGD(0.05, gradient_accumulation_steps=3)), "mse")
    fit(model, [steps, swa], epochs=3)
    expected = np.mean(steps.after[STEPS + 2 :: 2], axis=0)
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-13)


def test_an_epoch_is_that_of_fit():
    model, steps, swa = made(), Steps(), SWA(Epoch(1), 2)
    fit(model, [swa], epochs=2)
    assert swa.samples == 2
    fit(model, [steps, swa], epochs=2)
    assert swa.samples == 2
    expected = np.mean([steps.after[step] for step in (7, 9)], axis=0)
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-13)


def test_members_are_sampled_by_step():
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), late_phase.keras.Dense(2, members=K)])
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.Adam(0.01), members=K, start=Epoch(2), sigma=0.1
    )
    model.compile(optimizer, "mse")
    steps, swa = Steps(), SWA(Epoch(2), K)  # once per cycle
    fit(model, [steps, swa])
    expected = np.mean(steps.after[2 * STEPS + K :: K], axis=0)
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-13)
    assert np.ptp(model.layers[0].kernel.numpy(), axis=0).any()


def test_a_loop_of_ones_own():
    model, expected = made(), []
    swa = SWA(3, 2)
    swa.set_model(model)
    for epoch in range(2):
        swa.on_epoch_begin(epoch)
        for batch in range(STEPS):
            part = slice(batch * BATCH, (batch + 1) * BATCH)
            model.train_on_batch(X[part], Y[part])
            swa.on_train_batch_end(batch)
            expected.append(vector(model))
        swa.on_epoch_end(epoch)
    np.testing.assert_allclose(
        averaged(swa, model), np.mean([expected[i] for i in (4, 6, 8)], axis=0), rtol=1e-13
    )


def test_a_sampling_by_epochs_leaves_steps_asynchronous():
    """Keras runs callbacks beside the steps if none of them does anything after a batch."""
    assert SWA(0).async_safe and not SWA(0, 1).async_safe


# --- what


def test_equal_weights_without_a_window_are_the_mean():
    model, steps, swa = made(), Steps(), SWA(0, 1)
    fit(model, [steps, swa])
    np.testing.assert_allclose(averaged(swa, model), np.mean(steps.after[1:], axis=0), rtol=1e-13)


@pytest.mark.parametrize("momentum", [0.9, np.float64(0.5)])
def test_a_number_is_an_exponential_moving_average(momentum):
    model, steps, swa = made(), Steps(), SWA(5, 1, weights=momentum)
    fit(model, [steps, swa])
    expected = steps.after[6]
    for sample in steps.after[7:]:
        expected = momentum * expected + (1 - momentum) * sample
    assert swa.samples == len(steps.after) - 6
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-12)


def test_it_is_the_moving_average_of_keras():
    model, swa, other = made(), SWA(0, 1, weights=0.8), made()
    other.compile(keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.8), "mse")
    fit(model, [swa])
    fit(other, [])  # ends with the average in the weights
    np.testing.assert_allclose(averaged(swa, model), vector(other), rtol=1e-12)


@pytest.mark.parametrize("window", [1, 4, np.int64(100)])
def test_a_window_is_the_mean_of_the_latest(window):
    model, steps, swa = made(), Steps(), SWA(0, 1, window=window)
    fit(model, [steps, swa])
    latest = steps.after[1:][-window:]
    assert swa.samples == len(latest)
    np.testing.assert_allclose(averaged(swa, model), np.mean(latest, axis=0), rtol=1e-13)


DECAYS = {
    "equal": lambda t: 1 - t,
    "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
    "1-sqrt": lambda t: 1 - np.sqrt(t),
    "own": lambda t: (1 - t) ** 2,
}


@pytest.mark.parametrize("window", [7, 100])
@pytest.mark.parametrize("name", DECAYS)
def test_a_decay_is_that_of_the_learning_rate(name, window):
    """Merged weights are those of steps from the window's first sample at a rate that decays.

    The gradients are those of the training, at its constant rate, as the rate of a step changes
    nothing that came before it.
    """
    decay = DECAYS[name]
    model, steps = made(), Steps()
    swa = SWA(0, 1, window=window, weights=decay if name == "own" else name)
    fit(model, [steps, swa])
    latest = steps.after[1:][-window:]
    n = len(latest)
    expected = latest[0] + sum(decay(i / n) * (latest[i] - latest[i - 1]) for i in range(1, n))
    np.testing.assert_allclose(averaged(swa, model), expected, rtol=1e-12)
    uniform = np.mean(latest, axis=0)
    assert (name == "equal") == np.allclose(expected, uniform, rtol=1e-9)


def test_samples_are_copies():
    """Kept while training changes the variables in place."""
    model, swa = made(), SWA(0, window=2)
    swa.set_model(model)
    for epoch, value in enumerate((1.0, 3.0)):
        for variable in model.trainable_variables:
            variable.assign(tf.ones_like(variable) * value)
        swa.on_epoch_begin(epoch)
        swa.on_epoch_end(epoch)
    for variable in model.trainable_variables:
        variable.value.assign_add(tf.ones_like(variable) * 50)
    np.testing.assert_array_equal(averaged(swa, model), 2.0)


@pytest.mark.parametrize(
    "options", [dict(window=3), dict(window=2, weights="1-sqrt"), dict(weights=0.5)]
)
def test_half_types_are_averaged_in_float(options):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, use_bias=False, dtype="bfloat16")]
    )
    swa = SWA(0, **options)
    swa.set_model(model)
    values = [1.0, 1.0078125]  # neighbours in bfloat16
    for epoch, value in enumerate(values):
        model.layers[0].kernel.assign(np.full((4, 1), value))
        swa.on_epoch_begin(epoch)
        swa.on_epoch_end(epoch)
    average = np.array(swa._average.values()[0])
    part = 1 - np.sqrt(0.5) if options.get("weights") == "1-sqrt" else 0.5
    assert average.dtype == np.float32
    np.testing.assert_allclose(average, values[0] + part * 0.0078125, rtol=1e-7)


# --- resuming


KINDS = [
    dict(start=0, frequency=1),
    dict(start=7, frequency=3, window=4, weights="cosine"),
    dict(start=Epoch(1), frequency=2, weights=0.9),
    dict(start="20%", window=2),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epochs", [2, 4])
def test_an_interrupted_average_is_that_of_one_training(kind, epochs, tmp_path):
    model, swa = made(), SWA(**kind)
    fit(model, [swa])
    expected = averaged(swa, model)
    folder = tmp_path / "swa"
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "weights"), delete_checkpoint=False)

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == epochs:
                raise KeyboardInterrupt

    model = made()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [SWA(**kind, backup_dir=folder), backup, Stop()])
    model, swa = made(), SWA(**kind, backup_dir=folder)
    fit(model, [swa, backup])
    np.testing.assert_array_equal(averaged(swa, model), expected)


def test_samples_that_were_lost_are_refused(tmp_path):
    """Weights that are ahead of the average, by more than the sample of their last step."""
    model = made()
    fit(model, [SWA(0, 1, backup_dir=tmp_path)], epochs=2)
    fit(model, [], epochs=3, initial_epoch=2)
    message = (
        "must hold the average after step 15 for training to resume at epoch 4.*"
        "averages after steps 5, 10"
    )
    with pytest.raises(ValueError, match=message):
        fit(model, [SWA(0, 1, backup_dir=tmp_path)], initial_epoch=3)


def test_a_file_of_version_0_1_is_read(tmp_path):
    """It lacks the position of its last sample, which was always at the end of its epoch."""
    model, other = made(), made()
    swa, once = SWA(0, backup_dir=tmp_path), SWA(0)
    fit(model, [swa], epochs=2)
    with np.load(tmp_path / "swa-000001.npz") as content:
        arrays = {name: content[name] for name in content.files if name != "position"}
    np.savez(tmp_path / "swa-000001.npz", **arrays)
    swa = SWA(0, backup_dir=tmp_path)
    fit(model, [swa], initial_epoch=2)
    fit(other, [once])
    np.testing.assert_array_equal(averaged(swa, model), averaged(once, other))


def test_a_lost_sample_of_the_last_step_is_taken(tmp_path):
    model, other = made(), made()
    swa, once = SWA(0, STEPS, backup_dir=tmp_path), SWA(0, STEPS)
    fit(model, [swa], epochs=2)
    fit(model, [], epochs=3, initial_epoch=2)
    swa = SWA(0, STEPS, backup_dir=tmp_path)
    fit(model, [swa], epochs=4, initial_epoch=3)
    fit(other, [once], epochs=4)
    np.testing.assert_array_equal(averaged(swa, model), averaged(once, other))


# --- wrong use


def without_size():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    return data.filter(lambda x, y: True)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SWA(None), "`start` must be.*or a late_phase.keras.Epoch. Received: start=None"),
        (lambda: SWA("120%"), "`start` must be.*Received: start='120%'"),
        (lambda: SWA(0, 1.5), "`frequency` must be.*Received: frequency=1.5"),
        (lambda: SWA(0, "10%"), "`frequency` must be.*Received: frequency='10%'"),
        (lambda: SWA(0, window=0),
         "`window` must be an integer of at least 1, or None. Received: window=0"),
        (lambda: SWA(0, window=True), "`window` must be.*Received: window=True"),
        (lambda: SWA(0, weights="linear"), "`weights` must be 'equal'.*Received: weights='linear'"),
        (lambda: SWA(0, weights=1.0),
         "`weights` must be.*a number in .0, 1..*Received: weights=1.0"),
        (lambda: SWA(0, weights=[0.5, 0.5]), r"`weights` must be.*Received: weights=\[0.5, 0.5\]"),
        (lambda: SWA(0, weights="1-sqrt"),
         "`window` must be given.*Received: window=None, weights='1-sqrt'"),
        (lambda: SWA(0, window=3, weights=0.9),
         "`window` must be None for an exponential.*Received: window=3, weights=0.9"),
        (lambda: SWA(0, window=3, weights=lambda t: t),
         "must fall from 1 at 0 to 0 at 1.*Received: 0.0 at 0, 1.0 at 1"),
        (lambda: fit(made(steps_per_execution=5), [SWA(0, 3)]),
         "multiples of `steps_per_execution`.*"
         "frequency=3, 5 steps an epoch, steps_per_execution=5"),
        (lambda: fit(made(steps_per_execution=5), [SWA(7, 5)]),
         "multiples of `steps_per_execution`.*start at step 7"),
        (lambda: made().fit(without_size(), epochs=2, verbose=0, callbacks=[SWA("50%")]),
         "if the length of the training is not known.*Received: start='50%'"),
        (lambda: made().fit(without_size(), epochs=2, verbose=0, callbacks=[SWA(7)]),
         "if the length of the training is not known.*Received: start=7"),
        (lambda: SWA(6, 2).apply(), "the first one is taken after step 8. Received: samples=0"),
        (lambda: SWA("50%").apply(),
         r"the first one is taken after start='50%' and frequency=Epoch\(1\)"),
    ],
)  # fmt: skip
def test_wrong_use_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_dataset_without_a_size_is_sampled_by_epochs_or_by_steps():
    for swa, samples in ((SWA(Epoch(1)), 2), (SWA(0, 1), 3 * STEPS)):
        made().fit(without_size(), epochs=3, verbose=0, callbacks=[swa])
        assert swa.samples == samples
