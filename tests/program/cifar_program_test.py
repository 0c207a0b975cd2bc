"""The program behind tools/latephase train cifar, and eval of its runs: its files, its messages,
and that nothing is lost.
"""

import math
import os
import signal

import numpy
import pytest

from late_phase_cli import cifar_table, run_table
from tests.support import cifar_files, program_runs

# 75 training images: eight minibatches an epoch, the last one of five images. T0 at 10, the first
# SWA sample at 20, the end at 24.
SMALL = (
    "--network convnet --late-batch-norm true --late-head true --validation-images 25 --batch 10 "
    "--learning-rate 0.02 --members 3 --t0 1.25 --sigma 0.2 --swa-start 2 --swa-every 0.5 "
    "--epochs 3 --log-every 4"
).split()
SETS = ["collapsed", "swa", "current", "ensemble"]
FIGURES = ["accuracy", "nll", "ece", "brier"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files):
    """All models."""
    out = tmp_path_factory.mktemp("runs") / "all"
    program_runs.train("cifar", files, out, "--model", "all", *SMALL)
    return str(out)


def test_a_run_holds_what_the_tools_read(trained):
    assert sorted(os.listdir(trained)) == [
        "accumulation",
        "base",
        "config.toml",
        "late-phase",
        "results.json",
    ]
    run = os.path.join(trained, "late-phase")
    assert {
        "train/loss",
        "validation/collapsed/accuracy",
        "validation/swa/nll",
        "test/ensemble/ece",
    } <= program_runs.logged_tags(run)
    results = program_runs.read_results(run)
    assert (results["program"], results["steps"], results["epochs"], results["parameters"]) == (
        "cifar",
        24,
        3,
        62458,
    )
    # What is held out is evaluated while the network trains, and at the end.
    assert results["validation"].keys() == {"collapsed", "swa"}
    assert results["test"].keys() == {*SETS, "members"} and len(results["test"]["members"]) == 3
    for figures in [
        *results["validation"].values(),
        *results["test"]["members"],
        *(results["test"][name] for name in SETS),
    ]:
        assert sorted(figures) == sorted(FIGURES)
    assert program_runs.read_results(trained)["runs"][2] == results
    metrics = program_runs.read_metrics(run)
    # The lines before the fork are those of the run it was forked from.
    assert [line["step"] for line in metrics if line["kind"] == "train"] == [4, 8, 12, 16, 20, 24]
    watched = {
        name: [
            line["step"]
            for line in metrics
            if line.get("weights") == name and line["split"] == "validation"
        ]
        for name in SETS
    }
    assert watched == {"collapsed": [8, 16, 24], "swa": [24], "current": [], "ensemble": []}


def test_members_and_their_ensemble_are_told_apart(trained):
    test = program_runs.read_results(os.path.join(trained, "late-phase"))["test"]
    members = [member["nll"] for member in test["members"]]
    assert len(set(members)) == 3
    assert test["current"] == test["members"][(24 - 10 - 1) % 3]
    # Jensen: the averaged prediction is never worse than the members on average.
    assert test["ensemble"]["nll"] <= numpy.mean(members)


@pytest.mark.parametrize("model", ["late-phase", "accumulation"])
def test_a_fork_equals_a_run_of_its_own(tmp_path, files, trained, model):
    program_runs.train("cifar", files, tmp_path / "own", "--model", model, *SMALL)
    forked = os.path.join(trained, model)
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(tmp_path / "own"), program_runs.read_checkpoint(forked)
    )
    own, forked = program_runs.read_results(tmp_path / "own"), program_runs.read_results(forked)
    for figures in ("train", "validation", "test"):
        assert own[figures] == forked[figures]


def test_a_killed_run_goes_on_bit_for_bit(tmp_path, files):
    # A WRN, whose minibatches take long enough to be killed in between.
    network = (*SMALL, "--model", "late-phase", "--network", "wrn", "--depth", 10, "--width", 1)
    program_runs.train("cifar", files, tmp_path / "whole", *network, "--steps", 30)
    for step in (4, 11, 21):  # before T0, in the middle of a cycle, after SWA's first sample
        program_runs.assert_resumes_bit_for_bit(tmp_path / "whole", step, "cifar", files, *network)


@pytest.mark.parametrize("late", [("bn0/scale", "bn0/mean"), ("head/kernel",)])
def test_parts_can_be_late_phase_alone(tmp_path, files, late):
    parts = {"--late-batch-norm": "bn0/scale" in late, "--late-head": "head/kernel" in late}
    flags = [text for flag, on in parts.items() for text in (flag, str(on).lower())]
    program_runs.train("cifar", files, tmp_path / "run", "--model", "late-phase", *SMALL, *flags)
    trained = program_runs.read_checkpoint(tmp_path / "run")
    single = {"bn0/scale": (1, 6), "bn0/mean": (1, 6), "head/kernel": (84, 10)}
    for name, shape in single.items():
        if name not in late:
            assert trained[name].shape == shape
            continue
        assert trained[name].shape == (3, *shape[-trained[name].ndim + 1 :])
        assert len(numpy.unique(trained[name], axis=0)) == 3
    test = program_runs.read_results(tmp_path / "run")["test"]
    assert len({member["nll"] for member in test["members"]}) == 3


