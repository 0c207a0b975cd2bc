"""LatePhaseOptimizer against a plain loop of Algorithm 1 and the Keras optimizers it wraps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from tests.support import algorithm_1
from tests.support.algorithm_1 import BETA1, BETA2, EPSILON, MOMENTUM, RATE

K, START, CYCLES = 3, 4, 3
STEPS = START + CYCLES * K + 2  # the last cycle is cut short
INPUTS, HIDDEN, CLASSES, BATCH = 5, 7, 4, 8

keras.config.set_floatx("float64")


def data(steps=STEPS):
    random = np.random.default_rng(0)
    return random.normal(size=(steps * BATCH, INPUTS)), random.integers(0, CLASSES, steps * BATCH)


def make_model(members=K, seed=1):
    keras.utils.set_random_seed(seed)
    head = (
        late_phase.keras.Dense(CLASSES, members=members, name="head")
        if members
        else keras.layers.Dense(CLASSES, name="head")
    )
    return keras.Sequential(
        [keras.Input((INPUTS,)), keras.layers.Dense(HIDDEN, activation="tanh", name="hidden"), head]
    )


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

RULES = {
    "sgd": lambda: keras.optimizers.SGD(RATE),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=MOMENTUM),
    "nesterov": lambda: keras.optimizers.SGD(RATE, momentum=MOMENTUM, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(RATE, beta_1=BETA1, beta_2=BETA2, epsilon=EPSILON),
}


class OtherSGD(keras.optimizers.SGD):
    """Of another type, for which there is no fused op."""


class OtherAdam(keras.optimizers.Adam):
    """As above."""


WRAPPED_RULES = {
    name: lambda make=make: {"SGD": OtherSGD, "Adam": OtherAdam}[type(make()).__name__].from_config(
        make().get_config()
    )
    for name, make in RULES.items()
}
PATHS = {
    "fused": (RULES, RULES),
    "wrapped": (WRAPPED_RULES, WRAPPED_RULES),
    "fused base": (RULES, WRAPPED_RULES),
    "fused members": (WRAPPED_RULES, RULES),
}


def plain_loop(model, base_rule, member_rule, base_scale, steps=STEPS, base_rate_scale=1.0):
    """Algorithm 1 without noise: base weights, [members of the head's kernel and bias]."""
    x, y = data(steps)
    hidden, head = (model.get_layer(name).get_weights() for name in ("hidden", "head"))

    def loss(base, row, part):
        z = tf.tanh(x[part] @ base[0] + base[1]) @ row[0] + row[1]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y[part], z))

    parts = [slice(t * BATCH, (t + 1) * BATCH) for t in range(steps)]
    return algorithm_1.train(
        loss,
        hidden,
        [w[0] for w in head],
        parts,
        K,
        START,
        base_rule,
        member_rule,
        base_scale,
        base_rate_scale,
    )


def expect_equal(model, hidden, rows, tolerance=1e-10):
    for weight, expected in zip(model.get_layer("hidden").weights, hidden):
        np.testing.assert_allclose(weight.numpy(), expected, rtol=0, atol=tolerance)
    for i, weight in enumerate(model.get_layer("head").weights):
        np.testing.assert_allclose(
            weight.numpy(), np.stack([row[i] for row in rows]), rtol=0, atol=tolerance
        )


@pytest.mark.parametrize(
    "base, member",
    [
        ("sgd", "sgd"),
        ("momentum", "adam"),
        ("nesterov", "nesterov"),
        ("adam", "adam"),
        ("adam", "sgd"),
    ],
)
@pytest.mark.parametrize(
    "path, base_scale",
    [
        ("fused", 1.0),
        ("fused", 1 / K),
        ("wrapped", 1 / K),
        ("fused base", 1.0),
        ("fused members", 1.0),
    ],
)
def test_fit_equals_the_plain_loop(base, member, path, base_scale):
    model = make_model()
    hidden, rows = plain_loop(model, base, member, base_scale)
    bases, members = PATHS[path]
    optimizer = late_phase.keras.LatePhaseOptimizer(
        bases[base](), members[member](), members=K, start=START, base_scale=base_scale
    )
    model.compile(optimizer, LOSS)
    x, y = data()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    expect_equal(model, hidden, rows)


