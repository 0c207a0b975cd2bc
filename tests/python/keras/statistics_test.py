"""BatchNormalization's moving statistics: across `start`, and re-estimated by member or mean."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

# Two replicas for tf.distribute; must be said before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

START, MOMENTUM = 4, 0.8


@pytest.fixture(autouse=True)
def the_same_weights_in_every_run():
    keras.utils.set_random_seed(0)


def minibatches(count):
    """Minibatches whose statistics drift."""
    random = np.random.default_rng(0)
    return [random.normal(0.3 * t, 1 + 0.1 * t, (8, 3)).astype("float32") for t in range(count)]


def normaliser(members, **options):
    """Nothing but the statistics moves: the learning rate is 0."""
    norm = late_phase.keras.BatchNormalization(members=members, momentum=MOMENTUM, **options)
    model = keras.Sequential([keras.Input((3,)), norm])
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.0), members=members, start=START, sigma=0.1
    )
    model.compile(optimizer, "mse")
    return model, norm


def train(model, batches):
    for x in batches:
        model.train_on_batch(x, np.zeros_like(x))


def reference_rows(batches, members):
    """In double, [K, channels] each.

    Before `start` all rows follow every minibatch; then a row follows each K-th, K times as fast.
    """
    mean, variance = np.zeros((members, 3)), np.ones((members, 3))
    for t, x in enumerate(np.float64(x) for x in batches):
        rows = slice(None) if t < START else (t - START) % members
        kept = MOMENTUM if t < START else MOMENTUM**members
        mean[rows] = kept * mean[rows] + (1 - kept) * x.mean(axis=0)
        variance[rows] = kept * variance[rows] + (1 - kept) * x.var(axis=0)
    return mean, variance


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("steps", [START, START + 1, START + 11])
def test_rows_follow_the_minibatches_of_their_member(members, steps):
    model, norm = normaliser(members)
    batches = minibatches(steps)
    train(model, batches)
    for moving, expected in zip(
        (norm.moving_mean, norm.moving_variance), reference_rows(batches, members)
    ):
        np.testing.assert_allclose(moving.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("synchronized", [False, True])
def test_replicas_move_the_statistics_alike(strategy, synchronized):
    batches = minibatches(START + 5)
    with strategy.scope():
        model, norm = normaliser(3, synchronized=synchronized)
    train(model, batches)
    mean, variance = reference_rows(batches, 3)
    np.testing.assert_allclose(norm.moving_mean.numpy(), mean, rtol=1e-5, atol=1e-6)
    if synchronized:  # else they are of half a minibatch each
        np.testing.assert_allclose(norm.moving_variance.numpy(), variance, rtol=1e-5, atol=1e-6)


def test_the_mean_of_the_members_spans_as_many_minibatches_as_a_plain_layer():
    """Whole cycles after a step in the data, as much of it has arrived as in Keras's layer."""
    members, cycles = 5, 4
    model, norm = normaliser(members)
    plain = keras.Sequential(
        [keras.Input((3,)), keras.layers.BatchNormalization(momentum=MOMENTUM)]
    )
    plain.compile(keras.optimizers.SGD(0.0), "mse")
    noise = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    noise -= noise.mean(axis=0)
    batches = [noise] * START + [noise + 1] * (members * cycles)
    for some in (model, plain):
        train(some, batches)
    arrived = 1 - MOMENTUM ** (members * cycles)
    np.testing.assert_allclose(plain.layers[0].moving_mean, np.full(3, arrived), rtol=1e-5)
    np.testing.assert_allclose(
        late_phase.keras.collapse(model).layers[0].moving_mean, np.full(3, arrived), rtol=1e-5
    )


# --- re-estimation


def scattered(model):
    """Gives all weights, and so all members, values of their own."""
    random = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(random.uniform(0.3, 1.5, weight.shape))
    return model


def two_norms():
    norm = late_phase.keras.BatchNormalization
    return scattered(keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(5), norm(members=3, name="first"), keras.layers.ReLU(),
        late_phase.keras.Dense(6, members=3), norm(members=3, name="second"), keras.layers.Dense(2),
    ]))  # fmt: skip


def data(count=50):
    return np.random.default_rng(1).normal(1, 2, (count, 4)).astype("float32")


def member_alone(model, k):
    """The plain model of one member."""
    single = keras.models.clone_model(model)
    single.set_weights(
        [np.broadcast_to(w[k], w.shape) if w.shape[:1] == (3,) else w for w in model.get_weights()]
    )
    return late_phase.keras.collapse(single)


