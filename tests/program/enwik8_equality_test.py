"""The whole enwik8 program against an independent one: the same model, data and Algorithm 1 written
with stock TensorFlow ops.
"""

import math

import numpy
import pytest
import tensorflow as tf

import late_phase
from tests.support import enwik8_text, program_runs

BATCH, TIME, UNITS, EMBEDDING, EPOCH = 4, 6, 7, 5, 8
MEMBERS, T0, SWA_FROM, STEPS = 3, 5, 14, 20
RATES = {"adam": (0.01, 0.02), "sgd": (2, 3)}  # of base weights and factors
BETA1, BETA2, EPSILON, CLIP = 0.9, 0.999, 1e-8, 0.05
BASE = ["embedding", "kernel", "recurrent_kernel", "bias", "softmax_kernel", "softmax_bias"]
FACTORS = {"recurrent": ["u", "v"], "whole": ["u", "v", "u_input"]}
MOMENTUM = 0.8


def flags(gamma, dtype, factors="recurrent", optimizer="adam"):
    rate, member_rate = RATES[optimizer]
    epochs = lambda steps: steps / EPOCH
    return (
        f"--model late-phase --units {UNITS} --embedding {EMBEDDING} --batch {BATCH} "
        f"--sequence {TIME} --train-characters 0 --validation-characters 0 --test-characters 0 "
        f"--members {MEMBERS} --t0 {epochs(T0)} --swa-start {epochs(SWA_FROM - 1)} "
        f"--swa-every {epochs(1)} --sigma 0.35 --gamma {gamma} --learning-rate {rate} "
        f"--member-learning-rate {member_rate} --clip-norm {CLIP} --seed 3 --dtype {dtype} "
        f"--factors {factors} --optimizer {optimizer} --momentum {MOMENTUM}"
    ).split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    # 90 % are training text: streams of EPOCH chunks and the one character that the last needs.
    size = math.ceil(BATCH * (EPOCH * TIME + 1) / 0.9)
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", size, symbols=11)


class Reference:
    """Algorithm 1 on the character LSTM, step by step, in the type of the given weights."""

    def __init__(self, weights, gamma, seed, factors="recurrent", optimizer="adam"):
        self.factors = FACTORS[factors]
        self.update = {"adam": self.adam, "sgd": self.sgd}[optimizer]
        self.rates = RATES[optimizer]
        self.theta = {name: tf.constant(weights[name]) for name in BASE}
        self.phi0 = {name: tf.constant(weights[name][0]) for name in self.factors}
        self.members = [self.phi0]
        self.gamma, self.seed, self.t = gamma, seed, 0
        self.dtype = self.theta["bias"].dtype
        self.slots = {}  # (name, member or None) -> m, v, n
        self.sum, self.averages, self.samples = None, None, 0
        self.norms = []

    def loss(self, weights, tokens, labels, h, c):
        u, v, R = weights["u"], weights["v"], weights["recurrent_kernel"]
        u_input, v_input = weights.get("u_input", 1), v if "u_input" in weights else 1
        losses = []
        for t in range(tokens.shape[0]):
            x = tf.gather(weights["embedding"], tokens[t]) * u_input
            z = (x @ weights["kernel"]) * v_input + weights["bias"] + ((h * u) @ R) * v
            i, f, g, o = tf.split(z, 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            logits = h @ weights["softmax_kernel"] + weights["softmax_bias"]
            losses.append(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[t], logits))
        return tf.reduce_mean(tf.stack(losses)), h, c, tf.stack(losses)

    def adam(self, key, weight, gradient):
        m, v, n = self.slots.get(key, (tf.zeros_like(weight), tf.zeros_like(weight), 0))
        m = BETA1 * m + (1 - BETA1) * gradient
        v = BETA2 * v + (1 - BETA2) * gradient**2
        n += 1
        self.slots[key] = (m, v, n)
        rate = self.rate(key) * math.sqrt(1 - BETA2**n) / (1 - BETA1**n)
        return weight - rate * m / (tf.sqrt(v) + EPSILON)

    def sgd(self, key, weight, gradient):
        velocity = MOMENTUM * self.slots.get(key, tf.zeros_like(weight)) + gradient
        self.slots[key] = velocity
        return weight - self.rate(key) * (gradient + MOMENTUM * velocity)

    def rate(self, key):
        return self.rates[key[0] in self.factors]

    def spawn(self):
        # The noise itself is Spawn's, which has tests of its own; K members, slots zero.
        rows = {}
        for index, name in enumerate(self.factors, start=len(BASE)):
            stack = tf.Variable(tf.stack([self.phi0[name]] * MEMBERS))
            late_phase.raw_ops.late_phase_spawn(
                var=stack.handle,
                sigma=tf.constant(0.35, tf.float64),
                seed=tf.constant([self.seed, index], tf.int64),
            )
            rows[name] = stack.numpy()
        self.members = [
            {name: tf.constant(rows[name][k]) for name in self.factors} for k in range(MEMBERS)
        ]
        for key in [key for key in self.slots if key[0] in self.factors]:
            del self.slots[key]

    def step(self, tokens, labels):
        if self.t == T0:
            self.spawn()
        late = self.t >= T0
        k = (self.t - T0) % MEMBERS if late else 0
        if self.t % EPOCH == 0:
            self.h = self.c = tf.zeros((BATCH, UNITS), self.dtype)
        weights = {**self.theta, **self.members[k]}
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss, self.h, self.c, _ = self.loss(weights, tokens, labels, self.h, self.c)
        names = BASE + self.factors
        gradients = tape.gradient(loss, [weights[name] for name in names])
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        clipped, norm = tf.clip_by_global_norm(gradients, CLIP)
        self.norms.append(float(norm))
        gradients = dict(zip(names, clipped))
        for name in self.factors:
            self.members[k][name] = self.update((name, k), self.members[k][name], gradients[name])
        if self.sum is None:
            self.sum = {name: tf.zeros_like(self.theta[name]) for name in BASE}
        for name in BASE:
            self.sum[name] += gradients[name]
        if not late or k == MEMBERS - 1:
            for name in BASE:
                self.theta[name] = self.update(
                    (name, None), self.theta[name], (self.gamma if late else 1) * self.sum[name]
                )
            self.sum = None
        self.t += 1
        if self.t < T0 or not late:
            self.phi0 = self.members[0]
        if self.t >= SWA_FROM:
            now = {
                **self.theta,
                **{
                    name: tf.stack([member[name] for member in self.members])
                    for name in self.factors
                },
            }
            n = self.samples
            self.averages = (
                now
                if n == 0
                else {name: (n * self.averages[name] + now[name]) / (n + 1) for name in now}
            )
            self.samples += 1
        return float(loss)

    def bpc(self, characters, weight_sets):
        """Of predictions averaged over the weight sets; one stream from a zero state."""
        probability = 0
        for weights in weight_sets:
            state = tf.zeros((1, UNITS), self.dtype)
            *_, losses = self.loss(
                weights, characters[:-1, None], characters[1:, None], state, state
            )
            probability = probability + tf.exp(-losses) / len(weight_sets)
        return -float(tf.reduce_mean(tf.math.log(probability))) / math.log(2)


