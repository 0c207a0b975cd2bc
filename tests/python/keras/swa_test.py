"""SWA and re-estimated BatchNorm statistics, against numpy and trainings that did without."""

import os
import re
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import Epoch

# Two replicas for tf.distribute; must be said before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

MEMBERS = 3


def late_norm(**options):
    return late_phase.keras.BatchNormalization(members=MEMBERS, **options)


def scattered(model):
    """Gives all weights, and so all members, values of their own."""
    random = np.random.default_rng(3)
    for weight in model.weights:
        if "seed" not in weight.name:
            weight.assign(random.uniform(0.3, 1.5, weight.shape))
    return model


def data(count=100, seed=1):
    random = np.random.default_rng(seed)
    return random.normal(1, 2, (count, 4)).astype("float32"), random.integers(0, 3, count)


def in_batches(x, *sizes):
    ends = np.cumsum(sizes)
    return [x[end - size : end] for size, end in zip(sizes, ends)]


def state(model):
    """Every bit of a model and of its optimizer."""
    optimizer = model.optimizer.variables if model.compiled else []
    return [np.array(v).tobytes() for v in [*model.variables, *optimizer]]


def statistics(layer):
    return np.array(layer.moving_mean), np.array(layer.moving_variance)


# --- reestimate_batch_norm


def reference_statistics(batches, first, second, epsilon):
    """In double: Dense, norm, ReLU, Dense, norm. `first`, `second`: kernel, bias, gamma, beta."""

    def through(batches, kernel, bias, gamma, beta):
        outputs, sums, count = [], [0, 0], 0
        for x in batches:
            x = x @ kernel + bias
            mean, variance = x.mean(axis=0), x.var(axis=0)
            outputs.append((x - mean) / np.sqrt(variance + epsilon) * gamma + beta)
            sums, count = [sums[0] + len(x) * mean, sums[1] + len(x) * variance], count + len(x)
        return outputs, [s / count for s in sums]

    outputs, one = through([np.float64(x) for x in batches], *first)
    _, two = through([np.maximum(x, 0) for x in outputs], *second)
    return one, two


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("norm", [keras.layers.BatchNormalization, late_norm])
def test_statistics_are_those_of_the_batches(norm, eagerly):
    block = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dropout(0.9), keras.layers.Dense(6), norm(epsilon=1e-2)]
    )
    model = keras.Sequential([
        keras.Input((4,)), keras.layers.Dense(5), norm(epsilon=1e-2, momentum=0.7),
        keras.layers.ReLU(), block, keras.layers.Dense(2),
    ])  # fmt: skip
    model.compile("sgd", "mse", run_eagerly=eagerly)
    scattered(model)
    norms = model.layers[1], block.layers[-1]
    batches = in_batches(data()[0], 17, 17, 3)
    first, second = (
        [np.float64(w) for w in dense.get_weights()] for dense in (model.layers[0], block.layers[1])
    )
    for weights, layer in ((first, norms[0]), (second, norms[1])):
        # What inference uses: of layers with members, the mean.
        rows = [np.float64(np.array(w)) for w in (layer.gamma, layer.beta)]
        weights += [w.mean(axis=0) for w in rows] if norm is late_norm else rows
    expected = reference_statistics(batches, first, second, 1e-2)
    others = [v for v in model.variables if "moving" not in v.name]
    before = [np.array(v).tobytes() for v in others]
    late_phase.keras.reestimate_batch_norm(model, [(x, None) for x in batches])
    for layer, pair in zip(norms, expected):
        for actual, value in zip(statistics(layer), pair):
            np.testing.assert_allclose(actual, np.broadcast_to(value, actual.shape), rtol=2e-5)
    assert before == [np.array(v).tobytes() for v in others]