def statistics(layer):
    return layer.moving_mean.numpy(), layer.moving_variance.numpy()


def test_an_ensemble_gives_each_member_statistics_of_its_own():
    model, x = two_norms(), data()
    others = [(v, v.numpy()) for v in model.variables if "moving" not in v.name]
    ensemble = late_phase.keras.ensemble(model)
    late_phase.keras.reestimate_batch_norm(ensemble, x)
    for k in range(3):
        alone = member_alone(model, k)
        late_phase.keras.reestimate_batch_norm(alone, x)
        for name in ("first", "second"):
            for rows, expected in zip(
                statistics(model.get_layer(name)), statistics(alone.get_layer(name))
            ):
                np.testing.assert_allclose(rows[k], expected, rtol=1e-4)
    assert np.abs(np.diff(model.get_layer("second").moving_mean, axis=0)).min() > 1e-2
    for variable, before in others:
        np.testing.assert_array_equal(variable.numpy(), before)
    # Its predictions are the mean of those members'.
    expected = np.mean([member_alone(model, k)(x) for k in range(3)], axis=0)
    np.testing.assert_allclose(ensemble(x), expected, rtol=0, atol=1e-4)


def test_an_ensemble_leaves_out_masked_places():
    inputs = keras.Input((6,), dtype="int32")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)
    norm = late_phase.keras.BatchNormalization(members=3)
    model = keras.Model(inputs, norm(embedded(inputs)))
    tokens = np.random.default_rng(4).integers(1, 9, (20, 6))
    tokens[:8, 3:] = tokens[2, 1:] = 0
    late_phase.keras.reestimate_batch_norm(late_phase.keras.ensemble(model), tokens)
    values = np.float64(embedded.get_weights()[0])[tokens[tokens > 0]]
    for moving, expected in zip(statistics(norm), (values.mean(axis=0), values.var(axis=0))):
        np.testing.assert_allclose(moving, np.broadcast_to(expected, (3, 4)), rtol=0, atol=1e-6)


def test_collapse_reestimates_in_one_call():
    model, x = two_norms(), data()
    before = [v.numpy() for v in model.variables]
    plain, by_hand = late_phase.keras.collapse(model, dataset=x), late_phase.keras.collapse(model)
    old = statistics(by_hand.get_layer("second"))
    late_phase.keras.reestimate_batch_norm(by_hand, x)
    for name in ("first", "second"):
        for one, other in zip(
            statistics(plain.get_layer(name)), statistics(by_hand.get_layer(name))
        ):
            np.testing.assert_array_equal(one, other)
    assert np.abs(statistics(plain.get_layer("second"))[0] - old[0]).max() > 0.1
    for variable, value in zip(model.variables, before):
        np.testing.assert_array_equal(variable.numpy(), value)
    first = late_phase.keras.collapse(model, dataset=x, steps=1)
    late_phase.keras.reestimate_batch_norm(by_hand, x[:32])
    np.testing.assert_array_equal(
        first.get_layer("second").moving_mean, by_hand.get_layer("second").moving_mean
    )


@pytest.mark.parametrize(
    "wrap", [lambda model: model, late_phase.keras.ensemble], ids=["model", "ensemble"]
)
def test_a_batch_of_one_does_not_count(wrap):
    """33 samples are a batch of 32 and one of 1, which has no variance.

    In the second layer its mean would be the offset of the first.
    """
    model, other = two_norms(), two_norms()
    late_phase.keras.reestimate_batch_norm(wrap(model), data(33))
    late_phase.keras.reestimate_batch_norm(wrap(other), data(33)[:32])
    for one, two in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_array_equal(one, two)


def test_batches_of_one_are_refused():
    model = two_norms()
    before = model.get_weights()
    with pytest.raises(
        ValueError,
        match="must have at least two values per channel.*Received: batches with one in .*first",
    ):
        late_phase.keras.reestimate_batch_norm(
            model, tf.data.Dataset.from_tensor_slices(data()).batch(1)
        )
    for weight, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)


def test_batches_of_one_image_count():
    norm = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((5, 5, 3)), norm])
    images = np.random.default_rng(0).normal(2, 3, (4, 5, 5, 3)).astype("float32")
    late_phase.keras.reestimate_batch_norm(
        model, tf.data.Dataset.from_tensor_slices(images).batch(1)
    )
    np.testing.assert_allclose(norm.moving_mean, np.float64(images).mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(
        norm.moving_variance, np.float64(images).var(axis=(1, 2)).mean(axis=0), rtol=1e-5
    )
