"""Every form of image network against an independent one, written with stock TensorFlow ops in
float64: kernels made of factors and embeddings, images divided among members, random layers whose
numbers are drawn again here. tests/program/cifar_equality_test.py has the plain network, with
spawning noise, SWA, augmentation and annealing.
"""

import os

import numpy
import pytest
import tensorflow as tf

from late_phase_cli import cifar_table, run_table
from tests.program import standard_random
from tests.support import cifar_files, program_runs

# 35 images: the last minibatch of an epoch has 5, which three members cannot share evenly.
IMAGES, BATCH, EPOCH = 35, 10, 4
MEMBERS, T0, STEPS = 3, 3, 8
RATE, DECAY, MOMENTUM, SEED = 2e-2, 5e-3, 0.9, 3
DROPOUT, DEATH = 0.3, 0.8
EPSILON, BATCH_SHARE = map(
    float, numpy.float32([1e-5, 0.1])
)  # of BatchNorm: attributes of ops are float32

FLAGS = (
    f"--batch {BATCH} --members {MEMBERS} --t0 {T0 / EPOCH} --epochs {STEPS / EPOCH} "
    f"--swa-start -1 --sigma 0 --gamma 1 --learning-rate {RATE} --momentum {MOMENTUM} "
    f"--weight-decay {DECAY} --pad 0 --flip false --evaluate-every 0 --seed {SEED} --dtype float64"
).split()
CONVNET, WRN = "--network convnet", "--network wrn --depth 10 --width 1"
CASES = {
    "convnet-dropout": f"{CONVNET} --dropout {DROPOUT} --late-batch-norm true --late-head false",
    "wrn-dropout": f"{WRN} --dropout {DROPOUT} --late-batch-norm true --late-head true",
    "convnet-rank1": f"{CONVNET} --late-rank1 true --late-batch-norm true --late-head true",
    # The rate drops after four minibatches.
    "convnet-ensemble": f"{CONVNET} --model batch-ensemble --drop-epochs 1 --drop-factor 0.25",
    "wrn-ensemble": f"{WRN} --model batch-ensemble",
    "convnet-all": f"{CONVNET} --late-all true",
    "hypernetwork": f"{WRN} --hypernetwork true --late-batch-norm false --late-head true",
    "pyramidnet": f"--network pyramidnet --depth 11 --alpha 7 --shakedrop {DEATH} "
    "--late-batch-norm true "
        "--late-head true",
}  # fmt: skip
# Group of each layer of a WRN 10-1 in the hypernetwork.
GROUPS = {
    "conv0": "g0",
    "group0/block0/conv0": "g1",
    "group0/block0/conv1": "g2",
    "group1/block0/conv0": "g3",
    "group1/block0/conv1": "g3",
    "group2/block0/conv0": "g4",
    "group2/block0/conv1": "g4",
    "group1/block0/shortcut": "g6",
    "group2/block0/shortcut": "g7",
}