def test_sigterm_stops_after_the_step_with_the_state_saved(tmp_path, files):
    run = tmp_path / "run"
    status, stderr = program_runs.kill_after_checkpoint(
        3,
        "cifar",
        files,
        run,
        *SMALL,
        "--model",
        "base",
        "--checkpoint-every",
        3,
        signal_number=signal.SIGTERM,
    )
    assert status == 0, stderr
    assert f"To resume: tools/latephase train cifar --resume --out {run}" in stderr
    (folder,) = program_runs.checkpoint_folders(run)
    assert (
        f"stopped at step {int(folder[-12:])}; the state is saved" in stderr
        and not (run / "results.json").exists()
    )


def test_a_run_goes_on_with_the_minibatches_it_began_with(tmp_path, files):
    run = tmp_path / "run"
    program_runs.train("cifar", files, run, *SMALL, "--model", "base", "--steps", 2)
    for flag, value, name in [
        ("--pad", 0, "pad"),
        ("--flip", "false", "flip"),
        ("--cutout", 4, "cutout"),
        ("--seed", 9, "data_seed"),
        ("--train-images", 74, "train_images"),
    ]:
        refused = program_runs.try_train(
            "cifar", files, run, "--threads", 2, "--resume", "--steps", 4, flag, value
        )
        assert refused.returncode == 2 and f"`{name}` must be" in refused.stderr, (
            flag,
            refused.stderr,
        )
    program_runs.train("cifar", files, run, "--resume", "--steps", 4)


@pytest.mark.parametrize("dataset, classes", [("cifar10", 10), ("cifar100", 100)])
def test_networks_start_as_they_should(tmp_path, dataset, classes):
    files = cifar_files.write_cifar(tmp_path / "files", dataset, classes=classes)
    flags = ("--dataset", dataset, "--network", "convnet", "--batch", 10)
    first = {
        model: program_runs.initial_checkpoint(
            "cifar", files, tmp_path / model, *flags, "--model", model
        )
        for model in ("base", "late-phase")
    }
    for name in ("conv0/kernel", "dense2/kernel", "bn0/scale"):
        assert (first["base"][name] == first["late-phase"][name]).all()
    weights = first["base"]
    for name, fan_in in (("conv1/kernel", 5 * 5 * 6), ("dense2/kernel", 400), ("head/kernel", 84)):
        assert weights[name].std() == pytest.approx(math.sqrt(2 / fan_in), rel=0.05), name
    assert not weights["head/bias"].any() and weights["head/bias"].shape[-1] == classes
    assert (
        (weights["bn1/scale"] == 1).all()
        and (weights["bn1/variance"] == 1).all()
        and not weights["bn1/mean"].any()
    )
    program_runs.train("cifar", files, tmp_path / "base", "--resume", "--steps", 1)
    (line,) = [
        line for line in program_runs.read_metrics(tmp_path / "base") if line["kind"] == "train"
    ]
    # Logits of features with variance 1 have variance 2: above chance, which is ln(classes).
    assert math.log(classes) < line["loss"] < math.log(classes) + 2


def test_a_set_that_can_be_learnt_is_learnt(tmp_path):
    files = cifar_files.write_cifar(tmp_path / "files", train_per_file=60, test=100)
    program_runs.train(
        "cifar",
        files,
        tmp_path / "run",
        "--model",
        "late-phase",
        "--network",
        "convnet",
        "--batch",
        20,
        "--epochs",
        6,
        "--t0",
        4,
        "--members",
        2,
        "--sigma",
        0.1,
        "--swa-start",
        4,
        "--learning-rate",
        0.02,
        "--pad",
        2,
    )
    test = program_runs.read_results(tmp_path / "run")["test"]
    for weights in SETS:
        assert test[weights]["accuracy"] > 0.6, test


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--preset slow", "`preset` must be"),
        (
            "--network wrn --depth 12",
            "`depth` must be 10, 16, 22, 28, …: 6 times the blocks per group, plus 4. "
            "Received: depth=12",
        ),
        ("--network wrn --depth 994 --width 1000", "the network must fit into memory"),
        (
            "--train-images 76",
            "`train_images` must be at most 75, the training images that are not held out for "
            "validation. Received: train_images=76",
        ),
        (
            "--validation-images 100",
            "`validation_images` must be less than 100, the training images. "
            "Received: validation_images=100",
        ),
        (
            "--t0 3",
            "`t0` must be less than `epochs`, or the late phase never begins. Received: t0=3, "
            "epochs=3",
        ),
        ("--swa-start 1", "`swa_start` must be at least `t0`"),
        (
            "--anneal-start 2 --anneal-end 1",
            "`anneal_end` must be at least `anneal_start`. Received: anneal_end=1, anneal_start=2",
        ),
        ("--final-learning-rate 0", "`final_learning_rate` must be a number > 0"),
        ("--momentum 1", "`momentum` must be a number in [0, 1). Received: momentum=1"),
        (
            "--member-weight-decay -2",
            "`member_weight_decay` must be a number >= 0, or -1. Received: member_weight_decay=-2",
        ),
        ("--flip maybe", "flip"),
        (
            "--model rank1",
            "all, all-controls, base, lower-rate, accumulation, late-phase, batch-ensemble",
        ),
        ("--dataset svhn", "cifar10, cifar100"),
    ],
)
def test_bad_settings_name_the_rule_and_the_value(tmp_path, files, arguments, message):
    result = program_runs.try_train("cifar", files, tmp_path / "run", *SMALL, *arguments.split())
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / "test_batch.bin").unlink(), "lacks test_batch.bin"),
        (
            lambda folder: os.truncate(folder / "data_batch_3.bin", 5000),
            "data_batch_3.bin has 5000 bytes instead of",
        ),
        (
            lambda folder: (folder / "data_batch_1.bin").write_bytes(b"\x0a" + bytes(3072)),
            "has label 10 instead of one below 10",
        ),
        (
            lambda folder: os.rename(folder, folder.parent / "elsewhere"),
            "No such file or directory",
        ),
    ],
)
def test_missing_and_damaged_data_is_named(tmp_path, damage, message):
    folder = tmp_path / "files"
    cifar_files.write_cifar(folder)
    damage(folder)
    result = program_runs.try_train("cifar", folder, tmp_path / "run", *SMALL)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    # Where the files come from, too.
    assert f"Received: data={folder}" in result.stderr and "cifar-10-binary.tar.gz" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["test", "validation"])
