"""The whole CIFAR program against an independent one: the same network, data and Algorithm 1
written with stock TensorFlow ops.
"""

import os

import numpy
import pytest
import tensorflow as tf

import late_phase
from tests.program import standard_random
from tests.support import cifar_files, program_runs

# 45 images: the last minibatch of an epoch has 5. The learning rate differs between epochs.
IMAGES, BATCH, EPOCH = 45, 8, 6
MEMBERS, T0, SWA_FROM, STEPS = 3, 5, 14, 20
ANNEAL = (1, 3)
DECAY, MEMBER_DECAY, MOMENTUM, SIGMA, SEED = 5e-4, 3e-3, 0.9, 0.35, 3
PAD, CUTOUT = 4, 8
EPSILON, BATCH_SHARE = map(
    float, numpy.float32([1e-5, 0.1])
)  # of BatchNorm: attributes of ops are float32

GROUPS = [f"group{group}/block0" for group in range(3)]  # of a WRN 10-1
NORMS = [f"{group}/{norm}" for group in GROUPS for norm in ("bn0", "bn1")] + ["bn"]


def _weights():
    """The names, in the order of declaration."""
    norm = lambda name: [f"{name}/scale", f"{name}/offset"]
    names = ["conv0/kernel"]
    for group in GROUPS:
        names += [
            *norm(f"{group}/bn0"),
            f"{group}/conv0/kernel",
            *norm(f"{group}/bn1"),
            f"{group}/conv1/kernel",
        ]
        if group != GROUPS[0]:  # whose input has as many channels
            names.append(f"{group}/shortcut/kernel")
    return [*names, *norm("bn"), "head/kernel", "head/bias"]


WEIGHTS = _weights()
LATE = [name for name in WEIGHTS if "bn" in name or "head" in name]
BASE = [name for name in WEIGHTS if name not in LATE]


def flags(gamma, rate, dtype):
    epochs = lambda steps: steps / EPOCH
    return (
        f"--model late-phase --network wrn --depth 10 --width 1 --batch {BATCH} "
        f"--members {MEMBERS} --t0 {epochs(T0)} --swa-start {epochs(SWA_FROM - 1)} "
        f"--swa-every {epochs(1)} --sigma {SIGMA} --gamma {gamma} --learning-rate {rate} "
        f"--final-learning-rate {rate / 4} --anneal-start {ANNEAL[0]} --anneal-end {ANNEAL[1]} "
        f"--momentum {MOMENTUM} --weight-decay {DECAY} --member-weight-decay {MEMBER_DECAY} "
        f"--pad {PAD} --flip true --cutout {CUTOUT} --late-batch-norm true --late-head true "
        f"--evaluate-every {epochs(STEPS - 1)} --seed {SEED} --dtype {dtype}"
    ).split()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(
        tmp_path_factory.mktemp("cifar"), train_per_file=IMAGES // 5, test=30
    )