@pytest.mark.parametrize("rule", ["nesterov", "adam"])
@pytest.mark.parametrize("path", ["fused", "wrapped"])
def test_a_scaled_base_rate_equals_the_plain_loop(rule, path):
    """Also where the members' optimizer follows that of the base: their rate stays."""
    model, scale = make_model(), 2.0
    hidden, rows = plain_loop(model, rule, rule, 1.0, base_rate_scale=scale)
    optimizer = late_phase.keras.LatePhaseOptimizer(
        PATHS[path][0][rule](), members=K, start=START, base_rate_scale=scale
    )
    model.compile(optimizer, LOSS)
    x, y = data()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    expect_equal(model, hidden, rows)
    assert optimizer.get_config()["base_rate_scale"] == scale
    assert float(optimizer.learning_rate.numpy()) == RATE


def test_several_steps_in_one_graph_equal_the_plain_loop():
    """What the layers of a step share is not that of the step before."""
    model = make_model()
    hidden, rows = plain_loop(model, "sgd", "sgd", 1.0)
    optimizer = late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=K, start=START)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train(x, y):
        for part in range(STEPS):  # unrolled
            batch = slice(part * BATCH, (part + 1) * BATCH)
            with tf.GradientTape() as tape:
                loss = LOSS(y[batch], model(x[batch], training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))

    train(*map(tf.constant, data()))
    expect_equal(model, hidden, rows)


def test_member_none_follows_the_base():
    model = make_model()
    hidden, rows = plain_loop(model, "adam", "adam", 1.0)
    model.compile(
        late_phase.keras.LatePhaseOptimizer(RULES["adam"](), members=K, start=START), LOSS
    )
    x, y = data()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    expect_equal(model, hidden, rows)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_custom_loop_equals_the_plain_loop(compiled):
    model = make_model()
    hidden, rows = plain_loop(model, "nesterov", "adam", 1.0)
    optimizer = late_phase.keras.LatePhaseOptimizer(
        RULES["nesterov"](), RULES["adam"](), members=K, start=START
    )
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    step = tf.function(step) if compiled else step
    x, y = data()
    for t in range(STEPS):
        part = slice(t * BATCH, (t + 1) * BATCH)
        step(tf.constant(x[part]), tf.constant(y[part]))
    expect_equal(model, hidden, rows)


WRAPPED = {
    "sgd with decay and clipping": lambda rate: keras.optimizers.SGD(
        rate, momentum=0.9, nesterov=True, weight_decay=1e-2, clipnorm=0.5
    ),
    "sgd": lambda rate: keras.optimizers.SGD(rate),
    "nesterov": lambda rate: keras.optimizers.SGD(rate, momentum=MOMENTUM, nesterov=True),
    "adam with epsilon": lambda rate: keras.optimizers.Adam(
        rate, beta_1=BETA1, beta_2=BETA2, epsilon=EPSILON
    ),
    "amsgrad": lambda rate: keras.optimizers.Adam(rate, amsgrad=True, clipvalue=0.01),
    "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=0.3),
    "rmsprop": lambda rate: keras.optimizers.RMSprop(rate, momentum=0.5),
    "nadam": lambda rate: keras.optimizers.Nadam(rate),
    "adagrad": lambda rate: keras.optimizers.Adagrad(rate),
}


@pytest.mark.parametrize(
    "rate", [0.05, keras.optimizers.schedules.CosineDecay(0.1, STEPS)], ids=["constant", "cosine"]
)
@pytest.mark.parametrize("name", WRAPPED)
def test_one_member_equals_the_wrapped_optimizer(name, rate):
    x, y = data()
    plain, wrapped = make_model(members=0), make_model(members=1)
    for weight, other in zip(plain.weights, wrapped.weights):
        weight.assign(other.numpy().reshape(weight.shape))
    plain.compile(WRAPPED[name](rate), LOSS)
    wrapped.compile(late_phase.keras.LatePhaseOptimizer(WRAPPED[name](rate), members=1), LOSS)
    for model in (plain, wrapped):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for weight, other in zip(plain.weights, wrapped.weights):
        np.testing.assert_allclose(
            other.numpy().reshape(weight.shape), weight.numpy(), rtol=0, atol=1e-10
        )


def train(model, steps, first=0):
    x, y = data()
    for t in range(first, steps):
        part = slice(t * BATCH, (t + 1) * BATCH)
        model.train_on_batch(x[part], y[part])


def compiled(path="fused", **options):
    model = make_model()
    options = {"members": K, "start": START, "sigma": 0.25, **options}
    bases, members = PATHS[path]
    model.compile(
        late_phase.keras.LatePhaseOptimizer(bases["adam"](), members["nesterov"](), **options), LOSS
    )
    return model


