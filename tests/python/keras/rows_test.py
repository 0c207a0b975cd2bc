"""Members that are there before training, by recompiling or loading: kept or averaged, not lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K, START, STEPS, BATCH, INPUTS, CLASSES = 3, 4, 3, 8, 5, 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, INPUTS))
Y = np.random.default_rng(1).integers(0, CLASSES, STEPS * BATCH)

keras.config.set_floatx("float64")


def make_model(momentum=1.0):
    """With moving statistics that do not move, unless told: so a rate of zero changes no output."""
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((INPUTS,)),
            keras.layers.Dense(7),
            late_phase.keras.BatchNormalization(members=K, momentum=momentum, epsilon=2.0**-10),
            keras.layers.ReLU(),
            late_phase.keras.Dense(CLASSES, members=K),
        ]
    )


def with_members(weights, seed=2):
    """The weights of a model, with members that differ."""
    random = np.random.default_rng(seed)
    return [w + 0.25 * random.uniform(size=w.shape) if w.shape[0] == K else w for w in weights]


RULES = {  # without state, so that a plain optimizer can take over at any step
    "fused": lambda rate: keras.optimizers.SGD(rate),
    "wrapped": lambda rate: keras.optimizers.SGD(rate, clipvalue=100.0),
}


def late_phase_optimizer(rate=0.0, start=START, rule="fused", **options):
    return late_phase.keras.LatePhaseOptimizer(RULES[rule](rate), members=K, start=start, **options)


def fit(model, optimizer):
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)


def own_loop(model, optimizer, wrap=tf.function):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    # One traced function for the model's life: what loading brings is not seen while tracing.
    if not hasattr(model, "own_step"):
        model.own_step = wrap(step)
    for t in range(STEPS):
        part = slice(t * BATCH, (t + 1) * BATCH)
        model.own_step(tf.constant(X[part]), tf.constant(Y[part]))


def eager_loop(model, optimizer):
    own_loop(model, optimizer, wrap=lambda step: step)


LOOPS = {"fit": fit, "own loop": own_loop, "eager loop": eager_loop}


def by_load_weights(model, folder):
    other = make_model()
    other.set_weights(with_members(other.get_weights()))
    other.save_weights(folder / "members.weights.h5")
    model.load_weights(folder / "members.weights.h5")


def by_set_weights(model, folder):
    model.set_weights(with_members(model.get_weights()))


def by_layers(model, folder):
    for layer in model.layers:
        layer.set_weights(with_members(layer.get_weights()))


def by_checkpoint(model, folder):
    other = make_model()
    other.set_weights(with_members(other.get_weights()))
    tf.train.Checkpoint(model=model).restore(
        tf.train.Checkpoint(model=other).save(folder / "checkpoint")
    )


WAYS = {
    "load_weights": by_load_weights,
    "set_weights": by_set_weights,
    "layers": by_layers,
    "checkpoint": by_checkpoint,
}


def prepare(model, rate, start, rule, moment, bring, folder, loop):
    """The model, with an optimizer, to which `bring` has brought members at some moment."""
    optimizer = late_phase_optimizer(rate, start, rule)
    if moment == "before compile":
        bring(model, folder)
    model.compile(optimizer, LOSS)
    if moment == "after compile":
        bring(model, folder)
    if moment in ("after build", "after steps") or loop != "fit":
        optimizer.build(model.trainable_variables)
    if moment == "after build":
        bring(model, folder)
    if moment == "after steps":
        LOOPS[loop](model, optimizer)
        bring(model, folder)
    return optimizer


@pytest.mark.parametrize(
    "way, loop, start, rule, moment",
    [
        ("load_weights", "fit", 100, "fused", "before compile"),
        ("load_weights", "fit", 100, "fused", "after compile"),
        ("load_weights", "own loop", 100, "wrapped", "after build"),
        ("load_weights", "fit", 100, "fused", "after steps"),
        ("set_weights", "own loop", 100, "fused", "after steps"),
        ("layers", "eager loop", 100, "wrapped", "after steps"),
        ("checkpoint", "own loop", 100, "fused", "after steps"),
        ("load_weights", "fit", 0, "fused", "before compile"),
        ("load_weights", "own loop", 0, "fused", "after build"),
        ("set_weights", "fit", 0, "wrapped", "after steps"),
    ],
)
def test_outputs_stay_at_a_learning_rate_of_zero(tmp_path, way, loop, start, rule, moment):
    model = make_model()
    optimizer = prepare(model, 0.0, start, rule, moment, WAYS[way], tmp_path, loop)
    before, expected = model.get_weights(), model(X).numpy()
    LOOPS[loop](model, optimizer)
    np.testing.assert_allclose(model(X), expected, rtol=0, atol=1e-12)
    for weight, old in zip(model.weights, before):
        if hasattr(weight, "late_phase_members"):
            assert np.ptp(old, axis=0).max() > 0.01  # there were members
            kept = old if start == 0 else np.broadcast_to(old.mean(axis=0), old.shape)
            np.testing.assert_allclose(weight.numpy(), kept, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "loop, rule, moment",
    [("fit", "fused", "before compile"), ("own loop", "wrapped", "after steps")],
)
def test_before_start_training_is_that_of_the_mean(tmp_path, loop, rule, moment):
    model = make_model(momentum=0.5)
    optimizer = prepare(model, 0.1, 100, rule, moment, by_load_weights, tmp_path, loop)
    plain = late_phase.keras.collapse(model)
    plain.compile(RULES[rule](0.1), LOSS)
    LOOPS[loop](model, optimizer)
    fit(plain, plain.optimizer)
    for weight, expected in zip(late_phase.keras.collapse(model).weights, plain.weights):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("start", [0, 2])
def test_training_anew_starts_from_the_members(start):
    model = make_model()
    model.compile(late_phase_optimizer(0.1, start=0, sigma=0.25), LOSS)
    fit(model, model.optimizer)
    trained = model(X).numpy()
    rows = model.layers[-1].kernel.numpy()
    assert not np.allclose(rows[0], rows[1])
    model.compile(late_phase_optimizer(0.0, start=start), LOSS)
    fit(model, model.optimizer)
    np.testing.assert_allclose(model(X), trained, rtol=0, atol=1e-12)
    if start == 0:
        np.testing.assert_array_equal(model.layers[-1].kernel.numpy(), rows)


def test_equal_rows_are_spawned_at_zero():
    model = make_model()
    model.compile(late_phase_optimizer(0.0, start=0, sigma=0.25), LOSS)
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    assert len({row.tobytes() for row in model.layers[-1].kernel.numpy()}) == K


def test_members_restored_before_the_optimizer_is_built_are_not_spawned_again(tmp_path):
    model, optimizer = make_model(), late_phase_optimizer(0.1, start=0, sigma=0.25)
    optimizer.build(model.trainable_variables)
    own_loop(model, optimizer)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "checkpoint")
    restored, later = make_model(), late_phase_optimizer(0.1, start=0, sigma=0.25)
    tf.train.Checkpoint(model=restored, optimizer=later).restore(path)
    later.build(restored.trainable_variables)
    for weight, expected in zip(restored.weights, model.weights):
        np.testing.assert_array_equal(weight.numpy(), expected.numpy())


def test_members_loaded_after_start_are_kept(tmp_path):
    model = make_model()
    model.compile(late_phase_optimizer(0.0, start=1), LOSS)
    fit(model, model.optimizer)
    by_load_weights(model, tmp_path)
    before = model.get_weights()
    fit(model, model.optimizer)
    for weight, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)


def test_a_step_asks_once_whether_rows_came_from_elsewhere():
    """And not once per weight that it reads, which large models would feel."""
    model, optimizer = make_model(), late_phase_optimizer()
    model.compile(optimizer, LOSS)
    optimizer.build(model.trainable_variables)
    call = tf.function(lambda x: model(x, training=True)).get_concrete_function(
        tf.TensorSpec((BATCH, INPUTS), tf.float64)
    )
    assert [op.type for op in call.graph.get_operations()].count("If") == 1