def tokens_of(path):
    text = numpy.fromfile(path, numpy.uint8)
    training = text[: len(text) * 9 // 10]
    tokens = numpy.searchsorted(numpy.unique(training), text).astype(numpy.int32)
    return tokens[: len(training)], tokens[len(text) * 95 // 100 :]


@pytest.mark.parametrize(
    "dtype, tolerance, gamma, factors, optimizer",
    [
        ("float32", 1e-5, 1, "recurrent", "adam"),
        ("float32", 1e-5, 1 / 3, "recurrent", "adam"),
        ("float64", 1e-9, 1, "recurrent", "adam"),
        ("float64", 1e-9, 1 / 3, "recurrent", "adam"),
        ("float64", 1e-9, 1, "whole", "adam"),
        ("float64", 1e-9, 1 / 3, "recurrent", "sgd"),
        ("float64", 1e-9, 1, "whole", "sgd"),
    ],
)
def test_twenty_steps_equal_stock_tensorflow(
    tmp_path, text, dtype, tolerance, gamma, factors, optimizer
):
    run = tmp_path / "run"
    initial = program_runs.initial_checkpoint(
        "enwik8", text, run, *flags(gamma, dtype, factors, optimizer)
    )
    program_runs.train("enwik8", text, run, "--steps", STEPS, "--resume")
    ours = program_runs.read_checkpoint(run)
    assert ours["late_phase/step"] == STEPS and ours["u"].dtype == dtype

    reference = Reference(initial, gamma, 3, factors, optimizer)
    training, test = tokens_of(text)
    streams = training[: len(training) // BATCH * BATCH].reshape(BATCH, -1).T  # [time, batch]
    losses = []
    for t in range(STEPS):
        first = t % EPOCH * TIME
        losses.append(
            reference.step(streams[first : first + TIME], streams[first + 1 : first + TIME + 1])
        )
    assert max(reference.norms) > CLIP  # or clipping would not be tested

    expected = {**reference.theta}
    for name in reference.factors:
        expected[name] = tf.stack([member[name] for member in reference.members])
    for name, value in expected.items():
        numpy.testing.assert_allclose(ours[name], value, rtol=0, atol=tolerance, err_msg=name)
        numpy.testing.assert_allclose(
            ours[name + "/swa"], reference.averages[name], rtol=0, atol=tolerance, err_msg=name
        )
        moved = numpy.abs(ours[name] - initial[name]).max()
        assert moved > 1e3 * tolerance, (name, moved)
    # The members differ from each other, or they would not have been told apart.
    assert numpy.abs(ours["u"][0] - ours["u"][1]).max() > 1e-2

    results = program_runs.read_results(run)
    first = STEPS // EPOCH * EPOCH
    assert results["train"]["loss"] == pytest.approx(numpy.mean(losses[first:]), abs=tolerance)
    members = [{**reference.theta, **member} for member in reference.members]
    mean = lambda weights: {
        **weights,
        **{name: tf.reduce_mean(weights[name], 0) for name in reference.factors},
    }
    sets = {"collapsed": [mean(expected)], "swa": [mean(reference.averages)], "ensemble": members}
    for name, weights in sets.items():
        assert results["test"][name]["bpc"] == pytest.approx(
            reference.bpc(test, weights), abs=tolerance
        ), name
    for k, member in enumerate(members):
        assert results["test"]["members"][k]["bpc"] == pytest.approx(
            reference.bpc(test, [member]), abs=tolerance
        )