def test_predictions_after_it_are_those_of_training_on_one_batch():
    """On a single batch, inference with its statistics is what training computes."""
    norm = keras.layers.BatchNormalization(axis=1)
    model = keras.Sequential(
        [keras.Input((4, 3, 2)), keras.layers.Conv2D(3, 2), norm, keras.layers.Conv2D(2, 2)]
    )
    scattered(model)
    x = np.random.default_rng(0).normal(size=(6, 4, 3, 2)).astype("float32")
    expected = model(x, training=True)
    late_phase.keras.reestimate_batch_norm(model, [(x,)])
    np.testing.assert_allclose(model(x), expected, rtol=0, atol=1e-4)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        x, y = data(50)
        return x[32 * i : 32 * i + 32], y[32 * i : 32 * i + 32]


X, Y = data(50)
FORMS = {
    "tf.data with labels": lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(32),
    "tf.data without": lambda: tf.data.Dataset.from_tensor_slices(X).batch(32),
    "PyDataset": Batches,
    "array": lambda: X,
    "arrays": lambda: (X, Y),
    "list of batches": lambda: [(X[:32], Y[:32]), (X[32:], Y[32:])],
    "generator": lambda: ((x,) for x in (X[:32], X[:0], X[32:])),
}


def one_norm(norm=keras.layers.BatchNormalization):
    return scattered(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), norm(), keras.layers.Dense(3)])
    )


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_data(form):
    model, other = one_norm(), one_norm()
    late_phase.keras.reestimate_batch_norm(model, FORMS[form]())
    late_phase.keras.reestimate_batch_norm(other, iter([X[:32], X[32:]]))
    for actual, expected in zip(statistics(model.layers[1]), statistics(other.layers[1])):
        np.testing.assert_array_equal(actual, expected)


def test_steps_end_the_pass():
    model, other = one_norm(), one_norm()
    late_phase.keras.reestimate_batch_norm(
        model, tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat(), steps=2
    )
    late_phase.keras.reestimate_batch_norm(other, X[:20].reshape(2, 10, 4).__iter__())
    for actual, expected in zip(statistics(model.layers[1]), statistics(other.layers[1])):
        np.testing.assert_array_equal(actual, expected)


def test_several_inputs_as_arrays():
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    norm = keras.layers.BatchNormalization()  # called twice: its statistics are of both
    model = keras.Model(inputs, [norm(inputs["a"]), norm(inputs["b"])])
    late_phase.keras.reestimate_batch_norm(model, {"a": X[:30], "b": X[:30] + 4})
    np.testing.assert_allclose(norm.moving_mean, X[:30].mean(axis=0) + 2, rtol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, X[:30].var(axis=0), rtol=1e-5)


def test_masked_places_do_not_count():
    inputs = keras.Input((6,), dtype="int32")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)
    norm = keras.layers.BatchNormalization()
    model = keras.Model(inputs, norm(embedded(inputs)))
    tokens = np.random.default_rng(4).integers(1, 9, (40, 6))
    tokens[:8, 3:] = tokens[2, 1:] = 0
    late_phase.keras.reestimate_batch_norm(model, tokens)
    table = np.float64(embedded.get_weights()[0])
    parts = [table[part[part > 0]] for part in (tokens[:32], tokens[32:])]
    np.testing.assert_allclose(
        norm.moving_mean, np.concatenate(parts).mean(axis=0), rtol=0, atol=1e-6
    )
    expected = sum(len(part) * part.var(axis=0) for part in parts) / sum(
        len(part) for part in parts
    )
    np.testing.assert_allclose(norm.moving_variance, expected, rtol=0, atol=1e-6)


def test_mixed_precision_keeps_statistics_in_float():
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    model = keras.Sequential(
        [keras.Input((4,)), late_norm(dtype=policy), keras.layers.Dense(2, dtype=policy)]
    )
    late_phase.keras.reestimate_batch_norm(model, X)
    np.testing.assert_allclose(
        np.array(model.layers[0].moving_mean)[1], X.mean(axis=0), rtol=0, atol=0.02
    )