class Images:
    """The data as the network sees it."""

    def __init__(self, folder):
        read = lambda name: numpy.fromfile(os.path.join(folder, name), numpy.uint8).reshape(
            -1, 1 + 3 * 32 * 32
        )
        training = numpy.concatenate([read(f"data_batch_{number}.bin") for number in range(1, 6)])
        test = read("test_batch.bin")
        pixels = lambda records: records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255
        mean, deviation = pixels(training).mean((0, 1, 2)), pixels(training).std((0, 1, 2))
        normalised = lambda records: (pixels(records) - mean) / deviation
        self.training, self.labels = normalised(training), training[:, 0].astype(numpy.int32)
        self.test, self.test_labels = normalised(test), test[:, 0].astype(numpy.int32)

    def minibatch(self, t):
        draws = standard_random.mt19937_64([SEED, 0, 0, t // EPOCH, 0])
        chosen = standard_random.shuffled(IMAGES, draws)[t % EPOCH * BATCH :][:BATCH]
        draws = standard_random.mt19937_64([SEED, 0, 1, t, 0])
        return numpy.stack(
            [self.augmented(image, draws) for image in self.training[chosen]]
        ), self.labels[chosen]

    def augmented(self, image, draws):
        padded = numpy.pad(image, ((PAD, PAD), (PAD, PAD), (0, 0)))
        top, left, mirrored = (
            next(draws) % (2 * PAD + 1),
            next(draws) % (2 * PAD + 1),
            next(draws) % 2,
        )
        crop = padded[top : top + 32, left : left + 32]
        crop = numpy.array(crop[:, ::-1] if mirrored else crop)
        hole = [
            slice(max(0, begin), begin + CUTOUT)
            for begin in (next(draws) % 32 - CUTOUT // 2 for _ in range(2))
        ]
        crop[tuple(hole)] = 0
        return crop


def logits(weights, images, statistics):
    """Of the network; statistics(name, x) are the mean and the variance that a BatchNorm uses."""

    def activated(name, x):
        normalised = tf.nn.batch_normalization(
            x, *statistics(name, x), weights[name + "/offset"], weights[name + "/scale"], EPSILON
        )
        return tf.nn.relu(normalised)

    def convolution(name, x, stride=1):
        kernel = weights[name + "/kernel"]
        pad = [kernel.shape[0] // 2] * 2
        return tf.nn.conv2d(x, kernel, stride, [[0, 0], pad, pad, [0, 0]])

    x = convolution("conv0", images)
    for group in GROUPS:
        stride = 1 if group == GROUPS[0] else 2
        entry = activated(group + "/bn0", x)
        y = convolution(group + "/conv0", entry, stride)
        y = convolution(group + "/conv1", activated(group + "/bn1", y))
        x = y + (x if group == GROUPS[0] else convolution(group + "/shortcut", entry, stride))
    features = tf.reduce_mean(activated("bn", x), (1, 2))
    return features @ weights["head/kernel"] + weights["head/bias"]


class Minibatch:
    """Statistics of the images at hand; the mean and the unbiased variance of each BatchNorm are
    kept.
    """

    def __init__(self):
        self.kept = {}

    def __call__(self, name, x):
        mean, variance = tf.nn.moments(x, (0, 1, 2))
        n = x.shape[0] * x.shape[1] * x.shape[2]
        self.kept[name] = (mean, variance * n / (n - 1))
        return mean, variance


def mean_of(sets):
    """Of dicts with the same keys, name by name."""
    return {name: tf.reduce_mean(tf.stack([one[name] for one in sets]), 0) for name in sets[0]}


class Reference:
    """Algorithm 1 on the network, step by step, in float64."""

    statistics = Minibatch  # of training

    def __init__(self, weights, images, gamma, rate):
        self.images, self.gamma, self.rate, self.t = images, gamma, rate, 0
        self.theta = {name: tf.constant(weights[name], tf.float64) for name in BASE}
        self.members = [{name: tf.constant(weights[name][0], tf.float64) for name in LATE}]
        channels = {name: weights[name + "/scale"].shape[1] for name in NORMS}
        # Running statistics of each member: mean, variance.
        self.running = [
            {
                name: tf.stack([tf.zeros(n, tf.float64), tf.ones(n, tf.float64)])
                for name, n in channels.items()
            }
        ]
        self.velocity = {}  # (name, member or None) -> of Nesterov's momentum
        self.sum, self.averages, self.samples = None, None, 0

    def nesterov(self, key, weight, gradient, decay):
        rate = numpy.interp(self.t // EPOCH, ANNEAL, (self.rate, self.rate / 4))
        gradient = gradient + decay * weight
        self.velocity[key] = MOMENTUM * self.velocity.get(key, 0) + gradient
        return weight - rate * (gradient + MOMENTUM * self.velocity[key])

    def spawn(self):
        # The noise itself is Spawn's, which has tests of its own; K members, slots zero, statistics
        # copied.
        (phi0,) = self.members
        self.members = [{} for _ in range(MEMBERS)]
        for name in LATE:
            stack = tf.Variable(tf.stack([phi0[name]] * MEMBERS))
            late_phase.raw_ops.late_phase_spawn(
                var=stack.handle,
                sigma=tf.constant(SIGMA, tf.float64),
                seed=tf.constant([SEED, WEIGHTS.index(name)], tf.int64),
            )
            for member, row in zip(self.members, tf.unstack(stack)):
                member[name] = row
        self.running = [dict(self.running[0]) for _ in range(MEMBERS)]
        self.velocity = {key: value for key, value in self.velocity.items() if key[0] in BASE}

    def step(self):
        if self.t == T0:
            self.spawn()
        late = self.t >= T0
        k = (self.t - T0) % MEMBERS if late else 0
        pixels, labels = self.images.minibatch(self.t)
        weights, minibatch = {**self.theta, **self.members[k]}, self.statistics()
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits(weights, pixels, minibatch)
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        for name, statistics in minibatch.kept.items():
            self.running[k][name] = (1 - BATCH_SHARE) * self.running[k][
                name
            ] + BATCH_SHARE * tf.stack(statistics)
        for name in LATE:
            self.members[k][name] = self.nesterov(
                (name, k), self.members[k][name], gradients[name], MEMBER_DECAY if late else DECAY
            )
        self.sum = {name: gradients[name] + (self.sum[name] if self.sum else 0) for name in BASE}
        if not late or k == MEMBERS - 1:
            for name in BASE:
                self.theta[name] = self.nesterov(
                    (name, None),
                    self.theta[name],
                    (self.gamma if late else 1) * self.sum[name],
                    DECAY,
                )
            self.sum = None
        self.t += 1
        if self.t >= SWA_FROM:
            n, now = self.samples, self.weights()
            self.averages = {
                name: (n * self.averages[name] + now[name]) / (n + 1) if n else now[name]
                for name in now
            }
            self.samples += 1
        return float(loss)

    def weights(self):
        """As the checkpoint has them."""
        return {
            **self.theta,
            **{name: tf.stack([member[name] for member in self.members]) for name in LATE},
        }

    def swa(self):
        """The averages collapsed, with statistics re-estimated from the minibatches of the first
        epoch.
        """
        weights = {
            name: tf.reduce_mean(value, 0) if name in LATE else value
            for name, value in self.averages.items()
        }
        estimated = {name: 0 for name in NORMS}
        for t in range(EPOCH):
            pixels, _ = self.images.minibatch(t)
            minibatch = Minibatch()
            logits(weights, pixels, minibatch)
            for name, statistics in minibatch.kept.items():
                estimated[name] += tf.stack(statistics) * len(pixels) / IMAGES
        return weights, estimated

    def probabilities(self, weights, statistics):
        predicted = logits(weights, self.images.test, lambda name, _: tf.unstack(statistics[name]))
        return tf.nn.softmax(predicted).numpy()

    def test_figures(self):
        """By weight set."""
        probabilities = [
            self.probabilities({**self.theta, **member}, running)
            for member, running in zip(self.members, self.running)
        ]
        members = [self.figures(one) for one in probabilities]
        collapsed = self.probabilities(
            {**self.theta, **mean_of(self.members)}, mean_of(self.running)
        )
        return {
            "collapsed": self.figures(collapsed),
            "swa": self.figures(self.probabilities(*self.swa())),
            "current": members[(self.t - 1 - T0) % MEMBERS],
            **{f"member-{k}": figures for k, figures in enumerate(members)},
            "ensemble": self.figures(numpy.mean(probabilities, 0)),
        }

    def figures(self, probabilities):
        labels = self.images.test_labels
        right, confidence = probabilities.argmax(1) == labels, probabilities.max(1)
        bins = numpy.ceil(confidence * 15)
        gaps = [
            abs(numpy.sum(right[bins == bin]) - numpy.sum(confidence[bins == bin]))
            for bin in range(1, 16)
        ]
        return {
            "accuracy": numpy.mean(right),
            "nll": -numpy.mean(numpy.log(probabilities[range(len(labels)), labels])),
            "ece": sum(gaps) / len(labels),
            "brier": numpy.mean(
                numpy.sum((probabilities - numpy.eye(probabilities.shape[1])[labels]) ** 2, 1)
            ),
        }


# In float32 a ReLU's input is within rounding of zero in every few minibatches, and passes a
# gradient on one side but not on the other. That moves weights by some 0.005 of the learning rate,
# and a forward pass, from which statistics and figures come, adds up what many weights differ by:
# so float32 has a low rate. In float64 it does not happen.
@pytest.mark.parametrize(
    "dtype, rate, tolerance", [("float32", 1e-4, 1e-5), ("float64", 2e-2, 1e-9)]
)
@pytest.mark.parametrize("gamma", [1, 1 / 3])
def test_twenty_steps_equal_stock_tensorflow(tmp_path, files, dtype, rate, tolerance, gamma):
    run = tmp_path / "run"
    initial = program_runs.initial_checkpoint("cifar", files, run, *flags(gamma, rate, dtype))
    program_runs.train("cifar", files, run, "--steps", STEPS, "--resume")
    ours = program_runs.read_checkpoint(run)
    assert ours["late_phase/step"] == STEPS and ours["bn/scale"].dtype == dtype
    assert {name for name in initial if name + "/swa" in initial} >= set(WEIGHTS)

    def check(expected, rtol=0):
        for name, value in expected.items():
            numpy.testing.assert_allclose(
                ours[name], value, atol=tolerance, rtol=rtol, err_msg=name
            )

    def check_statistics(statistics, suffix=""):
        """name -> mean, variance, each [members, channels]; variances are above 1, so they agree
        relatively.
        """
        for name, (mean, variance) in statistics.items():
            check(
                {f"{name}/mean{suffix}": mean, f"{name}/variance{suffix}": variance}, rtol=tolerance
            )

    reference = Reference(initial, Images(files), gamma, rate)
    losses = [reference.step() for _ in range(STEPS - 1)]
    # The program evaluated once while it trained, and left the statistics of SWA that it had
    # estimated.
    check_statistics({name: value[:, None] for name, value in reference.swa()[1].items()}, "/swa")
    losses.append(reference.step())

    check(reference.weights())
    check({name + "/swa": value for name, value in reference.averages.items()})
    for name in WEIGHTS:
        moved = numpy.abs(ours[name] - initial[name]).max()
        assert moved > 0.1 * rate, (name, moved)
    check_statistics(
        {name: numpy.stack([running[name] for running in reference.running], 1) for name in NORMS}
    )
    # The members differ from each other, or they would not have been told apart.
    assert numpy.abs(ours["bn/scale"][0] - ours["bn/scale"][1]).max() > 1e-2

    results = program_runs.read_results(run)
    assert results["train"]["loss"] == pytest.approx(
        numpy.mean(losses[STEPS // EPOCH * EPOCH :]), abs=tolerance
    )
    expected = reference.test_figures()
    found = results["test"]
    found.update({f"member-{k}": figures for k, figures in enumerate(found.pop("members"))})
    assert found.keys() == expected.keys()
    for weights, figures in expected.items():
        assert found[weights] == pytest.approx(figures, rel=0, abs=tolerance), weights
