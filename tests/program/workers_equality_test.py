"""Several workers against one with the joint minibatch, in float64 over T0 and SWA; and BatchNorm
of each worker's own share against stock TensorFlow on the divided minibatch.
"""

import numpy
import pytest
import tensorflow as tf

from tests.program import cifar_equality_test, enwik8_equality_test
from tests.support import cifar_files, program_runs, worker_runs

STEPS = 20
TOLERANCE = 1e-9
text = enwik8_equality_test.text  # a fixture


def metrics_without_times(run):
    """The lines of metrics.jsonl, as {(kind, step, …): {name: number}}."""
    times = ("items_per_second", "seconds", "input_wait")
    key = ("kind", "step", "split", "weights")
    return {
        tuple(line.get(name) for name in key): {
            name: value for name, value in line.items() if name not in (*key, *times)
        }
        for line in program_runs.read_metrics(run)
    }


def assert_close(one, other, path=""):
    """Results, or lines of metrics, number by number."""
    assert one.keys() == other.keys(), path
    for name, value in one.items():
        if isinstance(value, dict):
            assert_close(value, other[name], f"{path}/{name}")
        elif isinstance(value, list):
            for i, (mine, theirs) in enumerate(zip(value, other[name], strict=True)):
                assert_close(mine, theirs, f"{path}/{name}/{i}")
        else:
            assert other[name] == pytest.approx(value, abs=TOLERANCE, rel=TOLERANCE), (path, name)


def assert_same_run(one, other):
    expected, actual = program_runs.read_checkpoint(one), program_runs.read_checkpoint(other)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].shape == value.shape and actual[name].dtype == value.dtype, name
        numpy.testing.assert_allclose(
            actual[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
        )
    assert_close(metrics_without_times(one), metrics_without_times(other))
    results = [program_runs.read_results(run) for run in (one, other)]
    assert_close(*({split: result[split] for split in ("train", "test")} for result in results))


def assert_any_number_trains_the_same(folder, program, data, flags):
    program_runs.train(program, data, folder / "1", *flags, "--threads", 1)
    for count in (2, 4):
        worker_runs.train(count, program, data, folder / str(count), *flags)
        assert_same_run(folder / "1", folder / str(count))


def test_enwik8(tmp_path, text):
    flags = [*enwik8_equality_test.flags(1 / 3, "float64"), "--steps", STEPS, "--log-every", 1]
    assert_any_number_trains_the_same(tmp_path, "enwik8", text, flags)


@pytest.fixture
def divisible(monkeypatch):
    """An epoch of five full minibatches, of which every worker has an equal share."""
    monkeypatch.setattr(cifar_equality_test, "IMAGES", 40)
    monkeypatch.setattr(cifar_equality_test, "EPOCH", 5)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"), train_per_file=8, test=600)


def test_cifar_with_joint_batch_norm(tmp_path, files, divisible):
    flags = [*cifar_equality_test.flags(1 / 3, 2e-2, "float64"), "--joint-batch-norm", "true"]
    flags += ["--steps", STEPS, "--log-every", 1]
    assert_any_number_trains_the_same(tmp_path, "cifar", files, flags)


class OwnStatistics(cifar_equality_test.Minibatch):
    """Those of each of two halves of the images; the means over the halves are kept."""

    def __call__(self, name, x):
        means, variances, kept = [], [], []
        for half in tf.split(x, 2):
            statistics = cifar_equality_test.Minibatch()
            mean, variance = statistics(name, half)
            repeated = [half.shape[0], 1, 1, 1]
            means.append(tf.tile(mean[None, None, None], repeated))
            variances.append(tf.tile(variance[None, None, None], repeated))
            kept.append(tf.stack(statistics.kept[name]))
        self.kept[name] = tuple(tf.unstack(tf.reduce_mean(tf.stack(kept), 0)))
        return tf.concat(means, 0), tf.concat(variances, 0)


class DividedReference(cifar_equality_test.Reference):
    statistics = OwnStatistics


def test_batch_norm_of_each_workers_share(tmp_path, files, divisible):
    run = tmp_path / "run"
    flags = cifar_equality_test.flags(1, 2e-2, "float64")
    initial = program_runs.initial_checkpoint("cifar", files, run, *flags)
    worker_runs.train(2, "cifar", files, run, "--steps", STEPS, "--resume")
    ours = program_runs.read_checkpoint(run)
    assert ours["late_phase/step"] == STEPS
    images = cifar_equality_test.Images(files)
    reference = DividedReference(initial, images, 1, 2e-2)
    for _ in range(STEPS):
        reference.step()
    for name, value in reference.weights().items():
        numpy.testing.assert_allclose(ours[name], value, rtol=0, atol=TOLERANCE, err_msg=name)
    for name in cifar_equality_test.NORMS:
        running = tf.stack([member[name] for member in reference.running], 1)
        for what, value in zip(("mean", "variance"), tf.unstack(running)):
            numpy.testing.assert_allclose(
                ours[f"{name}/{what}"], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
            )