def test_frozen_layers_keep_their_statistics():
    model = keras.Sequential([keras.Input((4,)), late_norm(), keras.layers.BatchNormalization()])
    scattered(model).layers[0].trainable = False
    before = state(model)
    late_phase.keras.reestimate_batch_norm(model, X)
    changed = {id(v) for v, a, b in zip(model.variables, before, state(model)) if a != b}
    assert changed == {id(model.layers[1].moving_mean), id(model.layers[1].moving_variance)}


def test_a_model_without_batch_norm_reads_no_data():
    def data():
        pytest.fail("read")
        yield

    late_phase.keras.reestimate_batch_norm(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), data()
    )


def failing(batches):
    yield from batches
    raise OSError("disk gone")


def test_a_failed_pass_changes_nothing():
    model = one_norm(late_norm)
    model.compile("sgd", "mse")
    before, predicted = state(model), model(X)
    with pytest.raises(OSError, match="disk gone"):
        late_phase.keras.reestimate_batch_norm(model, failing([X]))
    assert state(model) == before
    np.testing.assert_array_equal(model(X), predicted)


class Unreached(keras.Model):
    def __init__(self):
        super().__init__()
        self.used, self.unused = (
            keras.layers.BatchNormalization(name="used"),
            keras.layers.BatchNormalization(name="unused"),
        )
        self.unused.build((None, 4))

    def call(self, x):
        return self.used(x)


def called(model):
    model(X)
    return model


@pytest.mark.parametrize(
    "model, dataset, steps, message",
    [
        (one_norm, [], None, "`dataset` must have at least 1 batches. Received: 0 batches"),
        (one_norm, X[:0], None, "`dataset` must have at least 1 batches"),
        (one_norm, X, 3, "`dataset` must have at least 3 batches. Received: 2 batches"),
        (one_norm, X, 0, "`steps` must be an integer of at least 1, or None. Received: steps=0"),
        (
            one_norm,
            tf.data.Dataset.from_tensors(X).repeat(),
            None,
            "`steps` must be given for a dataset without end",
        ),
        (
            lambda: keras.Sequential([keras.layers.BatchNormalization()]),
            X,
            None,
            "`model` must be built",
        ),
        (
            lambda: keras.Sequential(
                [keras.Input((4,)), keras.layers.BatchNormalization(renorm=True)]
            ),
            X,
            None,
            "must be without `renorm`",
        ),
        (
            lambda: called(Unreached()),
            X,
            None,
            "must reach every BatchNormalization layer.*Received: no values in .*unused",
        ),
    ],
)
def test_wrong_data_explains_itself(model, dataset, steps, message):
    model = model()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        late_phase.keras.reestimate_batch_norm(model, dataset, steps)
    assert state(model) == before


# --- SWA


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


def stock_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def fit(model, callbacks, epochs=6, **options):
    """Five steps an epoch."""
    return model.fit(
        *data(),
        batch_size=20,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        **options,
    )


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


# --- going on after an interruption


class Killed(BaseException):
    pass


class Kill(keras.callbacks.Callback):
    def __init__(self, at, how):
        super().__init__()
        self._at, self._how = at, how

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._at:
            self._how()


def die():
    raise Killed


def averages(swa, model):
    with swa.averaged():
        return swa.samples, state(model)


@pytest.fixture(scope="module")
def uninterrupted():
    model, swa = stock_model(), late_phase.keras.SWA(Epoch(1), Epoch(2), dataset=data()[0])
    fit(model, [swa], epochs=7)
    return averages(swa, model)


ORDERS = {
    "weights first": lambda backup, swa, kill: [backup, kill, swa],
    "average first": lambda backup, swa, kill: [swa, kill, backup],
}


@pytest.mark.parametrize("at", [2, 4])  # the first sample, and the second
@pytest.mark.parametrize("order", ORDERS)
def test_killed_training_goes_on(order, at, tmp_path, uninterrupted):
    """Killed between the two files of an epoch, whichever comes first."""

    def run(how):
        model, swa = (
            stock_model(),
            late_phase.keras.SWA(
                Epoch(1), Epoch(2), dataset=data()[0], backup_dir=tmp_path / "swa"
            ),
        )
        backup = keras.callbacks.BackupAndRestore(tmp_path / "weights")
        fit(model, ORDERS[order](backup, swa, Kill(at, how)), epochs=7)
        return averages(swa, model)

    with pytest.raises(Killed):
        run(die)
    assert run(lambda: None) == uninterrupted


