"""LatePhaseOptimizer in unusual places, and what it says when it is used wrongly."""

import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K, BATCH, INPUTS, CLASSES = 3, 8, 5, 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X = np.random.default_rng(0).normal(size=(4 * BATCH, INPUTS)).astype("float32")
Y = np.random.default_rng(1).integers(0, CLASSES, 4 * BATCH)

Late = late_phase.keras.LatePhaseOptimizer


def make_model(members=K):
    keras.utils.set_random_seed(1)
    head = (
        late_phase.keras.Dense(CLASSES, members=members) if members else keras.layers.Dense(CLASSES)
    )
    return keras.Sequential([keras.Input((INPUTS,)), keras.layers.Dense(7), head])


def fit(model):
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)


def built(members=K, **options):
    model, optimizer = (
        make_model(members),
        Late(keras.optimizers.SGD(0.1), members=members, **options),
    )
    optimizer.build(model.trainable_variables)
    return model, optimizer


def ones(variable, optimizer):
    """A gradient, of the current member if there are members."""
    if not hasattr(variable, "late_phase_members"):
        return tf.ones_like(variable.value)
    return tf.IndexedSlices(tf.ones((1, *variable.shape[1:])), optimizer.member.value[tf.newaxis])


@pytest.mark.parametrize("members", [1, K])
def test_no_gradient_at_all_is_an_error_and_no_step(members):
    model, optimizer = built(members)
    with pytest.raises(
        ValueError,
        match="At least one variable must have a gradient.*None for all of .*kernel, .*bias",
    ):
        optimizer.apply([None] * 4, model.trainable_variables)
    assert int(optimizer.iterations.numpy()) == 0 and int(optimizer.member.numpy()) == 0


@pytest.mark.parametrize("given", [True, False], ids=["with variables", "without"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_too_few_or_too_many_gradients_are_an_error(count, given):
    model, optimizer = built()
    message = (
        "There must be a gradient, or None, for each variable. "
        f"Received: {count} gradients, 4 variables"
    )
    with pytest.raises(ValueError, match=message):
        optimizer.apply([tf.constant(0.0)] * count, model.trainable_variables if given else None)
    assert int(optimizer.iterations.numpy()) == 0


def test_a_gradient_of_another_shape_is_an_error_and_no_step():
    """Found before any weight has been updated with the others."""
    model, optimizer = built()
    before = model.get_weights()
    gradients = [ones(v, optimizer) for v in model.trainable_variables]
    shape = list(model.trainable_variables[0].shape)
    gradients[0] = tf.ones([*shape, 2])
    with pytest.raises(ValueError, match="must have the shape of its variable. Received: .* for"):
        optimizer.apply(gradients, model.trainable_variables)
    for weight, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)
    assert int(optimizer.iterations.numpy()) == 0


def test_variables_without_a_gradient_are_named_and_stay():
    model, optimizer = built()
    before = model.get_weights()
    gradients = [ones(v, optimizer) for v in model.trainable_variables]
    with pytest.warns(UserWarning, match="Received: None for .*dense.*/bias$"):
        optimizer.apply([gradients[0], None, *gradients[2:]], model.trainable_variables)
    np.testing.assert_array_equal(model.get_weights()[1], before[1])


def test_an_empty_list_is_no_step():
    _, optimizer = built()
    optimizer.apply([])
    assert int(optimizer.iterations.numpy()) == 0


def test_a_config_has_every_argument():
    given = dict(members=K, start=5, sigma=0.25, base_scale=0.5, seed=7, base_rate_scale=2.0)
    optimizer = Late(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01), name="own", **given)
    config = optimizer.get_config()
    arguments = inspect.signature(Late.__init__).parameters.keys() - {"self", "kwargs"}
    assert config.keys() == arguments
    assert {name: config[name] for name in given} == given and config["name"] == "own"
    assert Late.from_config(config).get_config() == config


def test_a_config_makes_an_optimizer_that_is_saved_whole(tmp_path):
    config = keras.optimizers.serialize(Late(keras.optimizers.Adam(0.01), members=K, start=1))
    model = make_model()
    model.compile(config, LOSS)
    fit(model)
    assert sum(v is model.optimizer.member for v in model.optimizer.variables) == 1
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # "Skipping variable loading for optimizer"
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.member.numpy()) == int(model.optimizer.member.numpy()) == 0
    assert int(loaded.optimizer.iterations.numpy()) == 4


@pytest.mark.parametrize(
    "make", [keras.optimizers.Adam, keras.optimizers.RMSprop], ids=["fused", "wrapped"]
)
def test_h5_holds_the_weights_of_a_trained_model(tmp_path, make):
    model = make_model()
    model.compile(Late(make(0.01), members=K, start=1), LOSS)
    fit(model)
    model.save(tmp_path / "model.h5")
    loaded = keras.models.load_model(tmp_path / "model.h5", compile=False)
    np.testing.assert_array_equal(loaded(X), model(X))
    with pytest.raises(ValueError, match="of a whole model from .h5 needs compile=False"):
        keras.models.load_model(tmp_path / "model.h5")