def same(stride=1):
    def convolution(x, kernel):
        pad = [kernel.shape[0] // 2] * 2
        return tf.nn.conv2d(x, kernel, stride, [[0, 0], pad, pad, [0, 0]])

    return convolution


def valid(x, kernel):
    return tf.nn.conv2d(x, kernel, 1, "VALID")


class Network:
    """One call of a network.

    Args:
      case: a name of CASES.
      weights: of one member.
      statistics: (name, x) -> the mean and the variance that a BatchNorm uses.
      draw: (layer, shape) -> random numbers; None: the network is what it is on average.
      member: of a BatchEnsemble, to which all images belong; None: they are divided.
    """

    def __init__(self, case, weights, statistics, draw=None, member=None):
        self.case, self.weights, self.statistics, self.draw, self.member = (
            case,
            weights,
            statistics,
            draw,
            member,
        )
        self.draws = 0

    def __call__(self, images):
        return {
            "convnet": self.conv_net,
            "wrn": self.wide_resnet,
            "hypernetwork": self.wide_resnet,
            "pyramidnet": self.pyramid_net,
        }[self.case.split("-")[0]](tf.constant(images, tf.float64))

    def conv_net(self, x):
        for name, norm in (("conv0", "bn0"), ("conv1", "bn1")):
            x = tf.nn.max_pool2d(
                self.norm(norm, tf.nn.relu(self.linear(name, x, valid))), 2, 2, "VALID"
            )
        x = tf.reshape(x, (len(x), -1))
        for name, norm in (("dense2", "bn2"), ("dense3", "bn3")):
            x = self.dropout(self.norm(norm, tf.nn.relu(self.linear(name, x, tf.matmul))))
        return self.linear("head", x, tf.matmul)

    def wide_resnet(self, x):
        relu = lambda name, x: tf.nn.relu(self.norm(name, x))
        x = self.linear("conv0", x, same())
        for group in range(3):
            name, stride = f"group{group}/block0", 1 + (group > 0)
            entry = relu(f"{name}/bn0", x)
            y = self.dropout(relu(f"{name}/bn1", self.linear(f"{name}/conv0", entry, same(stride))))
            y = self.linear(f"{name}/conv1", y, same())
            x = y + (self.linear(f"{name}/shortcut", entry, same(stride)) if group else x)
        return self.linear("head", tf.reduce_mean(relu("bn", x), (1, 2)), tf.matmul)

    def pyramid_net(self, x):
        relu = lambda name, x: tf.nn.relu(self.norm(name, x))
        x = self.norm("bn0", self.linear("conv0", x, same()))
        for group in range(3):
            name, stride = f"group{group}/block0", 1 + (group > 0)
            y = self.linear(f"{name}/conv0", self.norm(f"{name}/bn0", x), same())
            y = self.linear(f"{name}/conv1", relu(f"{name}/bn1", y), same(stride))
            y = self.norm(
                f"{name}/bn3", self.linear(f"{name}/conv2", relu(f"{name}/bn2", y), same())
            )
            if stride == 2:
                x = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
            zeros = tf.zeros((*y.shape[:3], y.shape[3] - x.shape[3]), tf.float64)
            x = self.shakedrop(y, DEATH * (group + 1) / 3) + tf.concat([x, zeros], 3)
        return self.linear("head", tf.reduce_mean(relu("bn", x), (1, 2)), tf.matmul)

    def linear(self, name, x, product):
        weight = lambda what: self.weights.get(f"{name}/{what}")
        kernel, bias = weight("kernel"), weight("bias")
        if name != "head" and self.case == "hypernetwork":
            kernel = tf.einsum(
                "ehwio,ec->hwico", self.weights["hypernetwork/" + GROUPS[name]], weight("embedding")
            )
            kernel = tf.reshape(kernel, (*kernel.shape[:2], -1, kernel.shape[-1]))
        if "ensemble" in self.case:
            n = len(x)
            members = [i * MEMBERS // n if self.member is None else self.member for i in range(n)]
            rows = lambda what: tf.reshape(
                tf.gather(weight(what), members), (n, *[1] * (len(x.shape) - 2), -1)
            )
            return product(x * rows("u"), kernel) * rows("v") + (
                0 if bias is None else rows("bias")
            )
        if name != "head" and "rank1" in self.case:
            return product(x * weight("u"), kernel) * weight("v") + (0 if bias is None else bias)
        return product(x, kernel) + (0 if bias is None else bias)

    def norm(self, name, x):
        return tf.nn.batch_normalization(
            x,
            *self.statistics(name, x),
            self.weights[name + "/offset"],
            self.weights[name + "/scale"],
            EPSILON,
        )

    def uniform(self, shape):
        self.draws += 1
        return self.draw(self.draws - 1, shape)

    def dropout(self, x):
        if self.draw is None or "dropout" not in self.case:
            return x
        return tf.where(
            self.uniform(x.shape) < numpy.float32(DROPOUT), tf.zeros_like(x), x / (1 - DROPOUT)
        )

    def shakedrop(self, x, death):
        if self.draw is None:
            return (1 - death) * x
        shape = (len(x), 1, 1, 1)
        gate, alpha, beta = self.uniform((1, 1, 1, 1)), self.uniform(shape), self.uniform(shape)
        b = 0.0 if gate < numpy.float32(death) else 1.0
        alpha, beta = 2 * tf.cast(alpha, tf.float64) - 1, tf.cast(beta, tf.float64)

        @tf.custom_gradient
        def shaken(x):
            return (b + alpha - b * alpha) * x, lambda dy: (b + beta - b * beta) * dy

        return shaken(x)


class Images:
    """The data as the network sees it."""

    def __init__(self, folder):
        read = lambda name: numpy.fromfile(os.path.join(folder, name), numpy.uint8).reshape(
            -1, 1 + 3 * 32 * 32
        )
        training, test = (
            numpy.concatenate([read(f"data_batch_{number}.bin") for number in range(1, 6)]),
            read("test_batch.bin"),
        )
        pixels = lambda records: records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255
        mean, deviation = pixels(training).mean((0, 1, 2)), pixels(training).std((0, 1, 2))
        self.training, self.labels = (
            (pixels(training) - mean) / deviation,
            training[:, 0].astype(numpy.int32),
        )
        self.test, self.test_labels = (
            (pixels(test) - mean) / deviation,
            test[:, 0].astype(numpy.int32),
        )

    def minibatch(self, t):
        draws = standard_random.mt19937_64([SEED, 0, 0, t // EPOCH, 0])
        chosen = standard_random.shuffled(IMAGES, draws)[t % EPOCH * BATCH :][:BATCH]
        return self.training[chosen], self.labels[chosen]


def mean_of(sets):
    """Of dicts with the same keys, name by name."""
    return {name: tf.reduce_mean(tf.stack([one[name] for one in sets]), 0) for name in sets[0]}


class Reference:
    """Algorithm 1 without noise, step by step; a BatchEnsemble has no late phase."""

    def __init__(self, case, initial, images):
        self.case, self.images, self.t = case, images, 0
        names = [name for name in initial if name + "/momentum" in initial]
        flags = dict(zip(*[iter(CASES[case].split())] * 2))
        on = lambda flag: flags.get(flag) == "true"

        def is_late(name):
            if on("--late-all") or name.endswith("/embedding"):
                return True
            return (
                (on("--late-batch-norm") and "bn" in name)
                or (on("--late-head") and "head" in name)
                or ("rank1" in case and name.endswith(("/u", "/v")))
            )

        self.late = [] if "ensemble" in case else [name for name in names if is_late(name)]
        self.base = [name for name in names if name not in self.late]
        # What the program declared as such.
        for name in self.late:
            assert initial[name].shape[0] == MEMBERS and (initial[name] == initial[name][0]).all()
        assert (self.late == []) == ("ensemble" in case)
        self.theta = {name: tf.constant(initial[name], tf.float64) for name in self.base}
        self.members = [{name: tf.constant(initial[name][0], tf.float64) for name in self.late}]
        norms = [name[: -len("/scale")] for name in names if name.endswith("/scale")]
        self.running = [
            {
                name: tf.stack([tf.zeros(n, tf.float64), tf.ones(n, tf.float64)])
                for name, n in ((name, initial[name + "/scale"].shape[-1]) for name in norms)
            }
        ]
        self.own_statistics = on("--late-batch-norm") or on("--late-all")
        self.velocity, self.sum = {}, None

    def nesterov(self, key, weight, gradient):
        name = key[0]
        exempt = (
            name.endswith("/embedding") or "ensemble" in self.case and name.endswith(("/u", "/v"))
        )
        gradient = gradient + (0 if exempt else DECAY) * weight
        self.velocity[key] = MOMENTUM * self.velocity.get(key, 0) + gradient
        rate = RATE * (0.25 if self.case == "convnet-ensemble" and self.t >= EPOCH else 1)
        return weight - rate * (gradient + MOMENTUM * self.velocity[key])

    def step(self):
        late = self.t >= T0 and self.late != []
        if self.t == T0 and late:
            self.members = [dict(self.members[0]) for _ in range(MEMBERS)]
            self.running = [
                dict(self.running[0]) for _ in range(MEMBERS if self.own_statistics else 1)
            ]
            self.velocity = {
                key: value for key, value in self.velocity.items() if key[0] in self.base
            }
        k = (self.t - T0) % MEMBERS if late else 0
        running = self.running[k if self.own_statistics else 0]

        def statistics(name, x):
            axes = tuple(range(len(x.shape) - 1))
            mean, variance = tf.nn.moments(x, axes)
            n = numpy.prod(x.shape[:-1])
            running[name] = (1 - BATCH_SHARE) * running[name] + BATCH_SHARE * tf.stack(
                [mean, variance * n / (n - 1)]
            )
            return mean, variance

        def draw(layer, shape):
            return tf.random.stateless_uniform(
                shape, tf.constant([SEED, self.t + (layer << 40)], tf.int64), dtype=tf.float32
            )

        pixels, labels = self.images.minibatch(self.t)
        weights = {**self.theta, **self.members[k]}
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = Network(self.case, weights, statistics, draw)(pixels)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = {
            name: tf.convert_to_tensor(gradient)
            for name, gradient in tape.gradient(loss, weights).items()
        }
        for name in self.late:
            self.members[k][name] = self.nesterov((name, k), self.members[k][name], gradients[name])
        self.sum = {
            name: gradients[name] + (self.sum[name] if self.sum else 0) for name in self.base
        }
        if not late or k == MEMBERS - 1:
            for name in self.base:
                self.theta[name] = self.nesterov((name, None), self.theta[name], self.sum[name])
            self.sum = None
        self.t += 1

    def nll(self, members, running, member=None):
        statistics = lambda name, _: tf.unstack(running[name])
        return tf.nn.softmax(
            Network(self.case, {**self.theta, **members}, statistics, member=member)(
                self.images.test
            )
        ).numpy()

    def test_nlls(self):
        """By weight set."""
        nll = lambda probabilities: (
            -numpy.mean(
                numpy.log(probabilities[range(len(probabilities)), self.images.test_labels])
            )
        )
        if "ensemble" in self.case:
            members = [self.nll({}, self.running[0], k) for k in range(MEMBERS)]
            collapsed = numpy.mean(members, 0)
        else:
            members = [
                self.nll(member, self.running[k if self.own_statistics else 0])
                for k, member in enumerate(self.members)
            ]
            collapsed = self.nll(mean_of(self.members), mean_of(self.running))
        sets = {
            "collapsed": nll(collapsed),
            "ensemble": nll(numpy.mean(members, 0)),
            "members": [nll(one) for one in members],
        }
        return (
            sets
            if "ensemble" in self.case
            else {**sets, "current": sets["members"][(self.t - 1 - T0) % MEMBERS]}
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(
        tmp_path_factory.mktemp("cifar"), train_per_file=IMAGES // 5, test=20
    )


def flags_of(case):
    model = () if "--model" in CASES[case] else ("--model", "late-phase")
    return (*FLAGS, *model, *CASES[case].split())


@pytest.mark.parametrize("case", CASES)
def test_steps_equal_stock_tensorflow(tmp_path, files, case):
    run = tmp_path / "run"
    initial = program_runs.initial_checkpoint("cifar", files, run, *flags_of(case))
    program_runs.train("cifar", files, run, "--steps", STEPS, "--resume")
    ours = program_runs.read_checkpoint(run)
    reference = Reference(case, initial, Images(files))
    for _ in range(STEPS):
        reference.step()
    stacks = {
        name: tf.stack([member[name] for member in reference.members]) for name in reference.late
    }
    for name, value in {**reference.theta, **stacks}.items():
        numpy.testing.assert_allclose(ours[name], value, atol=1e-9, rtol=0, err_msg=name)
        # What a PyramidNet adds before its shortcuts, the next BatchNorm takes away.
        assert (
            numpy.abs(ours[name] - initial[name]).max() > 1e-3 * RATE
            or case == "pyramidnet"
            and name.endswith("bn0/offset")
        ), name
    for name, stack in (
        (name, tf.stack([running[name] for running in reference.running], 1))
        for name in reference.running[0]
    ):
        for statistic, value in zip(("mean", "variance"), stack):
            numpy.testing.assert_allclose(
                ours[f"{name}/{statistic}"], value, atol=1e-9, rtol=1e-8, err_msg=name
            )
    found, expected = program_runs.read_results(run)["test"], reference.test_nlls()
    assert found.keys() == expected.keys()
    assert len(set(expected["members"])) == MEMBERS
    for weights, nll in expected.items():
        theirs = (
            [one["nll"] for one in found[weights]]
            if weights == "members"
            else found[weights]["nll"]
        )
        assert theirs == pytest.approx(nll, rel=1e-8), weights


@pytest.mark.parametrize("case", ["convnet-dropout", "pyramidnet"])
def test_a_resumed_run_draws_what_the_whole_one_drew(tmp_path, files, case):
    program_runs.train("cifar", files, tmp_path / "whole", *flags_of(case))
    program_runs.train("cifar", files, tmp_path / "part", *flags_of(case), "--steps", 5)
    program_runs.train("cifar", files, tmp_path / "part", "--resume", "--steps", STEPS)
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(tmp_path / "whole"),
        program_runs.read_checkpoint(tmp_path / "part"),
    )


@pytest.mark.parametrize("case", ["wrn-ensemble", "convnet-dropout", "hypernetwork"])
def test_an_average_of_one_sample_predicts_as_the_weights_do(tmp_path, files, case):
    # SWA's only sample is taken after the last step, and statistics of both are estimated from the
    # training images.
    program_runs.train(
        "cifar",
        files,
        tmp_path / "run",
        *flags_of(case),
        "--swa-start",
        1,
        "--batch-norm-collapse",
        "reestimated",
    )
    test = program_runs.read_results(tmp_path / "run")["test"]
    assert test["swa"] == pytest.approx(test["collapsed"], rel=1e-12)


def test_factors_and_embeddings_start_as_they_should(tmp_path, files):
    start = lambda case: program_runs.initial_checkpoint(
        "cifar", files, tmp_path / case, *flags_of(case)
    )
    ensemble = start("wrn-ensemble")
    signs = numpy.concatenate(
        [ensemble[name].ravel() for name in ensemble if name.endswith(("/u", "/v"))]
    )
    assert (numpy.abs(signs) == 1).all() and abs(signs.mean()) < 4 / numpy.sqrt(signs.size)
    assert (start("convnet-rank1")["dense2/u"] == 1).all()
    made = start("hypernetwork")
    embedding = lambda name: made[f"group1/block0/{name}/embedding"][0]
    first, second = embedding("conv0"), embedding("conv1")
    columns = numpy.concatenate(
        [first, numpy.sqrt(2) * second], 1
    )  # [14, 3], orthogonal over the layers of a group
    numpy.testing.assert_allclose(columns.T @ columns, numpy.eye(3), atol=1e-12)
    for name, e in (("conv0", first), ("conv1", second)):
        kernel = numpy.einsum("ehwio,ec->hwico", made["hypernetwork/g3"], e)
        assert kernel.std() == pytest.approx(numpy.sqrt(2 / (9 * 16 * e.shape[1])), rel=0.05), name


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--dropout 1", "`dropout` must be a number in [0, 1). Received: dropout=1"),
        ("--network pyramidnet --depth 20 --dropout 0.1", "`dropout` must be 0 for a pyramidnet"),
        (
            "--network pyramidnet --depth 28",
            "`depth` must be 11, 20, …, 272, …: 9 times the blocks per group, plus 2. "
            "Received: depth=28",
        ),
        (
            "--network pyramidnet --depth 20 --shakedrop 2",
            "`shakedrop` must be a number in [0, 1]. Received: shakedrop=2",
        ),
        ("--alpha -1", "`alpha` must be a number in [0, 10000]. Received: alpha=-1"),
        (
            "--network convnet --hypernetwork true",
            "`network` must be wrn with a hypernetwork. Received: network=convnet",
        ),
        ("--late-rank1 true --late-all true", "Received: late_all=true, late_rank1=true"),
        (
            "--model accumulation --late-rank1 true",
            "the control accumulation must have plain kernels, whose weights have no members",
        ),
        (
            "--model batch-ensemble --hypernetwork true",
            "Received: hypernetwork=true, model=batch-ensemble",
        ),
        (
            "--model batch-ensemble --late-all true",
            "batch-ensemble must be chosen. Received: late_all=true, model=batch-ensemble",
        ),
        (
            "--model ensemble",
            "all, all-controls, base, lower-rate, accumulation, late-phase, batch-ensemble",
        ),
    ],
)
def test_bad_settings_name_the_rule_and_the_value(tmp_path, files, arguments, message):
    result = program_runs.try_train("cifar", files, tmp_path / "run", *FLAGS, *arguments.split())
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_with_its_dropout(tmp_path, files):
    program_runs.train("cifar", files, tmp_path / "run", *flags_of("convnet-dropout"), "--steps", 1)
    for value, message in (
        (0.1, "`dropout` must be 0.3, as in the checkpoint. Received: dropout=0.1"),
        (0, "`dropout` must be 0.3, as in the checkpoint. Received: none"),
    ):
        refused = program_runs.try_train(
            "cifar", files, tmp_path / "run", "--resume", "--steps", 2, "--dropout", value
        )
        assert refused.returncode == 2 and message in refused.stderr, refused.stderr


def test_tables_name_the_network(tmp_path, files):
    of = lambda **config: cifar_table.network_of(
        {"depth": 28, "width": 10, "alpha": 200.0, "dropout": 0.0, "late_all": False, **config}
    )
    assert (
        of(network="wrn") == "wrn-28-10"
        and of(network="convnet", late_rank1=True) == "convnet, rank-1 kernels"
    )
    assert (
        of(network="wrn", dropout=0.2, hypernetwork=True) == "wrn-28-10, dropout 0.2, hypernetwork"
    )
    assert of(network="pyramidnet", depth=272) == "pyramidnet-272-200"
    program_runs.train(
        "cifar", files, tmp_path / "run", *flags_of("convnet-ensemble"), "--steps", 1
    )
    *_, row = cifar_table.render(*run_table.read_run(str(tmp_path / "run")))
    assert row.startswith("| Batch-ensemble | ")


def test_eval_lists_the_members_of_a_batch_ensemble(tmp_path, files):
    program_runs.train(
        "cifar", files, tmp_path / "run", *flags_of("convnet-ensemble"), "--steps", 2
    )
    result = program_runs.run("eval", tmp_path / "run", "--data", files, "--threads", 2)
    assert result.returncode == 0, result.stderr
    rows = [line.split(" | ")[0] for line in result.stdout.splitlines() if line.startswith("|")]
    assert rows[2:] == ["| collapsed", "| member-0", "| member-1", "| member-2", "| ensemble"]