PROGRAM = """
import os, signal, sys
sys.path[:0] = {path!r}
import keras
import swa_test as t
import late_phase.keras

model = t.stock_model()
folder, data = {folder!r}, t.data()[0]
swa = late_phase.keras.SWA(t.Epoch(1), t.Epoch(2), dataset=data, backup_dir=folder + "/swa")
backup = keras.callbacks.BackupAndRestore(folder + "/weights")
t.fit(model, [swa, backup, t.Kill(5, lambda: os.kill(os.getpid(), signal.SIGKILL))], epochs=7)
"""


def test_process_killed_by_the_system_goes_on(tmp_path, uninterrupted):
    path = [os.path.dirname(os.path.abspath(__file__)), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(path=path, folder=str(tmp_path))],
        capture_output=True,
        text=True,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    model, swa = (
        stock_model(),
        late_phase.keras.SWA(Epoch(1), Epoch(2), dataset=data()[0], backup_dir=tmp_path / "swa"),
    )
    fit(model, [swa, keras.callbacks.BackupAndRestore(tmp_path / "weights")], epochs=7)
    assert averages(swa, model) == uninterrupted


def test_a_file_that_was_being_written_does_not_count(tmp_path, monkeypatch):
    model = stock_model()
    fit(model, [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)], epochs=2)
    before = state(model)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: die())
        with pytest.raises(Killed):
            fit(
                model,
                [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)],
                epochs=3,
                initial_epoch=2,
            )
    assert state(model) != before
    swa = late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)
    swa.set_model(model)
    swa.on_epoch_begin(2)
    assert swa.samples == 2
    swa.on_epoch_end(2)
    assert swa.samples == 3 and sorted(os.listdir(tmp_path)) == ["swa-000001.npz", "swa-000002.npz"]


def test_weights_whose_average_was_being_written_are_sampled(tmp_path, monkeypatch):
    """The file is torn, the weights are those of the epoch: its sample is taken on resuming."""
    model = stock_model()
    fit(model, [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)], epochs=2)

    def torn(file, **arrays):
        file.write(b"PK")
        file.flush()
        die()

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", torn)
        swa = late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)
        with pytest.raises(Killed):
            fit(model, [swa], epochs=3, initial_epoch=2)
    swa = late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)
    swa.set_model(model)
    swa.on_epoch_begin(3)
    assert swa.samples == 3
    assert sorted(os.listdir(tmp_path)) == ["swa-000001.npz", "swa-000002.npz"]


def test_an_old_average_does_not_enter_a_new_training(tmp_path, uninterrupted):
    for epochs in (5, 7):
        model, swa = (
            stock_model(),
            late_phase.keras.SWA(Epoch(1), Epoch(2), dataset=data()[0], backup_dir=tmp_path),
        )
        fit(model, [swa], epochs=epochs)
    assert averages(swa, model) == uninterrupted
    assert sorted(os.listdir(tmp_path)) == ["swa-000004.npz", "swa-000006.npz"]


@pytest.mark.parametrize("epoch", [2, 8])
def test_a_gap_between_average_and_weights_is_refused(epoch, tmp_path):
    model = stock_model()
    fit(model, [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)], epochs=4)
    kept = sorted(os.listdir(tmp_path))
    message = (
        f"must hold the average after epoch {epoch} for training to resume at epoch {epoch + 1}.*"
        "after epochs 3, 4"
    )
    with pytest.raises(ValueError, match=message):
        fit(
            model,
            [late_phase.keras.SWA(0, dataset=data()[0], backup_dir=tmp_path)],
            epochs=9,
            initial_epoch=epoch,
        )
    assert sorted(os.listdir(tmp_path)) == kept


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
            "`frequency` must be an integer of at least 1, of steps, or a late_phase.keras.Epoch. "
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
