"""Every Keras optimizer inside LatePhaseOptimizer, against Algorithm 1 with one per member."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K, START, STEPS = 3, 2, 10  # two whole cycles, and one that is cut short
INPUTS, HIDDEN, CLASSES, BATCH = 5, 7, 4, 8
BASE_SCALE = 0.5
RATE = 0.125  # which float holds exactly, as it does the options below: Keras rounds some to float
X = np.random.default_rng(0).normal(size=(STEPS, BATCH, INPUTS))
Y = np.random.default_rng(1).integers(0, CLASSES, (STEPS, BATCH))

keras.config.set_floatx("float64")

Late = late_phase.keras.LatePhaseOptimizer


def make_model(members):
    keras.utils.set_random_seed(1)
    head = (
        late_phase.keras.Dense(CLASSES, members=members, name="head")
        if members
        else keras.layers.Dense(CLASSES, name="head")
    )
    model = keras.Sequential(
        [keras.Input((INPUTS,)), keras.layers.Dense(HIDDEN, activation="tanh", name="hidden"), head]
    )
    if members != 0:
        return model
    for weight, other in zip(model.weights, make_model(1).weights):
        weight.assign(other.numpy().reshape(weight.shape))
    return model


def gradients(t, hidden, head):
    with tf.GradientTape() as tape:
        z = tf.tanh(X[t] @ hidden[0].value + hidden[1].value) @ head[0].value + head[1].value
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(Y[t], z))
    return tape.gradient(loss, [v.value for v in (*hidden, *head)])


def clipped(values, norm):
    """Scaled to a joint norm of at most `norm`."""
    return [g * min(1, norm / np.sqrt(sum(np.sum(g.numpy() ** 2) for g in values))) for g in values]


def reference(make, decay_scale=1.0, joint_clip=None):
    """Algorithm 1 without noise: base weights, [K][kernel and bias of the head]."""
    models = [
        make_model(0) for _ in range(K)
    ]  # a head for each member; the first has the base weights
    hidden, heads = (
        models[0].get_layer("hidden").weights,
        [model.get_layer("head").weights for model in models],
    )
    base, members = make(), [make() for _ in range(K)]
    for optimizer, weights in zip([base, *members], [hidden, *heads]):
        optimizer.build(weights)
    sums = None
    for t in range(STEPS):
        if t == START:
            members = [make() for _ in range(K)]
            for weights, optimizer in zip(heads, members):
                for weight, first in zip(weights, heads[0]):
                    weight.assign(first)
                optimizer.build(weights)
            for name in ("weight_decay", "adam_weight_decay"):
                if getattr(base, name, None):
                    setattr(
                        base, name, tf.constant(getattr(base, name) * decay_scale, tf.float64)
                    )  # which Keras would round to float
        k = (t - START) % K if t >= START else 0
        grads = gradients(t, hidden, heads[k])
        if joint_clip and t < START:
            grads = clipped(grads, joint_clip)
        of_member, sums = grads[2:], [a + b for a, b in zip(sums, grads)] if sums else grads[:2]
        if joint_clip and t >= START:
            of_member = clipped(of_member, joint_clip)
        members[k].apply(of_member, heads[k])
        if t < START or k == K - 1:
            scaled = [(BASE_SCALE if t >= START else 1) * g for g in sums]
            base.apply(clipped(scaled, joint_clip) if joint_clip and t >= START else scaled, hidden)
            sums = None
    return hidden, heads


def train(model, optimizer, steps=STEPS):
    optimizer.build(model.trainable_variables)
    for t in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(Y[t], model(X[t], training=True))
            )
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


def expect_equal(model, hidden, heads):
    for weight, expected in zip(model.get_layer("hidden").weights, hidden):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=0, atol=1e-10)
    for i, weight in enumerate(model.get_layer("head").weights):
        np.testing.assert_allclose(
            weight.numpy(), [head[i].numpy() for head in heads], rtol=0, atol=1e-10
        )


# Name -> (maker, the factor of the base weights' decay from `start` on).
OPTIMIZERS = {
    "Adadelta": (lambda: keras.optimizers.Adadelta(RATE), 1),
    "Adafactor": (lambda: keras.optimizers.Adafactor(RATE), 1),
    "Adagrad": (lambda: keras.optimizers.Adagrad(RATE), 1),
    "Adam": (
        lambda: keras.optimizers.Adam(RATE, beta_1=0.875, beta_2=1 - 2.0**-10, epsilon=2.0**-14),
        1,
    ),
    "AdamW": (lambda: keras.optimizers.AdamW(RATE, weight_decay=0.25), math.sqrt(K)),
    "Adamax": (lambda: keras.optimizers.Adamax(RATE), 1),
    "Ftrl": (lambda: keras.optimizers.Ftrl(RATE), 1),
    "Lamb": (lambda: keras.optimizers.Lamb(RATE, weight_decay=0.25), math.sqrt(K)),
    "Lion": (lambda: keras.optimizers.Lion(RATE), 1),
    "Muon": (
        lambda: keras.optimizers.Muon(
            RATE, exclude_layers=["head"], weight_decay=0.25, adam_weight_decay=0.5
        ),
        math.sqrt(K),
    ),
    "Nadam": (lambda: keras.optimizers.Nadam(RATE), 1),
    "RMSprop": (lambda: keras.optimizers.RMSprop(RATE, momentum=0.5), 1),
    "SGD": (lambda: keras.optimizers.SGD(RATE, momentum=0.875, nesterov=True), 1),
    "SGD with decay": (
        lambda: keras.optimizers.SGD(RATE, momentum=0.875, weight_decay=0.25),
        K * BASE_SCALE,
    ),
}
REFUSED = {
    "LossScaleOptimizer": (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE)),
        "LossScaleOptimizer\\(LatePhaseOptimizer\\(...\\)\\)",
    ),
    "MultiOptimizer": (
        lambda: keras.optimizers.MultiOptimizer(lambda _: keras.optimizers.SGD(RATE)),
        "a single optimizer",
    ),
    "ScheduleFreeAdamW": (
        lambda: keras.optimizers.ScheduleFreeAdamW(RATE),
        "AdamW and late_phase.keras.SWA",
    ),
}


def test_every_keras_optimizer_is_in_a_table():
    classes = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
    }
    assert classes - {"Optimizer"} <= {name.split()[0] for name in (*OPTIMIZERS, *REFUSED)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_members_are_as_trained_by_optimizers_of_their_own(name):
    make, decay_scale = OPTIMIZERS[name]
    model = make_model(K)
    train(model, Late(make(), members=K, start=START, base_scale=BASE_SCALE))
    expect_equal(model, *reference(make, decay_scale))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_member_is_as_trained_by_the_optimizer_itself(name):
    make, _ = OPTIMIZERS[name]
    plain, model = make_model(0), make_model(1)
    train(plain, make())
    train(model, Late(make()))
    for weight, expected in zip(model.weights, plain.weights):
        np.testing.assert_allclose(
            weight.numpy().reshape(expected.shape), expected.numpy(), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("argument", ["base", "member"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_inside_is_refused_by_name(name, argument):
    make, instead = REFUSED[name]
    arguments = {"base": keras.optimizers.SGD(RATE), argument: make()}
    with pytest.raises(
        ValueError, match=f"`{argument}` must be .*{instead}.*Received: {argument}={name}"
    ):
        Late(**arguments, members=K)


def settled(members, decay_scale, noise, batch, steps):
    """Where AdamW settles on a linear regression, as a fraction of the solution without noise.

    An update takes the sum of `members` minibatches.
    """
    random, size, rate, decay = np.random.default_rng(0), 20, 2e-3, 0.2
    target = random.normal(size=size)
    w, m, v, mean, n = target.copy(), np.zeros(size), np.zeros(size), 0.0, 0
    for t in range(steps // members):
        total = np.zeros(size)
        for _ in range(members):
            x = random.normal(size=(batch, size))
            total += x.T @ (x @ (w - target) + noise * random.normal(size=batch)) / batch
        m, v = 0.9 * m + 0.1 * total, 0.999 * v + 0.001 * total**2
        alpha = rate * np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))
        w = w - rate * decay * decay_scale * w - alpha * m / (np.sqrt(v) + 1e-7)
        if t >= steps // members // 2:
            mean, n = mean + w, n + 1
    return (mean / n) @ target / (target @ target)


def test_gradient_and_decay_balance_where_they_did():
    """The figures of docs/keras.md: before `start`; then with the factor, without, and with K."""
    in_use = Late(keras.optimizers.AdamW(RATE), members=10)._parts.inner.base_decay_scale(10, 1.0)
    cases = [(1, 1), (10, in_use), (10, 1), (10, 10)]
    noisy = [settled(*case, noise=10.0, batch=1, steps=40000) for case in cases]
    np.testing.assert_allclose(noisy, [0.326, 0.322, 0.630, 0.122], rtol=0, atol=5e-4)
    without_noise = [settled(*case, noise=0.0, batch=64, steps=8000) for case in cases]
    np.testing.assert_allclose(without_noise, [1.0, 0.981, 1.0, 0.569], rtol=0, atol=5e-4)


def excluding(optimizer, **which):
    optimizer.exclude_from_weight_decay(**which)
    return optimizer


@pytest.mark.parametrize(
    "where, which", [("base", "names"), ("wrapper", "names"), ("base", "list"), ("wrapper", "list")]
)
def test_exclusion_from_weight_decay_holds_for_members(where, which):
    model = make_model(K)
    excluded = (
        {"var_names": ["bias"]}
        if which == "names"
        else {"var_list": [layer.bias for layer in model.layers]}
    )
    base = keras.optimizers.AdamW(RATE, weight_decay=0.25)
    optimizer = Late(base, members=K, start=START, base_scale=BASE_SCALE)
    excluding(base if where == "base" else optimizer, **excluded)
    train(model, optimizer)
    with pytest.raises(ValueError, match="must be made before the optimizer is built"):
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
    expect_equal(
        model,
        *reference(
            lambda: excluding(keras.optimizers.AdamW(RATE, weight_decay=0.25), var_names=["bias"]),
            math.sqrt(K),
        ),
    )


def test_exclusion_on_member_is_of_members_alone():
    base, member = (
        keras.optimizers.SGD(RATE, weight_decay=0.5),
        excluding(keras.optimizers.SGD(RATE, weight_decay=0.5), var_names=["kernel"]),
    )
    model, optimizer = make_model(K), Late(base, member, members=K)
    optimizer.build(model.trainable_variables)
    before = model.get_weights()
    for _ in range(K):
        optimizer.apply(
            [tf.zeros_like(v.value) for v in model.trainable_variables], model.trainable_variables
        )
    decayed = [not np.allclose(weight, old) for weight, old in zip(model.get_weights(), before)]
    assert decayed == [True, False, False, False]  # biases are zero


@pytest.mark.parametrize("norm", [0.3, 100.0])
def test_gradients_are_clipped_by_their_joint_norm_before_start(norm):
    model = make_model(K)
    train(
        model,
        Late(
            keras.optimizers.SGD(RATE, momentum=0.5, global_clipnorm=norm),
            members=K,
            start=START,
            base_scale=BASE_SCALE,
        ),
    )
    expect_equal(
        model, *reference(lambda: keras.optimizers.SGD(RATE, momentum=0.5), joint_clip=norm)
    )
    plain, model = make_model(0), make_model(K)
    train(plain, keras.optimizers.SGD(RATE, global_clipnorm=norm))
    train(model, Late(keras.optimizers.SGD(RATE, global_clipnorm=norm), members=K, start=100))
    for weight, expected in zip(late_phase.keras.collapse(model).weights, plain.weights):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=0, atol=1e-10)


def compiled(optimizer, members):
    model = make_model(members)
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True
    )
    model.fit(X.reshape(-1, INPUTS), Y.reshape(-1), batch_size=BATCH, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("scaled", ["base", "member", "both"])
def test_loss_scale_changes_nothing(scaled):
    def optimizer(part):
        return keras.optimizers.SGD(
            RATE, loss_scale_factor=1024.0 if scaled in (part, "both") else None
        )

    plain = compiled(Late(keras.optimizers.SGD(RATE), members=K, start=START), K)
    model = compiled(Late(optimizer("base"), optimizer("member"), members=K, start=START), K)
    assert float(model.optimizer.scale_loss(1.0)) == 1024
    for weight, expected in zip(model.weights, plain.weights):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=0, atol=1e-12)
    assert float(Late.from_config(model.optimizer.get_config()).scale_loss(1.0)) == 1024


def test_loss_scale_of_one_member_is_that_of_keras():
    plain = compiled(keras.optimizers.SGD(RATE, loss_scale_factor=1024.0), 0)
    model = compiled(Late(keras.optimizers.SGD(RATE, loss_scale_factor=1024.0)), 1)
    for weight, expected in zip(model.weights, plain.weights):
        np.testing.assert_allclose(
            weight.numpy().reshape(expected.shape), expected.numpy(), rtol=0, atol=1e-12
        )


def test_two_loss_scales_are_refused_and_an_outer_one_replaces_the_inner():
    message = (
        "`loss_scale_factor` must be the same.*"
        "Received: loss_scale_factor=2.0 in `base`, 4.0 in `member`"
    )
    with pytest.raises(ValueError, match=message):
        Late(
            keras.optimizers.SGD(RATE, loss_scale_factor=2.0),
            keras.optimizers.SGD(RATE, loss_scale_factor=4.0),
            members=K,
        )
    inner = Late(keras.optimizers.SGD(RATE, loss_scale_factor=2.0), members=K)
    outer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    model = make_model(K)
    outer.build(model.trainable_variables)
    bias = model.get_layer("head").bias
    gradients = [tf.zeros_like(v.value) for v in model.trainable_variables[:-1]] + [
        tf.constant([[8.0] * CLASSES] + [[0.0] * CLASSES] * (K - 1), tf.float64)
    ]
    outer.apply(gradients, model.trainable_variables)
    np.testing.assert_allclose(bias.numpy()[0], -RATE, rtol=0, atol=1e-12)


@keras.saving.register_keras_serializable("tests")
def slow_rate():
    return RATE / 2


@pytest.mark.parametrize("function", [slow_rate, lambda: RATE / 2], ids=["registered", "lambda"])
def test_a_function_as_learning_rate(tmp_path, function):
    expected = compiled(
        Late(
            keras.optimizers.SGD(RATE / 2), keras.optimizers.SGD(RATE / 2), members=K, start=START
        ),
        K,
    )
    model = compiled(
        Late(
            keras.optimizers.SGD(function), keras.optimizers.SGD(function), members=K, start=START
        ),
        K,
    )
    follows = compiled(Late(keras.optimizers.SGD(function), members=K, start=START), K)
    for weight, other, right in zip(model.weights, follows.weights, expected.weights):
        np.testing.assert_allclose(weight.numpy(), right.numpy(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(other.numpy(), right.numpy(), rtol=0, atol=1e-12)
    if function is slow_rate:
        model.save(tmp_path / "model.keras")
        assert keras.models.load_model(tmp_path / "model.keras").optimizer.learning_rate == RATE / 2


@pytest.mark.parametrize("name", ["Lamb", "Muon"])
def test_a_saved_model_is_loaded_with_its_optimizer(tmp_path, name):
    make, _ = OPTIMIZERS[name]
    model = compiled(Late(make(), members=K, start=START), K)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.optimizer.variables) == len(model.optimizer.variables)
    for variable, saved in zip(loaded.optimizer.variables, model.optimizer.variables):
        np.testing.assert_array_equal(variable.numpy(), saved.numpy())