def test_too_short_a_training_is_said_once():
    model = make_model()
    model.compile(Late(keras.optimizers.SGD(0.1), members=K, start=100), LOSS)
    with pytest.warns(UserWarning, match="training ended after 4 steps"):
        fit(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model)


def test_frozen_members_are_named_as_the_reason():
    model = make_model()
    model.layers[-1].trainable = False
    model.compile(Late(keras.optimizers.SGD(0.1), members=K), LOSS)
    message = (
        r"do not freeze all of them \(trainable=False\).*Received: 2 variables without members"
    )
    with pytest.raises(ValueError, match=message):
        fit(model)


def test_plain_variables_are_trained_as_base_weights(tmp_path):
    plain = make_model(members=0)
    plain.export(tmp_path / "saved", verbose=False)
    features = tf.saved_model.load(tmp_path / "saved")
    head = late_phase.keras.Dense(CLASSES, members=K)
    head.build((None, CLASSES))
    variables = [*features.trainable_variables, *head.trainable_variables]
    assert not isinstance(variables[0], keras.Variable)
    for make in (keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.RMSprop):
        optimizer = Late(make(0.1), members=K, base_scale=1 / K)
        optimizer.build(variables)
        before = [v.numpy() for v in variables]
        for step in range(K):
            with tf.GradientTape() as tape:
                loss = LOSS(Y, head(features.serve(X), training=True))
            optimizer.apply(tape.gradient(loss, variables), variables)
            assert all(np.array_equal(v.numpy(), old) for v, old in zip(variables[:4], before)) == (
                step < K - 1
            )
    variable = tf.Variable([1.0, 2.0])
    Late(keras.optimizers.SGD(0.5)).apply([tf.constant([1.0, 1.0])], [variable])
    np.testing.assert_array_equal(variable.numpy(), [0.5, 1.5])


def test_values_that_gradients_overwrite():
    """As float8 layers have them: scales that a minibatch computes."""
    model = make_model()
    scale = keras.Variable([1.0], name="scale")
    scale.overwrite_with_gradient = True
    optimizer = Late(keras.optimizers.Adam(0.1), members=K)
    variables = [*model.trainable_variables, scale]
    optimizer.build(variables)
    assert not any("scale" in v.path for v in optimizer.variables)
    before = model.layers[0].kernel.numpy()
    for t in range(2):
        optimizer.apply(
            [*(ones(v, optimizer) for v in model.trainable_variables), tf.constant([5.0 + t])],
            variables,
        )
        np.testing.assert_array_equal(scale.numpy(), [5.0 + t])
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), before)  # the cycle is not over


@pytest.mark.parametrize("members, compiled", [(0, False), (K, True)])
def test_a_first_step_inside_of_strategy_run_says_what_to_do(members, compiled):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model, optimizer = (
            make_model(members),
            Late(keras.optimizers.SGD(0.1), members=members or 1),
        )
        if compiled:
            model.compile(optimizer, LOSS)

    def step():
        with tf.GradientTape() as tape:
            loss = LOSS(Y, model(X, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    with pytest.raises(
        ValueError,
        match="built before its first step in `strategy.run`.*Received: .*OneDeviceStrategy.run",
    ):
        strategy.run(step)
    with strategy.scope():
        optimizer.build(model.trainable_variables)
    strategy.run(step)
    assert int(optimizer.iterations.numpy()) == 1


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_plain_layers_compile_under_xla(make):
    models = make_model(members=0), make_model(members=0)
    models[0].compile(Late(make(0.1)), LOSS, jit_compile=True)
    models[1].compile(make(0.1), LOSS)
    for model in models:
        fit(model)
    assert models[0].jit_compile
    for weight, expected in zip(models[0].weights, models[1].weights):
        np.testing.assert_allclose(
            weight.numpy(), expected.numpy(), rtol=0, atol=1e-6
        )  # some 30 roundings of XLA's


def test_a_layer_of_ones_own_trains_under_xla():
    class Own(late_phase.keras.MemberLayer):
        def build(self, shape):
            self.bias = self.add_member_weight((INPUTS,), "zeros", name="bias")

        def call(self, x, training=False):
            return x + self.row(self.bias, training)

    model = keras.Sequential([keras.Input((INPUTS,)), Own(K)])
    model.compile(Late(keras.optimizers.SGD(0.1), members=K), LOSS, jit_compile=True)
    fit(model)
    assert model.jit_compile and model.layers[0].bias.numpy().any()
