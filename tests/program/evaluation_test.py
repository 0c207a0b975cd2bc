"""tools/latephase eval on image networks against an independent computation: the runs' networks in
Keras, figures in NumPy and scikit-learn.
"""

import ctypes
import json
import os
import shutil
import struct

import numpy
import pytest
import tensorflow as tf
from sklearn import metrics

import late_phase.checkpoint
from late_phase_cli import corruptions
from tests.support import philox
from tests.support import cifar_files, program_runs

# 75 training images: eight minibatches an epoch. T0 at 10, the first SWA sample at 20, the end at
# 24. In double precision the program and Keras agree to many digits, so that nothing can hide
# behind rounding.
IMAGES, MEMBERS = 75, 3
SMALL = (
    "--model late-phase --network convnet --late-batch-norm true --late-head true "
    f"--validation-images 25 --batch 10 --learning-rate 0.02 --members {MEMBERS} --t0 1.25 "
    "--sigma 0.2 --swa-start 2 --swa-every 0.5 --epochs 3 --dtype float64"
).split()
CLOSE = {"rel": 1e-9, "abs": 1e-12}
# The order in which the program declares weights.
WEIGHTS = [
    f"{layer}{i}/{weight}"
    for i, kind in enumerate(("conv", "conv", "dense", "dense"))
    for layer, weight in ((kind, "kernel"), (kind, "bias"), ("bn", "scale"), ("bn", "offset"))
] + ["head/kernel", "head/bias"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files):
    """Two seeds."""
    folders = [tmp_path_factory.mktemp("runs") / f"seed-{seed}" for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        program_runs.train("cifar", files, folder, *SMALL, "--seed", seed)
    return [str(folder) for folder in folders]


def evaluate(out, files, *arguments):
    """Lines of tables, and evaluation.json."""
    result = program_runs.run("eval", *arguments, "--data", files, "--threads", 2, "--out", out)
    assert result.returncode == 0, result.stderr
    with open(os.path.join(out, "evaluation.json")) as file:
        return [
            line for line in result.stdout.splitlines() if line.startswith(("|", "mCE:"))
        ], json.load(file)


class Opens:
    """How often a file is opened meanwhile, by whomever: inotify(7), which Python does not have."""

    OPEN, CLOSE = (
        0x20,
        0x10,
    )  # equal events that follow one another are reported as one, so both are watched

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        self.watch = libc.inotify_init1(os.O_NONBLOCK)
        assert (
            self.watch >= 0
            and libc.inotify_add_watch(self.watch, os.fsencode(self.path), self.OPEN | self.CLOSE)
            >= 0
        ), os.strerror(ctypes.get_errno())
        return self

    def __exit__(self, *_):
        events = struct.iter_unpack(
            "iIII", os.read(self.watch, 10000)
        )  # watch, what, cookie, length of the name: none for a file
        self.count = sum(what == self.OPEN for _, what, _, _ in events)
        os.close(self.watch)


def test_the_data_is_read_once_for_all_runs(tmp_path, files, runs):
    batch = os.path.join(files, "data_batch_1.bin")
    counts = []
    for evaluated in (runs[:1], runs):
        with Opens(batch) as opens:
            evaluate(tmp_path / "evaluation", files, *evaluated, "--weights", "collapsed")
        counts.append(opens.count)
    assert counts == [1, 1]


def pixels(path, label_bytes=1):
    """Images [n, 32, 32, 3] as bytes, and labels."""
    records = numpy.fromfile(path, numpy.uint8).reshape(-1, label_bytes + 3072)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[
        :, label_bytes - 1
    ].astype(int)


class Network:
    """A run's collapsed network in Keras."""

    def __init__(self, run, files):
        self.model = late_phase.checkpoint.keras_model(run)
        training = (
            numpy.concatenate(
                [pixels(os.path.join(files, f"data_batch_{i}.bin"))[0] for i in range(1, 6)]
            )[:IMAGES]
            / 255
        )
        self.mean, self.deviation = training.mean((0, 1, 2)), training.std((0, 1, 2))

    def probabilities(self, images):
        normalised = (images / 255 - self.mean) / self.deviation
        # Keras would round arrays of doubles to float, but not datasets.
        logits = self.model.predict(
            tf.data.Dataset.from_tensor_slices(normalised).batch(64), verbose=0
        )
        exponentials = numpy.exp(logits - logits.max(1, keepdims=True))
        return exponentials / exponentials.sum(1, keepdims=True)

    def variables(self):
        """The program's name of a weight -> Keras's variable."""
        name = late_phase.checkpoint.image_network.name_in_checkpoint
        return {
            name(layer.name, weight.name): weight
            for layer in self.model.layers
            for weight in layer.weights
        }


def figures(probabilities, labels):
    right, confidence = probabilities.argmax(1) == labels, probabilities.max(1)
    bins = numpy.ceil(confidence * 15).astype(int)
    gaps = [abs(right[bins == bin].sum() - confidence[bins == bin].sum()) for bin in range(1, 16)]
    return {
        "accuracy": right.mean(),
        "nll": metrics.log_loss(labels, probabilities, labels=range(10)),
        "ece": sum(gaps) / len(labels),
        "brier": ((probabilities - numpy.eye(10)[labels]) ** 2).sum(1).mean(),
    }


def row_of(evaluation, run, weights):
    (row,) = [row for row in evaluation["rows"] if (row["run"], row["weights"]) == (run, weights)]
    return row


def entropies(probabilities):
    return -(probabilities * numpy.log(probabilities)).sum(1)


def test_figures_are_those_of_the_keras_model(tmp_path, files, runs):
    table, evaluation = evaluate(tmp_path / "out", files, runs[0])
    assert table[0] == "| weights | test accuracy % | test NLL | test ECE | test Brier |"
    assert (evaluation["program"], evaluation["split"]) == ("cifar", "test")
    assert evaluation["runs"] == [{"run": runs[0], "model": "late-phase", "seed": 0, "step": 24}]
    assert [row["weights"] for row in evaluation["rows"]] == [
        "collapsed",
        "swa",
        "member-0",
        "member-1",
        "member-2",
        "ensemble",
    ]
    test, labels = pixels(os.path.join(files, "test_batch.bin"))
    probabilities = Network(runs[0], files).probabilities(test)
    row = row_of(evaluation, runs[0], "collapsed")
    assert {name: row[name] for name in ("accuracy", "nll", "ece", "brier")} == pytest.approx(
        figures(probabilities, labels), **CLOSE
    )
    assert row["images"] == len(test) and row["networks"] == 1
    # The reliability diagram.
    bins = numpy.ceil(probabilities.max(1) * 15).astype(int)
    right = probabilities.argmax(1) == labels
    for place, bin in enumerate(row["reliability"]):
        inside = bins == place + 1
        assert (
            bin["from"] == pytest.approx(place / 15)
            and bin["to"] == pytest.approx((place + 1) / 15)
            and bin["count"] == inside.sum()
        )
        if inside.any():
            assert (bin["confidence"], bin["accuracy"]) == pytest.approx(
                (probabilities.max(1)[inside].mean(), right[inside].mean()), **CLOSE
            )
        else:
            assert bin["confidence"] is None and bin["accuracy"] is None
    # All sets as the training left them.
    results = program_runs.read_results(runs[0])["test"]
    results.update({f"member-{k}": member for k, member in enumerate(results.pop("members"))})
    for row, line in zip(evaluation["rows"], table[2:], strict=True):
        expected = results[row["weights"]]
        assert {name: row[name] for name in expected} == pytest.approx(expected, **CLOSE), row[
            "weights"
        ]
        cells = [
            f"{100 * row['accuracy']:.2f}",
            *(f"{row[name]:.4f}" for name in ("nll", "ece", "brier")),
        ]
        assert line == f"| {row['weights']} | {' | '.join(cells)} |"
    assert row["networks"] == MEMBERS


def test_ensembles_average_probabilities_of_runs(tmp_path, files, runs):
    table, evaluation = evaluate(tmp_path / "out", files, *runs, "--ensemble")
    assert (
        table[0].startswith("| run | weights | test accuracy % |") and len(table) == 2 + 2 * 6 + 1
    )
    test, labels = pixels(os.path.join(files, "test_batch.bin"))
    both = [Network(run, files).probabilities(test) for run in runs]
    row = row_of(evaluation, "ensemble of 2 runs", "collapsed")
    assert row["networks"] == 2 and evaluation["rows"][-1] == row
    expected = figures(numpy.mean(both, 0), labels)
    assert {name: row[name] for name in expected} == pytest.approx(expected, **CLOSE)
    # Not of logits.
    product = numpy.sqrt(both[0] * both[1])
    assert row["nll"] != pytest.approx(
        figures(product / product.sum(1, keepdims=True), labels)["nll"], rel=1e-6
    )
    # Members, of each run and of both.
    table, evaluation = evaluate(
        tmp_path / "out", files, *runs, "--ensemble", "--weights", "ensemble,swa"
    )
    assert [row["networks"] for row in evaluation["rows"]] == [
        MEMBERS,
        1,
        MEMBERS,
        1,
        2 * MEMBERS,
        2,
    ]
    assert evaluation["rows"][4]["nll"] <= numpy.mean(
        [evaluation["rows"][place]["nll"] for place in (0, 2)]
    )


def test_entropy_tells_other_images_apart(tmp_path, files, runs):
    other = cifar_files.write_cifar(
        tmp_path / "cifar-100-binary", "cifar100", test=30, classes=100, seed=5
    )
    os.remove(os.path.join(other, "train.bin"))  # only the test images are needed
    records = numpy.random.RandomState(3).randint(0, 256, (17, 3073)).astype(numpy.uint8)
    records.tofile(tmp_path / "noise.bin")
    table, evaluation = evaluate(
        tmp_path / "out",
        files,
        runs[0],
        "--weights",
        "collapsed,ensemble",
        "--ood",
        other,
        tmp_path / "noise.bin",
    )
    assert table[0].endswith("| test Brier | AUROC cifar100 | AUROC noise | mean AUROC |")
    assert evaluation["ood"] == [
        {"name": "cifar100", "path": other},
        {"name": "noise", "path": str(tmp_path / "noise.bin")},
    ]
    network = Network(runs[0], files)
    own = entropies(network.probabilities(pixels(os.path.join(files, "test_batch.bin"))[0]))
    ood = row_of(evaluation, runs[0], "collapsed")["ood"]
    assert ood["entropy_limit"] == pytest.approx(numpy.log(10))
    edges = numpy.linspace(0, numpy.log(10), 51)
    assert ood["own_histogram"] == numpy.histogram(own, edges)[0].tolist()
    aurocs = []
    for found, images in zip(
        ood["sets"],
        (pixels(os.path.join(other, "test.bin"), 2)[0], pixels(tmp_path / "noise.bin")[0]),
        strict=True,
    ):
        theirs = entropies(network.probabilities(images))
        aurocs.append(
            metrics.roc_auc_score(
                [0] * len(own) + [1] * len(theirs), numpy.concatenate([own, theirs])
            )
        )
        assert found["auroc"] == pytest.approx(aurocs[-1], **CLOSE) and found["images"] == len(
            images
        )
        assert found["histogram"] == numpy.histogram(theirs, edges)[0].tolist()
    assert ood["mean_auroc"] == pytest.approx(numpy.mean(aurocs), **CLOSE)
    assert table[2].endswith(f"| {aurocs[0]:.4f} | {aurocs[1]:.4f} | {numpy.mean(aurocs):.4f} |")


@pytest.mark.parametrize("split", ["training", "test"])
def test_flatness_is_the_rise_of_the_loss(tmp_path, files, runs, split):
    before = program_runs.read_checkpoint(runs[0])
    count = 60 if split == "training" else 40
    table, evaluation = evaluate(
        tmp_path / "out",
        files,
        runs[0],
        "--weights",
        "collapsed",
        "--flatness",
        "0,0.1,0.5",
        "--samples",
        3,
        "--seed",
        7,
        "--flatness-split",
        split,
        "--flatness-images",
        60,
    )
    program_runs.assert_same_bits(program_runs.read_checkpoint(runs[0]), before)
    assert (
        evaluation["flatness"]["split"],
        evaluation["flatness"]["samples"],
        evaluation["flatness"]["seed"],
    ) == (split, 3, 7)
    (curve,) = evaluation["flatness"]["curves"]
    assert (curve["run"], curve["weights"], curve["images"]) == (runs[0], "collapsed", count)

    network, stored = Network(runs[0], files), late_phase.checkpoint.read(runs[0])
    names = (
        [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "training" else ["test_batch.bin"]
    )
    parts = [pixels(os.path.join(files, name)) for name in names]
    images, labels = (numpy.concatenate(part)[:count] for part in zip(*parts))
    variables = network.variables()
    collapsed = {
        name: stored[name].mean(0)
        if hasattr(variables[name], "late_phase_members")
        else stored[name]
        for name in WEIGHTS
    }
    assert {name for name, variable in variables.items() if variable.trainable} == set(WEIGHTS)

    def loss():
        return metrics.log_loss(labels, network.probabilities(images), labels=range(10))

    clean = loss()
    assert curve["loss"] == pytest.approx(clean, **CLOSE)
    for point, sigma in zip(curve["points"], (0, 0.1, 0.5), strict=True):
        expected = []
        for draw in range(3):
            for place, name in enumerate(WEIGHTS):
                weight = collapsed[name]
                normals = philox.normals(7, 2 * 2**32 + draw, place, weight.size).reshape(
                    weight.shape
                )
                variables[name].assign(
                    numpy.broadcast_to(weight * (1 + sigma * normals), variables[name].shape)
                )
            expected.append(loss() - clean)
        assert point["sigma"] == sigma
        # Normals are floats, here from NumPy's logarithm and cosine.
        assert point["differences"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert point["mean"] == pytest.approx(numpy.mean(point["differences"]))
        assert point["standard_error"] == pytest.approx(
            numpy.std(point["differences"], ddof=1) / 3**0.5
        )
    assert curve["points"][0]["differences"] == [0, 0, 0]
    assert curve["points"][2]["mean"] > curve["points"][1]["mean"] > 0
    assert table[-1].startswith(f"| {runs[0]} | collapsed | {count} {split} | {clean:.4f} | 0.5 | ")


def test_mean_corruption_error_is_the_plain_mean(tmp_path, files, runs):
    test, labels = pixels(os.path.join(files, "test_batch.bin"))
    folder = corruptions.generated(runs[0], files, tmp_path / "cache", 20, 0)
    table, evaluation = evaluate(
        tmp_path / "out", files, runs[0], "--weights", "collapsed,swa", "--corrupt", folder
    )
    network = Network(runs[0], files)
    errors = {}
    for name in corruptions.NAMES:
        images = numpy.load(folder / f"{name}.npy")
        wrong = network.probabilities(images).argmax(1) != numpy.tile(labels[:20], 5)
        errors[name] = wrong.reshape(5, 20).mean(1)
    corruption = row_of(evaluation, runs[0], "collapsed")["corruption"]
    assert list(corruption["errors"]) == corruptions.NAMES
    for name, expected in errors.items():
        assert corruption["errors"][name] == pytest.approx(expected, **CLOSE), name
        assert corruption["by_corruption"][name] == pytest.approx(expected.mean(), **CLOSE)
    everything = numpy.stack(list(errors.values()))
    assert corruption["by_severity"] == pytest.approx(everything.mean(0), **CLOSE)
    assert corruption["mean_error"] == pytest.approx(everything.mean(), **CLOSE)
    assert 0 < everything.mean() < 1
    assert table[0].endswith("| test Brier | mCE % |") and table[2].endswith(
        f"| {100 * everything.mean():.2f} |"
    )
    assert table[-1].endswith("Images: corruptions generated by late_phase, 20 images, seed 0")
    assert evaluation["corruption"] == {
        "source": "corruptions generated by late_phase, 20 images, seed 0",
        "folder": str(folder),
        "images": 20,
    }


def test_an_evaluation_replaces_an_earlier_one_and_nothing_else(tmp_path, files, runs):
    run = shutil.copytree(runs[0], tmp_path / "run")
    for _ in range(2):
        result = program_runs.run("eval", run, "--data", files, "--weights", "collapsed")
        assert result.returncode == 0 and os.listdir(run / "evaluation") == ["evaluation.json"], (
            result.stderr
        )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    result = program_runs.run("eval", run, "--data", files, "--out", tmp_path / "other")
    assert (
        result.returncode == 2
        and "`out` must be new, empty, or the folder of an earlier evaluation. "
        f"Received: out={tmp_path}"
        in result.stderr
    )
    assert os.listdir(tmp_path / "other") == ["thesis.txt"]
    result = program_runs.run(
        "eval", run, "--data", files, "--out", tmp_path / "other" / "thesis.txt" / "out"
    )
    assert (
        result.returncode == 2
        and "`out` must be a folder that can be created and written to" in result.stderr
        and not result.stdout
    )
    result = program_runs.run("eval", run, runs[1], "--data", files)
    assert result.returncode == 2 and "`out` must be given for several runs" in result.stderr


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Runs that cannot be averaged with the others."""
    folder = tmp_path_factory.mktemp("strangers")
    data = cifar_files.write_cifar(folder / "data")
    cifar_files.write_cifar(folder / "data", "cifar100", 50, 20, 100)
    steps = ("--validation-images", 0, "--batch", 10, "--steps", 2, "--epochs", 30, "--network")
    for name, flags in {
        "cifar100": "convnet --dataset cifar100",
        "wrn-1": "wrn --depth 10 --width 1",
        "wrn-2": "wrn --depth 10 --width 2",
    }.items():
        program_runs.train(
            "cifar",
            data,
            folder / name,
            "--model",
            "base",
            *steps,
            *flags.split(),
            "--swa-start",
            20,
        )
    return folder


@pytest.mark.parametrize(
    "names, message",
    [
        (
            ["seed-0", "cifar100"],
            "the runs of an ensemble must have the same `dataset`. Received: dataset=cifar10 of",
        ),
        (
            ["seed-0", "wrn-1"],
            "the runs of an ensemble must have the same `network`. Received: network=convnet of",
        ),
        (
            ["wrn-1", "wrn-2"],
            "the runs of an ensemble must have the same `width`. Received: width=1 of",
        ),
        (["wrn-1"], "`ensemble` must have two runs or more. Received: 1"),
    ],
)
def test_ensembles_of_unlike_runs_are_refused(tmp_path, runs, strangers, names, message):
    folders = [runs[0] if name == "seed-0" else strangers / name for name in names]
    result = program_runs.run(
        "eval", *folders, "--data", strangers / "data", "--ensemble", "--out", tmp_path / "out"
    )
    # seed-0 holds images out, and its data has as many.
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            "--weights average",
            "no such weights: average; there are collapsed, swa, members, ensemble, current, "
            "member-K; of image networks ",
        ),
        (
            "--weights swa",
            "no such weights: swa; this run has collapsed, current (SWA has no sample at step 2)",
        ),
        (
            "--flatness 0.1,-0.2",
            "`flatness` must be a comma-separated list of numbers >= 0. "
            "Received: flatness=0.1,-0.2",
        ),
        ("--flatness much", "`flatness` must be a comma-separated list of numbers >= 0"),
        ("--samples 0 --flatness 1", "--samples"),
        (
            "--ood nowhere.bin",
            "`ood` must be the folder of CIFAR-10's or CIFAR-100's binary version, or a file of "
            "records",
        ),
        (
            "--ood {run}/config.toml",
            "bytes instead of whole records of 3073 or, as in CIFAR-100, 3074 bytes",
        ),
        (
            "--corrupt {run}/checkpoint",
            "`corrupt` must be a folder with NAME.npy, uint8 [5·n, 32, 32, 3]",
        ),
    ],
)
def test_bad_input_is_named_and_nothing_written(tmp_path, strangers, arguments, message):
    run = strangers / "wrn-1"
    result = program_runs.run(
        "eval",
        run,
        "--data",
        strangers / "data",
        "--out",
        tmp_path / "out",
        *arguments.format(run=run).split(),
    )
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not result.stdout and not (tmp_path / "out").exists()
