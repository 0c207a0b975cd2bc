"""Sparse gradients of base weights, as of an Embedding: they equal dense ones and stay sparse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import sparse_gradients
from tests.support import algorithm_1
from tests.support.algorithm_1 import BETA1, BETA2, EPSILON, MOMENTUM, RATE

K, START, BATCH, LENGTH, VOCAB, SIZE = 3, 2, 4, 5, 11, 3
STEPS = START + 2 * K + 2  # the last cycle is cut short

keras.config.set_floatx("float64")

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RULES = {
    "sgd": lambda **options: keras.optimizers.SGD(RATE, **options),
    "momentum": lambda **options: keras.optimizers.SGD(RATE, momentum=MOMENTUM, **options),
    "adam": lambda **options: keras.optimizers.Adam(
        RATE, beta_1=BETA1, beta_2=BETA2, epsilon=EPSILON, **options
    ),
}


def batches(steps=STEPS):
    """Few tokens each, some of them twice; the last of the vocabulary never."""
    random = np.random.default_rng(0)
    return [
        (random.integers(0, VOCAB - 1, (BATCH, LENGTH)), random.integers(0, VOCAB, BATCH))
        for _ in range(steps)
    ]


class Tied(keras.Model):
    """A table in which tokens are looked up, once or twice, and whose transpose may be the head."""

    def __init__(self, members, lookups, tied):
        super().__init__()
        self.table = keras.layers.Embedding(VOCAB, SIZE, name="table")
        self.head = late_phase.keras.Dense(SIZE if tied else VOCAB, members=members, name="head")
        self.lookups, self.tied = lookups, tied

    def call(self, tokens, training=False):
        x = self.table(tokens)
        if self.lookups == 2:
            x = x * self.table(tokens[:, ::-1])
        x = self.head(keras.ops.mean(x, axis=1))
        return x @ keras.ops.transpose(self.table.embeddings) if self.tied else x


def made(members=K, lookups=1, tied=False):
    keras.utils.set_random_seed(1)
    model = Tied(members, lookups, tied)
    model(batches()[0][0])
    model.table.embeddings.assign(np.random.default_rng(1).normal(size=(VOCAB, SIZE)))
    return model


def reference_loss(lookups, tied):
    """The same with one-hot products, whose gradients are dense."""

    def loss(base, row, batch):
        tokens, labels = batch
        x = tf.one_hot(tokens, VOCAB, dtype=tf.float64) @ base[0]
        if lookups == 2:
            x *= tf.one_hot(tokens[:, ::-1], VOCAB, dtype=tf.float64) @ base[0]
        z = tf.reduce_mean(x, axis=1) @ row[0] + row[1]
        z = tf.matmul(z, base[0], transpose_b=True) if tied else z
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z))

    return loss


def train(model, steps=STEPS, first=0):
    for tokens, labels in batches(steps)[first:]:
        model.train_on_batch(tokens, labels)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "options", [{}, {"clipvalue": 1e6}, {"global_clipnorm": 1e6}], ids=["fused", "wrapped", "clip"]
)
@pytest.mark.parametrize(
    "lookups, tied", [(1, False), (2, False), (1, True)], ids=["once", "twice", "tied"]
)
def test_training_is_the_plain_loop(rule, options, lookups, tied):
    model = made(lookups=lookups, tied=tied)
    (table,), rows = algorithm_1.train(
        reference_loss(lookups, tied),
        model.table.get_weights(), [w[0] for w in model.head.get_weights()],
        batches(), K, START, rule, rule, base_scale=0.5,
    )  # fmt: skip
    optimizer = late_phase.keras.LatePhaseOptimizer(
        RULES[rule](**options), members=K, start=START, base_scale=0.5
    )
    model.compile(optimizer, LOSS)
    train(model)
    np.testing.assert_allclose(model.table.embeddings, table, rtol=0, atol=1e-10)
    for weight, *expected in zip(model.head.weights, *rows):
        np.testing.assert_allclose(weight, np.stack(expected), rtol=0, atol=1e-10)


class Densified(keras.Model):
    """Gives its optimizer dense gradients: Keras's Adam squares each occurrence of a row alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = LOSS(data[1], self.model(data[0], training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(
            [tf.convert_to_tensor(g) for g in gradients], self.model.trainable_variables
        )
        return {}

    def call(self, tokens, training=False):
        return self.model(tokens, training=training)


@pytest.mark.parametrize("rule", RULES)
def test_one_member_is_keras_with_dense_gradients(rule):
    model, plain = made(members=1), made(members=1)
    dense = Densified(plain)
    dense.compile(RULES[rule]())
    model.compile(late_phase.keras.LatePhaseOptimizer(RULES[rule](), members=1), LOSS)
    train(model)
    train(dense)
    for weight, expected in zip(model.weights, plain.weights):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("saved_after", [1, START + 1, START + K])
def test_a_saved_model_resumes_in_mid_cycle(tmp_path, saved_after):
    def compiled():
        tokens = keras.Input((LENGTH,), dtype="int32")
        x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(VOCAB, SIZE)(tokens))
        model = keras.Model(tokens, late_phase.keras.Dense(VOCAB, members=K)(x))
        optimizer = late_phase.keras.LatePhaseOptimizer(
            RULES["sgd"](), members=K, start=START, sigma=0.1
        )
        model.compile(optimizer, LOSS)
        return model

    keras.utils.set_random_seed(2)
    whole = compiled()
    train(whole)
    keras.utils.set_random_seed(2)
    part = compiled()
    train(part, saved_after)
    part.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(tmp_path / "model.keras")
    train(resumed, first=saved_after)
    for weight, expected in zip(resumed.weights, whole.weights):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("rule, most", [("sgd", 0), ("momentum", 1), ("adam", 1)])
def test_no_dense_array_is_made_before_the_end_of_a_cycle(rule, most):
    """In the graph, a gradient becomes dense only in the branch that ends a cycle."""
    model = made()
    optimizer = late_phase.keras.LatePhaseOptimizer(RULES[rule](), members=K, start=START)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(tokens, labels):
        with tf.GradientTape() as tape:
            loss = LOSS(labels, model(tokens, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    definition = step.get_concrete_function(*batches()[0]).graph.as_graph_def()
    outside = [n.op for n in definition.node if n.op == "UnsortedSegmentSum"]
    inside = [
        f.signature.name
        for f in definition.library.function
        for n in f.node_def
        if n.op == "UnsortedSegmentSum"
    ]
    assert not outside and len(inside) == most
    assert all("true" in name for name in inside)  # of tf.cond, where the cycle ends


def test_rows_that_a_cycle_touched_are_taken_once():
    total = tf.Variable([[0.0, 0.0], [0.0, 2.0], [1.0, -1.0], [0.0, 0.0]])
    taken = sparse_gradients.take(total)
    np.testing.assert_array_equal(taken.indices, [1, 2])
    np.testing.assert_array_equal(taken.values, [[0, 2], [1, -1]])
    np.testing.assert_array_equal(total, np.zeros((4, 2)))


def test_rows_without_a_gradient_stay_under_sgd():
    model = made()
    before = model.table.embeddings.numpy()
    model.compile(late_phase.keras.LatePhaseOptimizer(RULES["sgd"](), members=K, start=START), LOSS)
    train(model)
    after = model.table.embeddings.numpy()
    np.testing.assert_array_equal(after[-1], before[-1])
    assert (after[:-1] != before[:-1]).all()
