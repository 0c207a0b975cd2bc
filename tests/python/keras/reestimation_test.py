"""BatchNorm statistics that are estimated again, against numpy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from tests.support.keras_trainings import data, failing, late_norm, state


def scattered(model):
    """Gives all weights, and so all members, values of their own."""
    random = np.random.default_rng(3)
    for weight in model.weights:
        if "seed" not in weight.name:
            weight.assign(random.uniform(0.3, 1.5, weight.shape))
    return model


def in_batches(x, *sizes):
    ends = np.cumsum(sizes)
    return [x[end - size : end] for size, end in zip(sizes, ends)]


def statistics(layer):
    return np.array(layer.moving_mean), np.array(layer.moving_variance)


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
