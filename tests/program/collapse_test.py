"""How BatchNorm is collapsed, "mean", "affine" and "reestimated": the program's predictions against
stock TensorFlow in float64, from the variables of the checkpoint.
"""

import json
import tomllib

import numpy
import pytest
import tensorflow as tf

from tests.program import network_equality_test as networks
from tests.support import cifar_files, program_runs

WAYS = ("mean", "affine", "reestimated")
CASES = (
    "convnet-dropout",
    "wrn-dropout",
    "hypernetwork",
)  # the last one's BatchNorm has no members
STEPS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(
        tmp_path_factory.mktemp("cifar"), train_per_file=networks.IMAGES // 5, test=20
    )


class MeanOfOutputs(networks.Network):
    """Every BatchNorm puts out the mean of what its members, with their own statistics, put out."""

    def __init__(self, case, weights, rows):
        super().__init__(case, weights, None)
        self.rows = rows  # of scale, offset, mean, variance by name

    def norm(self, name, x):
        what = ("mean", "variance", "offset", "scale")
        members = zip(*(self.rows[f"{name}/{one}"] for one in what))
        outputs = [tf.nn.batch_normalization(x, *one, networks.EPSILON) for one in members]
        return tf.reduce_mean(tf.stack(outputs), 0)


class Collapsed:
    """The predictions that a checkpoint stands for."""

    def __init__(self, case, values, files):
        self.case, self.data = case, networks.Images(files)
        trained = [name for name in values if name + "/momentum" in values]
        late = [name for name in trained if name + "/sum" not in values]
        self.weights = {
            name: tf.constant(values[name].mean(0) if name in late else values[name])
            for name in trained
        }
        self.rows = {
            name: tf.constant(values[name])
            for name in values
            if name.endswith(("/mean", "/variance", "/scale", "/offset"))
        }

    def probabilities(self, way):
        if way == "affine":
            network = MeanOfOutputs(self.case, self.weights, self.rows)
        else:
            of = self.running if way == "mean" else self.estimated()
            network = networks.Network(self.case, self.weights, lambda name, _: of(name))
        return tf.nn.softmax(network(self.data.test)).numpy()

    def running(self, name):
        return [tf.reduce_mean(self.rows[f"{name}/{one}"], 0) for one in ("mean", "variance")]

    def estimated(self):
        """By a pass over the minibatches of the first epoch, each counted by its images."""
        sums = {}

        def statistics(name, x):
            mean, variance = tf.nn.moments(x, tuple(range(len(x.shape) - 1)))
            n = numpy.prod(x.shape[:-1])
            share = len(x) / networks.IMAGES
            sums[name] = sums.get(name, 0) + share * tf.stack([mean, variance * n / (n - 1)])
            return mean, variance

        for t in range(networks.EPOCH):
            pixels, _ = self.data.minibatch(t)
            networks.Network(self.case, self.weights, statistics)(pixels)
        return lambda name: tf.unstack(sums[name])

    def nll(self, way):
        probabilities = self.probabilities(way)
        return -numpy.mean(numpy.log(probabilities[range(20), self.data.test_labels]))


def train(files, run, case, *flags):
    flags = (*networks.flags_of(case), "--sigma", 0.3, "--steps", STEPS, *flags)
    program_runs.train("cifar", files, run, *flags)


def evaluate(files, run, *names):
    """{weights: NLL}"""
    weights = ("--weights", ",".join(names)) if names else ()
    result = program_runs.run("eval", run, "--data", files, "--threads", 2, *weights)
    assert result.returncode == 0, result.stderr
    with open(f"{run}/evaluation/evaluation.json") as file:
        return {row["weights"]: row["nll"] for row in json.load(file)["rows"]}


NAMED = [f"collapsed-{way}" for way in WAYS]


@pytest.mark.parametrize("case", CASES)
def test_one_run_is_evaluated_in_all_ways(tmp_path, files, case):
    run = tmp_path / "run"
    train(files, run, case)
    before = program_runs.read_checkpoint(run)
    reference = Collapsed(case, before, files)
    expected = {f"collapsed-{way}": reference.nll(way) for way in WAYS}
    found = evaluate(files, run, *NAMED)
    assert found == pytest.approx(expected, rel=1e-9) and list(found) == NAMED
    # They differ, or they would not have been told apart.
    different = len({round(value, 6) for value in expected.values()})
    assert different == (2 if case == "hypernetwork" else 3)
    program_runs.assert_same_bits(before, program_runs.read_checkpoint(run))
    # What is not asked for is not computed.
    assert not any(name.startswith("collapsed-") for name in evaluate(files, run))


@pytest.mark.parametrize("way", WAYS)
def test_training_evaluates_in_the_way_that_is_set(tmp_path, files, way):
    case, run = "wrn-dropout", tmp_path / "run"
    # SWA takes its only sample after the last step; its statistics are estimated whatever the way
    # is.
    train(files, run, case, "--batch-norm-collapse", way, "--swa-start", 1, "--evaluate-every", 1)
    with open(run / "config.toml", "rb") as file:
        assert tomllib.load(file)["batch_norm_collapse"] == way
    reference = Collapsed(case, program_runs.read_checkpoint(run), files)
    results = program_runs.read_results(run)["test"]
    assert results["collapsed"]["nll"] == pytest.approx(reference.nll(way), rel=1e-9)
    assert results["swa"]["nll"] == pytest.approx(reference.nll("reestimated"), rel=1e-9)
    found = evaluate(files, run, "collapsed", *NAMED)
    expected = {f"collapsed-{one}": reference.nll(one) for one in WAYS}
    expected["collapsed"] = expected[f"collapsed-{way}"]
    assert found == pytest.approx(expected, rel=1e-9)
    # Of BatchNorm, members and the rest of training the setting changes nothing.
    lines = [line for line in program_runs.read_metrics(run) if line["kind"] == "train"]
    train(files, tmp_path / "other", case, "--swa-start", 1)
    other = program_runs.read_metrics(tmp_path / "other")
    losses = lambda of: [line["loss"] for line in of if line["kind"] == "train"]
    assert losses(lines) == losses(other)


@pytest.mark.parametrize("model, steps", [("base", 5), ("late-phase", networks.T0)])
def test_without_members_the_mean_of_outputs_is_the_output(tmp_path, files, model, steps):
    run = tmp_path / "run"
    train(files, run, "convnet-dropout", "--model", model, "--steps", steps)
    found = evaluate(files, run, "collapsed", *NAMED)
    # At T0 members are not spawned yet: their rows are computed with, but are all row 0.
    for name in ("collapsed-mean", "collapsed-affine"):
        assert found[name] == pytest.approx(found["collapsed"], rel=1e-12)
    assert abs(found["collapsed-reestimated"] - found["collapsed"]) > 1e-6


def test_averages_over_time_have_no_statistics_of_members(tmp_path, files):
    run = tmp_path / "run"
    train(files, run, "convnet-dropout", "--swa-start", 1)
    refused = program_runs.run("eval", run, "--data", files, "--weights", "swa-affine")
    assert refused.returncode == 2 and "no such weights: swa-affine" in refused.stderr
