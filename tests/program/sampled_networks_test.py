"""tools/latephase eval of networks that are drawn, SWAG's against NumPy and Keras, and of those
that are several by themselves.
"""

import os

import keras
import numpy
import pytest
import tensorflow as tf

import late_phase.checkpoint
from tests.support import philox
from tests.program.evaluation_test import CLOSE, WEIGHTS, Network, evaluate, figures, pixels, row_of
from tests.support import cifar_files, program_runs

# All 75 training images in one minibatch, as they are: statistics that are estimated from the
# minibatches of an epoch are then those of all images.
SMALL = (
    "--network convnet --validation-images 25 --batch 75 --pad 0 --flip false "
    "--learning-rate 0.02 --epochs 8 --dtype float64"
).split()
MODELS = {
    "swag": ("base", "--swa-start", 2, "--swag-rank", 3),
    "dropout": ("base", "--swa-start", -1, "--dropout", 0.5),
    "batch-ensemble": ("batch-ensemble", "--swa-start", 4, "--members", 3),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("runs")
    for name, (model, *flags) in MODELS.items():
        program_runs.train("cifar", files, folder / name, *SMALL, "--model", model, *flags)
    return {name: str(folder / name) for name in MODELS}


def swag_sample(stored, seed, sample):
    """Weights by name: the mean, the diagonal's part and the deviations', as optimizers/swag.h has
    them.
    """
    weights = {}
    for place, name in enumerate(WEIGHTS):
        mean, square, deviations = (
            stored[f"{name}/{what}"] for what in ("swa", "swa_square", "swag_deviations")
        )
        kept = len(deviations)
        z1 = philox.normals(seed, 3 * 2**32 + 1 + place, sample, mean.size).reshape(mean.shape)
        z2 = philox.normals(seed, 3 * 2**32, sample, kept)
        diagonal = numpy.sqrt(numpy.maximum(square - mean**2, 1e-30) / 2) * z1
        weights[name] = (
            mean + diagonal + numpy.tensordot(z2, deviations, 1) / numpy.sqrt(2 * (kept - 1))
        )
    return weights


def estimate_batch_norm(network, images):
    """Moving statistics <- those of the images, the variance unbiased."""
    normalised = tf.constant((images / 255 - network.mean) / network.deviation)
    norms = [
        layer
        for layer in network.model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    for layer in norms:
        layer.momentum = 0.0
    network.model(normalised, training=True)
    for layer in norms:
        count = len(images) * numpy.prod(layer.input.shape[1:-1])
        layer.moving_variance.assign(layer.moving_variance * count / (count - 1))


def test_swag_averages_its_samples_each_with_its_own_statistics(tmp_path, files, runs):
    _, evaluation = evaluate(
        tmp_path / "out",
        files,
        runs["swag"],
        "--weights",
        "swa,swag,collapsed",
        "--samples",
        3,
        "--seed",
        5,
    )
    row = row_of(evaluation, runs["swag"], "swag")
    assert row["networks"] == 3
    network, stored = Network(runs["swag"], files), late_phase.checkpoint.read(runs["swag"])
    assert stored["late_phase/swa_count"] == 6
    training = numpy.concatenate(
        [pixels(os.path.join(files, f"data_batch_{i}.bin"))[0] for i in range(1, 6)]
    )[:75]
    test, labels = pixels(os.path.join(files, "test_batch.bin"))
    variables, samples = network.variables(), []
    for sample in range(3):
        for name, weight in swag_sample(stored, 5, sample).items():
            variables[name].assign(weight.reshape(variables[name].shape))
        estimate_batch_norm(network, training)
        samples.append(network.probabilities(test))
    assert numpy.abs(samples[0] - samples[1]).max() > 1e-3
    # Normals are floats, here from NumPy's logarithm and cosine.
    assert {name: row[name] for name in ("nll", "brier")} == pytest.approx(
        {name: figures(numpy.mean(samples, 0), labels)[name] for name in ("nll", "brier")}, rel=1e-5
    )
    # The run's own weights are there again for those that come after.
    results = program_runs.read_results(runs["swag"])["test"]
    assert row_of(evaluation, runs["swag"], "collapsed")["nll"] == pytest.approx(
        results["collapsed"]["nll"], **CLOSE
    )
    assert row_of(evaluation, runs["swag"], "swa")["nll"] == pytest.approx(
        results["swa"]["nll"], **CLOSE
    )


def test_flatness_is_of_the_weights_that_are_asked_for(tmp_path, files, runs):
    _, evaluation = evaluate(
        tmp_path / "out",
        files,
        runs["swag"],
        "--weights",
        "collapsed,swa",
        "--flatness",
        "0,0.3",
        "--flatness-split",
        "test",
    )
    curves = {curve["weights"]: curve for curve in evaluation["flatness"]["curves"]}
    losses = {
        weights: row_of(evaluation, runs["swag"], weights)["nll"]
        for weights in ("collapsed", "swa")
    }
    assert {weights: curve["loss"] for weights, curve in curves.items()} == pytest.approx(
        losses, **CLOSE
    )
    assert losses["collapsed"] != pytest.approx(losses["swa"], rel=1e-4)
    assert (
        curves["collapsed"]["points"][1]["differences"] != curves["swa"]["points"][1]["differences"]
    )


def test_statistics_of_a_sample_are_kept_for_other_images(tmp_path, files, runs):
    """The same images under another name: equal entropies, which cannot tell the sets apart."""
    records = os.path.join(files, "test_batch.bin")
    _, evaluation = evaluate(
        tmp_path / "out", files, runs["swag"], "--weights", "swag", "--samples", 2, "--ood", records
    )
    assert row_of(evaluation, runs["swag"], "swag")["ood"]["mean_auroc"] == 0.5


def test_mc_dropout_averages_masks(tmp_path, files, runs):
    def nll(samples):
        _, evaluation = evaluate(
            tmp_path / "out",
            files,
            runs["dropout"],
            "--weights",
            "collapsed,mc-dropout",
            "--samples",
            samples,
        )
        assert row_of(evaluation, runs["dropout"], "mc-dropout")["networks"] == samples
        return [
            row_of(evaluation, runs["dropout"], weights)["nll"]
            for weights in ("collapsed", "mc-dropout")
        ]

    collapsed, one = nll(1)
    assert nll(1) == [collapsed, one]
    _, many = nll(20)
    assert one != pytest.approx(collapsed, rel=1e-4) and many < one


def test_a_batch_ensemble_predicts_by_all_its_members(tmp_path, files, runs):
    run = runs["batch-ensemble"]
    table, evaluation = evaluate(
        tmp_path / "out", files, run, "--flatness", "0,0.2", "--samples", 2, "--flatness-images", 30
    )
    assert [row["weights"] for row in evaluation["rows"]] == [
        "collapsed",
        "swa",
        "member-0",
        "member-1",
        "member-2",
        "ensemble",
    ]
    nll = {row["weights"]: row["nll"] for row in evaluation["rows"]}
    assert nll["collapsed"] == pytest.approx(nll["ensemble"], **CLOSE)
    assert nll["ensemble"] < numpy.mean([nll[f"member-{k}"] for k in range(3)])
    curves = {curve["weights"]: curve["points"] for curve in evaluation["flatness"]["curves"]}
    assert set(curves) == {"collapsed", "swa"}
    for points in curves.values():
        assert points[0]["mean"] == 0 and points[1]["mean"] != 0


@pytest.mark.parametrize(
    "name, weights, message",
    [
        ("dropout", "swag", "(it was trained with swag_rank=0)"),
        (
            "swag",
            "mc-dropout",
            "no such weights: mc-dropout; this run has collapsed, current, swa (it was trained "
            "with dropout=0)",
        ),
    ],
)
def test_what_a_run_does_not_have_is_refused(tmp_path, files, runs, name, weights, message):
    result = program_runs.run(
        "eval", runs[name], "--data", files, "--weights", weights, "--out", tmp_path / "out"
    )
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()