def test_noise_is_of_each_members_own_and_of_the_seed():
    rows = {}
    for seed in (0, 0, 1):
        model = compiled(seed=seed)
        train(model, START)
        kernel = model.get_layer("head").kernel.numpy()
        assert len({row.tobytes() for row in kernel}) == K
        rows.setdefault(seed, []).append(kernel)
    np.testing.assert_array_equal(rows[0][0], rows[0][1])
    assert not np.allclose(rows[0][0], rows[1][0])


def test_noise_is_of_each_weights_own():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            late_phase.keras.Dense(4, members=K, kernel_initializer="ones"),
            late_phase.keras.Dense(4, members=K, kernel_initializer="ones"),
        ]
    )
    optimizer = late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=K, sigma=0.25)
    optimizer.build(model.trainable_variables)  # start=0: spawned at once
    first, second = (layer.kernel.numpy() for layer in model.layers)
    assert np.ptp(first, axis=0).all() and not np.isclose(first, second).any()


@pytest.mark.parametrize("path", ["fused", "wrapped"])
def test_rows_are_one_member_before_start(path):
    model = compiled(path)
    train(model, START - 1)
    kernel = model.get_layer("head").kernel.numpy()
    np.testing.assert_array_equal(kernel, np.broadcast_to(kernel[0], kernel.shape))


def test_inference_uses_the_mean_of_the_members():
    model = compiled()
    train(model, STEPS)
    x, _ = data()
    hidden, head = model.get_layer("hidden"), model.get_layer("head")
    kernel, bias = head.kernel.numpy().mean(axis=0), head.bias.numpy().mean(axis=0)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), hidden(x).numpy() @ kernel + bias, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    "path, saved_after",
    [
        ("fused", START - 2),
        ("fused", START),
        ("fused", START + 1),
        ("fused", START + K + 2),
        ("wrapped", START - 2),
        ("wrapped", START + K + 2),
    ],
)
def test_a_saved_model_goes_on_as_if_it_had_never_stopped(tmp_path, path, saved_after):
    whole = compiled(path)
    train(whole, STEPS)
    first = compiled(path)
    train(first, saved_after)
    first.save(tmp_path / "model.keras")
    second = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"OtherSGD": OtherSGD, "OtherAdam": OtherAdam}
    )
    assert int(second.optimizer.member.numpy()) == int(first.optimizer.member.numpy())
    train(second, STEPS, saved_after)
    for weight, expected in zip(second.weights, whole.weights):
        np.testing.assert_array_equal(weight.numpy(), expected.numpy())


@pytest.mark.parametrize("path", ["fused", "wrapped"])
def test_state_is_counted_once_and_holds_no_weights(path):
    model = compiled(path)
    train(model, 1)
    names = [variable.path for variable in model.optimizer.variables]
    assert len(names) == len({id(variable) for variable in model.optimizer.variables})
    assert not {weight.path for weight in model.weights} & set(names)
    assert sum(name.endswith("_sum") for name in names) == 2
    if path == "fused":
        assert sum(name.endswith("_accum") for name in names) == 2
        assert sum(name.endswith(("_m", "_v", "_count")) for name in names) == 6
        assert (
            len(names) == 2 + 2 + 2 + 2 + 6
        )  # t and its rate, member and its rate, the sums, the members', Adam's
    else:
        rows = {
            "members_iteration",
            *(
                f"members_{weight.path.replace('/', '_')}_momentum"
                for weight in model.get_layer("head").weights
            ),
        }
        assert {name for name in names if name.startswith("members_")} == rows
        assert sum(name.startswith("adam") for name in names) == 5
        assert len(names) == 2 + 2 + 2 + 3 + 5


def test_learning_rate_is_settable_and_counts_minibatches():
    model = compiled()
    train(model, 2)
    model.optimizer.learning_rate = 0.0
    before = model.get_layer("hidden").kernel.numpy()
    train(model, START + K, 2)
    np.testing.assert_array_equal(model.get_layer("hidden").kernel.numpy(), before)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([START + K - 1], [0.0, 0.5])
    model = make_model()
    model.compile(
        late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(schedule), members=K, start=START),
        LOSS,
    )
    before = model.get_layer("hidden").kernel.numpy()
    train(model, START + K)
    np.testing.assert_array_equal(model.get_layer("hidden").kernel.numpy(), before)
    train(model, START + 2 * K, START + K)
    assert not np.array_equal(model.get_layer("hidden").kernel.numpy(), before)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(members=0), "`members` must be an integer of at least 1. Received: members=0"),
        (dict(members=2.0), "`members` must be an integer of at least 1"),
        (dict(start=-1), "`start` must be an integer of at least 0.*Received: start=-1"),
        (dict(sigma=-0.1), "`sigma` must be at least 0. Received: sigma=-0.1"),
        (dict(sigma="0.1"), "`sigma` must be at least 0. Received: sigma='0.1'"),
        (dict(seed="x"), "`seed` must be an integer of 64 bits. Received: seed='x'"),
        (dict(seed=2**63), "`seed` must be an integer of 64 bits. Received: seed=92233720"),
        (dict(base_scale=None), "`base_scale` must be in \\(0, 1\\]. Received: base_scale=None"),
        (dict(base_rate_scale="2"), "`base_rate_scale` must be greater than 0. Received: base_r"),
        (dict(base_scale=0.0), "`base_scale` must be in \\(0, 1\\]. Received: base_scale=0.0"),
        (dict(member="adam"), "`member` must be a Keras optimizer. Received: member='adam'"),
        (
            dict(clipnorm=1.0),
            "Options of an optimizer belong to `base` and `member`. Received: clipnorm",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), **arguments)


