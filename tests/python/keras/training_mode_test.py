"""Training that is not of one member is refused, however it comes; start=0 has members in time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K = 3
X, Y = np.random.default_rng(0).normal(size=(24, 8)).astype("float32"), np.arange(24) % 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REFUSAL = (
    r"must be of the current member alone: call the model with training=True.*"
    "Received: a gradient of other members for"
)


@keras.saving.register_keras_serializable("training_mode_test")
class WithoutTraining(keras.Model):
    """Its `call` lacks `training`, so that `fit` calls it as in inference."""

    def __init__(self, members=K, **kwargs):
        super().__init__(**kwargs)
        self.members = members
        self.norm = late_phase.keras.BatchNormalization(members=members)
        self.head = late_phase.keras.Dense(4, members=members)

    def build(self, input_shape):
        self.norm.build(input_shape)
        self.head.build(input_shape)
        self.built = True

    def call(self, inputs):
        return self.head(self.norm(inputs))

    def get_config(self):
        return {**super().get_config(), "members": self.members}


class WithPartInInference(keras.Model):
    """As for transfer learning: one part is called with training=False whatever happens."""

    def __init__(self):
        super().__init__()
        self.part, self.head = network(), late_phase.keras.Dense(4, members=K)

    def build(self, input_shape):
        self.head.build((None, 4))
        self.built = True

    def call(self, inputs, training=False):
        return self.head(self.part(inputs, training=False), training=training)


def network(members=K, with_input=True):
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(6),
        late_phase.keras.BatchNormalization(members=members),
        late_phase.keras.Dense(4, members=members),
    ]
    return keras.Sequential([keras.Input((8,)), *layers] if with_input else layers)


def optimizer(members=K, start=2, sigma=0.1, rate=0.1):
    return late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(rate), members=members, start=start, sigma=sigma
    )


def fit(model, some_optimizer=None, **options):
    model.compile(some_optimizer or optimizer(), LOSS, **options)
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)


def by_fit(tmp_path):
    model = WithoutTraining()
    model.build((None, 8))
    return model, lambda: fit(model)


def by_fit_run_eagerly(tmp_path):
    model = WithoutTraining()
    model.build((None, 8))
    return model, lambda: fit(model, run_eagerly=True)


def by_fit_with_an_optimizer_that_is_built(tmp_path):
    model, built = WithoutTraining(), optimizer()
    model.build((None, 8))
    built.build(model.trainable_variables)
    return model, lambda: fit(model, built)


def by_fit_after_loading(tmp_path):
    model = WithoutTraining()
    model.build((None, 8))
    model.compile(optimizer(), LOSS)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    return loaded, lambda: loaded.fit(X, Y, verbose=0)


def by_fit_of_a_part_in_inference(tmp_path):
    model = WithPartInInference()
    model.build((None, 8))
    return model, lambda: fit(model)


def by_fit_with_loss_scaling(tmp_path):
    model = WithoutTraining()
    model.build((None, 8))
    return model, lambda: fit(model, keras.optimizers.LossScaleOptimizer(optimizer()))


def loop(model, loss_of, wrap):
    own = optimizer()
    own.build(model.trainable_variables)

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(model)
        own.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step


def by_a_loop(tmp_path):
    model = network()
    return model, loop(model, lambda m: LOSS(Y, m(X)), lambda step: step)


def by_a_loop_in_a_graph(tmp_path):
    model = network()
    return model, loop(model, lambda m: LOSS(Y, m(X)), tf.function)


def by_a_loop_with_both_modes(tmp_path):
    model = network()
    return model, loop(
        model, lambda m: LOSS(Y, m(X, training=True)) + LOSS(Y, m(X)), lambda step: step
    )


def by_a_loop_with_both_modes_in_a_graph(tmp_path):
    model = network()
    return model, loop(model, lambda m: LOSS(Y, m(X, training=True)) + LOSS(Y, m(X)), tf.function)


WAYS = [
    by_fit, by_fit_run_eagerly, by_fit_with_an_optimizer_that_is_built, by_fit_after_loading,
    by_fit_of_a_part_in_inference, by_fit_with_loss_scaling, by_a_loop, by_a_loop_in_a_graph,
    by_a_loop_with_both_modes, by_a_loop_with_both_modes_in_a_graph,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_of_the_mean_is_refused(way, tmp_path):
    model, train = way(tmp_path)
    before = [variable.numpy() for variable in model.trainable_variables]
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=REFUSAL) as error:
        train()
    assert "gamma" in str(error.value)  # names the weight
    for variable, expected in zip(model.trainable_variables, before):
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_a_sparse_gradient_of_the_mean_is_that_of_dense_ones():
    """Of a table of tokens, which inference looks up in the mean of the members."""
    tokens = tf.constant([[1, 3, 1], [0, 1, 2]])
    table = late_phase.keras.Members(keras.layers.Embedding(4, 2), members=K)
    table.build((None, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(tokens, training=False))
    (variable,) = table.trainable_variables
    gradient = tf.convert_to_tensor(tape.gradient(loss, variable.value))
    expected = np.array([1, 3, 1, 1])[:, np.newaxis] / K
    np.testing.assert_allclose(gradient, np.broadcast_to(expected, (K, 4, 2)), rtol=1e-6)
    own = optimizer()
    own.build(table.trainable_variables)
    with pytest.raises(ValueError, match=REFUSAL):
        own.apply([gradient], table.trainable_variables)


def test_the_refusal_comes_while_the_step_is_traced():
    model, train = by_fit(None)
    with pytest.raises(ValueError, match=REFUSAL):
        train()


def test_a_gradient_of_another_member_is_refused():
    model, own = network(), optimizer(start=0, sigma=0.0)
    variables = model.trainable_variables

    @tf.function
    def gradients():  # traced before the layers know the optimizer: always of member 0
        with tf.GradientTape() as tape:
            loss = LOSS(Y, model(X, training=True))
        return tape.gradient(loss, variables)

    gradients()
    own.build(variables)
    own.apply(gradients(), variables)
    assert int(own.member.numpy()) == 1
    with pytest.raises(ValueError, match=REFUSAL):
        own.apply(gradients(), variables)


def test_a_single_member_trains_as_keras_does():
    plain = keras.Sequential(
        [keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    )
    model = WithoutTraining(members=1)
    model.build((None, 8))
    model.set_weights([weight[np.newaxis] for weight in plain.get_weights()])
    fit(model, optimizer(members=1))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, plain(x, training=False))
        sgd.apply(tape.gradient(loss, plain.trainable_variables), plain.trainable_variables)

    sgd = keras.optimizers.SGD(0.1)
    for i in range(0, 24, 4):
        step(X[i : i + 4], Y[i : i + 4])
    for weight, expected in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(weight[0], expected, rtol=0, atol=1e-6)


def test_inputs_have_gradients_in_inference():
    model = network()
    fit(model)
    plain, x = late_phase.keras.collapse(model), tf.constant(X)
    of_inputs = []
    for some in (model, plain):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(some(x)))
        of_inputs.append(tape.gradient(y, x).numpy())
    np.testing.assert_allclose(*of_inputs, rtol=0, atol=1e-5)


def test_a_frozen_layer_may_be_called_in_inference():
    model = WithPartInInference()
    model.build((None, 8))
    model.part.trainable = False
    before = model.part.get_weights()
    fit(model)
    for weight, expected in zip(model.part.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)
    assert len({row.tobytes() for row in model.head.kernel.numpy()}) == K


def trained_by(gradients_of, in_graph):
    """Eight steps in which `gradients_of` may turn what the tape gives into something else."""
    model, own = network(), optimizer()
    own.build(model.trainable_variables)

    def step():
        with tf.GradientTape() as tape:
            loss = LOSS(Y, model(X, training=True))
        own.apply(
            gradients_of(tape.gradient(loss, model.trainable_variables)), model.trainable_variables
        )

    step = tf.function(step) if in_graph else step
    for _ in range(8):
        step()
    return model.get_weights()


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_gradient_of_one_member_may_be_dense(in_graph):
    expected = trained_by(lambda gradients: gradients, in_graph)
    dense = trained_by(lambda gradients: [tf.convert_to_tensor(g) for g in gradients], in_graph)
    for weight, other in zip(dense, expected):
        np.testing.assert_allclose(weight, other, rtol=0, atol=1e-6)
    # What is not a number does not hide behind another error.
    broken = trained_by(
        lambda gradients: [tf.convert_to_tensor(g) * np.nan for g in gradients], in_graph
    )
    assert any(np.isnan(weight).any() for weight in broken)


def sequence_models():
    """The same head on every time step: as it is, and in a loop of unknown length.

    There TensorFlow makes the gradients dense.
    """
    for time_distributed in (False, True):
        keras.utils.set_random_seed(0)
        head = late_phase.keras.Dense(4, members=K)
        yield keras.Sequential(
            [
                keras.Input((None, 2)),
                keras.layers.TimeDistributed(head) if time_distributed else head,
            ]
        )


def test_a_head_in_a_loop_trains_like_one_outside():
    x, y = X.reshape(24, 4, 2), np.arange(96).reshape(24, 4) % 4
    weights = []
    for model in sequence_models():
        model.compile(optimizer(), LOSS)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for weight, expected in zip(*weights):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-6)


def test_a_layer_that_is_called_twice_has_the_sum_of_both_gradients():
    shared = late_phase.keras.Dense(1, members=K, kernel_initializer="ones", use_bias=False)
    inputs = [keras.Input((2,)), keras.Input((2,))]
    model = keras.Model(inputs, keras.layers.Add()([shared(x) for x in inputs]))
    model.compile(optimizer(start=0, sigma=0.0, rate=0.25), lambda _, y: keras.ops.sum(y, axis=-1))
    x = [np.array([[1.0, 2.0]], "float32"), np.array([[3.0, 5.0]], "float32")]
    for _ in range(K):
        model.train_on_batch(x, np.zeros((1, 1)))
    # loss = kernel · (x0 + x1): one step of 0.25 each.
    np.testing.assert_array_equal(
        shared.kernel.numpy()[..., 0], np.repeat([[1 - 0.25 * 4, 1 - 0.25 * 7]], K, axis=0)
    )


@keras.saving.register_keras_serializable("training_mode_test")
class OwnClass(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        keras.utils.set_random_seed(0)
        self.hidden, self.norm = (
            keras.layers.Dense(6),
            late_phase.keras.BatchNormalization(members=K),
        )
        self.head = late_phase.keras.Dense(4, members=K)

    def call(self, inputs, training=False):
        return self.head(self.norm(self.hidden(inputs), training=training), training=training)


@pytest.mark.parametrize(
    "make, eager",
    [
        (lambda: network(with_input=True), True),
        (lambda: network(with_input=False), False),
        (lambda: network(with_input=False), True),
        (OwnClass, False),
    ],
)
def test_members_from_the_first_step_do_not_depend_on_when_weights_are_made(make, eager):
    """With noise at step 0: `fit` of a model that is built anyway is the reference."""
    expected = network()
    own = optimizer(start=0, sigma=0.5)
    own.build(expected.trainable_variables)
    assert len({row.tobytes() for row in expected.layers[-1].kernel.numpy()}) == K
    fit(expected, own)
    model = make()
    fit(model, optimizer(start=0, sigma=0.5), run_eagerly=eager)
    for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=0, atol=1e-6)


def test_weights_that_come_after_the_first_members_step_are_refused():
    with pytest.raises(
        ValueError,
        match="the model must be built before a training that is run eagerly.*Received: start=0",
    ):
        fit(OwnClass(), optimizer(start=0), run_eagerly=True)