def test_eval_gives_the_figures_of_the_run(files, trained, split):
    figures = program_runs.read_results(trained)["runs"][-1][split]
    result = program_runs.run("eval", trained, "--data", files, "--split", split, "--threads", 2)
    assert result.returncode == 0, result.stderr
    head, rule, *rows = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert (
        head == f"| weights | {split} accuracy % | {split} NLL | {split} ECE | {split} Brier |"
        and rule == "|---|---|---|---|---|"
    )
    rows = dict(row.strip("| ").split(" | ", 1) for row in rows)
    assert list(rows) == ["collapsed", "swa", "member-0", "member-1", "member-2", "ensemble"]
    figures.update({f"member-{k}": member for k, member in enumerate(figures.pop("members", []))})
    for weights in figures.keys() & rows.keys():
        accuracy, *others = (figures[weights][name] for name in FIGURES)
        assert rows[weights] == " | ".join(
            [f"{100 * accuracy:.2f}", *(f"{figure:.4f}" for figure in others)]
        )
    one = program_runs.run(
        "eval", trained, "--data", files, "--split", split, "--weights", "current", "--threads", 2
    )
    # The last of 14 minibatches was member 1's.
    assert f"| current | {rows['member-1']} |" in one.stdout


def test_eval_and_sample_say_what_a_run_does_not_have(tmp_path, files, trained):
    out = tmp_path / "run"
    program_runs.train(
        "cifar", files, out, *SMALL, "--model", "late-phase", "--validation-images", 0, "--steps", 3
    )
    assert program_runs.read_results(out)["test"].keys() == {
        "collapsed"
    } and "validation" not in program_runs.read_results(out)
    for arguments, message in (
        (("--split", "validation"), "`split` must be one of test. Received: split=validation"),
        (("--weights", "swa"), "SWA has no sample at step 3"),
        (("--weights", "ensemble"), "the members are spawned at step"),
    ):
        result = program_runs.run("eval", out, "--data", files, *arguments)
        assert result.returncode == 2 and message in result.stderr, result.stderr
    refused = program_runs.run("sample", trained)
    assert (
        refused.returncode == 2
        and "RUN_DIR must be a run of enwik8, whose networks write text" in refused.stderr
    )


def test_tables_hold_the_figures_of_the_runs(trained):
    config, results = run_table.read_run(trained)
    lines = cifar_table.render(config, results)
    assert lines[0].startswith("| convnet, CIFAR-10")
    for run in results["runs"]:
        accuracy, *others = (run["test"]["swa"][name] for name in FIGURES)
        row = (
            " | ".join(
                [
                    f"| {run['model'].capitalize()}, SWA",
                    f"{100 * accuracy:.2f}",
                    *(f"{figure:.4f}" for figure in others),
                ]
            )
            + " |"
        )
        assert any(line.startswith(row) for line in lines), (row, lines)
    # Runs of before the Brier score have a table without it.
    for run in results["runs"]:
        for figures in run["test"].values():
            for one in figures if isinstance(figures, list) else [figures]:
                del one["brier"]
    assert (
        cifar_table.render(config, results)[0]
        == "| convnet, CIFAR-10 | test accuracy % | NLL | ECE | paper: accuracy % |"
    )
    assert (
        lines[0]
        == "| convnet, CIFAR-10 | test accuracy % | NLL | ECE | Brier | paper: accuracy % |"
    )