def test_one_optimizer_for_both_is_refused():
    both = RULES["sgd"]()
    with pytest.raises(ValueError, match="`member` must be an optimizer of its own"):
        late_phase.keras.LatePhaseOptimizer(both, both)


def test_an_optimizer_that_has_trained_is_refused():
    used = RULES["sgd"]()
    used.build([keras.Variable([1.0])])
    with pytest.raises(ValueError, match="`base` must be an optimizer that has not trained yet"):
        late_phase.keras.LatePhaseOptimizer(used)


def test_other_members_in_a_layer_are_refused():
    model = make_model(members=2)
    model.compile(late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=3), LOSS)
    for _ in range(2):  # nothing is half-built after the first time
        with pytest.raises(
            ValueError, match="members=3 in the optimizer, members=2 in .*head/kernel"
        ):
            train(model, 1)


def test_a_model_without_members_is_refused():
    model = make_model(members=0)
    model.compile(late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=3), LOSS)
    for _ in range(2):
        with pytest.raises(ValueError, match="There must be a weight with members to train"):
            train(model, 1)


def test_a_start_beyond_the_end_is_said():
    model = compiled(start=100)
    message = "Training ended before `start`.*Received: start=100, training ended after 3 steps"
    with pytest.warns(UserWarning, match=message):
        model.fit(*data(3), batch_size=BATCH, verbose=0)


def test_weights_of_other_members_are_refused(tmp_path):
    make_model(members=2).save_weights(tmp_path / "two.weights.h5")
    message = (
        "`members` must be that of the saved weights. Received: members=3 in .*head/kernel, 2 saved"
    )
    with pytest.raises(ValueError, match=message):
        make_model(members=3).load_weights(tmp_path / "two.weights.h5")


@pytest.mark.parametrize("option", [dict(use_ema=True), dict(gradient_accumulation_steps=2)])
def test_averages_and_sums_of_another_kind_are_refused(option):
    with pytest.raises(ValueError, match=f"`base` must be without `{next(iter(option))}`"):
        late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1, **option))


def test_several_steps_per_execution():
    x, y = data()
    whole, parts = compiled(), make_model()
    train(whole, 12)
    parts.compile(
        late_phase.keras.LatePhaseOptimizer(
            RULES["adam"](), RULES["nesterov"](), members=K, start=START, sigma=0.25
        ),
        LOSS,
        steps_per_execution=5,
    )
    parts.fit(x[: 12 * BATCH], y[: 12 * BATCH], batch_size=BATCH, shuffle=False, verbose=0)
    for weight, expected in zip(parts.weights, whole.weights):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=0, atol=1e-12)


def test_start_is_fixed():
    optimizer = late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), start=3)
    with pytest.raises(AttributeError):
        optimizer.start = 4


def test_another_optimizer_is_refused():
    model = make_model()
    model.compile(RULES["sgd"](), LOSS)
    message = (
        "must be compiled with late_phase.keras.LatePhaseOptimizer.*"
        "members=3 in .*head.*SGD as the optimizer"
    )
    with pytest.raises(ValueError, match=message):
        train(model, 1)


def test_a_loop_that_does_not_build_first_is_refused():
    model = make_model()
    optimizer = late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=K)
    x, y = data(1)
    with tf.GradientTape() as tape:
        loss = LOSS(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    with pytest.raises(
        ValueError,
        match="call optimizer.build\\(model.trainable_variables\\). Received: .*head/kernel",
    ):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def test_a_model_may_be_compiled_anew():
    model = compiled()
    train(model, 2)
    first = model.optimizer
    model.compile(late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=K, start=1), LOSS)
    train(model, 3)
    assert int(model.optimizer.member.numpy()) == 2 and int(first.member.numpy()) == 0
