"""The program behind tools/latephase train enwik8, eval and sample: its files, its messages, and
that nothing is lost.
"""

import json
import math
import os
import shutil
import signal

import numpy
import pytest

from late_phase_cli import enwik8_table
from tests.support import enwik8_text, program_runs

SMALL = enwik8_text.SMALL
ENDLESS = (*SMALL, "--model", "late-phase", "--checkpoint-every", 5)
CLIPPED = (*SMALL, "--units", 150, "--clip-norm", 0.001)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", 4000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    """The paper's three models, and accumulation."""
    out = tmp_path_factory.mktemp("runs") / "all"
    program_runs.train("enwik8", text, out, "--model", "all", *SMALL)
    return str(out)


def test_paper_network_has_its_size_and_begins_at_chance(tmp_path):
    text = enwik8_text.write_text(tmp_path / "text", 200_000, symbols=205)
    run = program_runs.train(
        "enwik8",
        text,
        tmp_path / "run",
        "--preset",
        "paper",
        "--model",
        "base",
        "--train-characters",
        0,
        "--validation-characters",
        2000,
        "--test-characters",
        2000,
        "--steps",
        1,
    )
    assert "base: 1556730 parameters, 1 minibatches of 12800 characters" in run.stderr
    (line,) = [
        line for line in program_runs.read_metrics(tmp_path / "run") if line["kind"] == "train"
    ]
    assert line["step"] == 1 and line["loss"] == pytest.approx(math.log(205), rel=0.01)
    assert line["bpc"] == pytest.approx(line["loss"] / math.log(2))


def test_a_run_holds_what_the_tools_read(trained):
    assert sorted(os.listdir(trained)) == [
        "base",
        "config.toml",
        "late-phase",
        "rank1",
        "rank1-accumulation",
        "results.json",
    ]
    run = os.path.join(trained, "late-phase")
    assert {
        "train/bpc",
        "validation/collapsed/bpc",
        "validation/swa/bpc",
        "test/ensemble/bpc",
    } <= program_runs.logged_tags(run)
    results = program_runs.read_results(run)
    assert (
        results["steps"] == 30 and results["epochs"] == 3 and len(results["test"]["members"]) == 3
    )
    assert results["input_wait"] < 0.5 and results["seconds"] > 0
    whole = program_runs.read_results(trained)
    assert [run["model"] for run in whole["runs"]] == [
        "base",
        "rank1",
        "rank1-accumulation",
        "late-phase",
    ] and whole["runs"][3] == results
    metrics = program_runs.read_metrics(run)
    # The lines before the fork are those of the run it was forked from; SWA's first sample comes
    # half an epoch after its start.
    assert [line["step"] for line in metrics if line["kind"] == "train"] == [5, 10, 15, 20, 25, 30]
    swa = [
        line["step"]
        for line in metrics
        if line.get("weights") == "swa" and line["split"] == "validation"
    ]
    assert swa[0] == 30


def test_members_and_their_ensemble_are_told_apart(trained):
    test = program_runs.read_results(os.path.join(trained, "late-phase"))["test"]
    members = [member["bpc"] for member in test["members"]]
    assert len(set(members)) == 3
    # The last of 18 minibatches was member 2's.
    assert test["current"] == test["members"][2]
    # Jensen: the averaged prediction is never worse than the members on average.
    assert test["ensemble"]["bpc"] <= numpy.mean(members)


@pytest.fixture(scope="module")
def with_controls(tmp_path_factory, text):
    """Every model, of a network whose gradients are clipped."""
    out = tmp_path_factory.mktemp("runs") / "all-controls"
    program_runs.train("enwik8", text, out, "--model", "all-controls", *CLIPPED)
    return out


@pytest.mark.parametrize(
    "model", ["late-phase", "accumulation", "rank1-accumulation", "lower-rate", "rank1-decay"]
)
def test_fork_equals_a_run_of_its_own(tmp_path, text, with_controls, model):
    program_runs.train("enwik8", text, tmp_path / "full", "--model", model, *CLIPPED)
    forked = with_controls / model
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(tmp_path / "full"), program_runs.read_checkpoint(forked)
    )
    full, forked = program_runs.read_results(tmp_path / "full"), program_runs.read_results(forked)
    assert full["train"] == forked["train"] and full["test"] == forked["test"]


def test_all_controls_are_every_network_with_every_control(with_controls):
    models = [run["model"] for run in program_runs.read_results(with_controls)["runs"]]
    controls = ("accumulation", "lower-rate", "decay")
    assert sorted(models) == sorted(
        ["base", "rank1", "late-phase", *controls, *(f"rank1-{control}" for control in controls)]
    )
    # What evaluates a folder of several models takes the last one.
    assert models[-1] == "late-phase"


def test_base_and_rank1_start_from_the_same_weights(tmp_path, text):
    first = {}
    for model in ("base", "rank1"):
        first[model] = program_runs.initial_checkpoint(
            "enwik8", text, tmp_path / model, "--model", model, *SMALL
        )
    for name in ("embedding", "kernel", "recurrent_kernel", "softmax_kernel"):
        assert numpy.array_equal(first["base"][name], first["rank1"][name])
    assert (
        "u" not in first["base"]
        and 0.99 <= first["rank1"]["u"].min() < first["rank1"]["u"].max() <= 1.01
    )
    assert numpy.abs(first["base"]["kernel"]).max() <= 0.01


def test_a_killed_run_goes_on_bit_for_bit(tmp_path, text):
    # T0 at 20 and the first SWA sample at 30 lie between the checkpoint of step 17 and the end;
    # steps long enough to kill in between.
    larger = (*SMALL, "--model", "late-phase", "--units", 200, "--t0", 2, "--swa-start", 2.5)
    program_runs.train("enwik8", text, tmp_path / "whole", *larger, "--steps", 40)
    program_runs.assert_resumes_bit_for_bit(tmp_path / "whole", 17, "enwik8", text, *larger)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_after_the_step_with_the_state_saved(tmp_path, text, number):
    run = tmp_path / "run"
    status, stderr = program_runs.kill_after_checkpoint(
        3,
        "enwik8",
        text,
        run,
        *SMALL,
        "--model",
        "rank1",
        "--checkpoint-every",
        3,
        signal_number=number,
    )
    assert status == 0, stderr
    assert f"To resume: tools/latephase train enwik8 --resume --out {run}" in stderr
    (folder,) = program_runs.checkpoint_folders(run)
    stopped = int(folder[-12:])
    assert f"stopped at step {stopped}" in stderr and not (run / "results.json").exists()
    resumed = program_runs.train("enwik8", text, run, "--resume", "--steps", stopped + 2)
    assert (
        f"resumes at step {stopped}" in resumed.stderr
        and program_runs.read_results(run)["steps"] == stopped + 2
    )


def test_resuming_all_keeps_what_is_finished(tmp_path, text, trained):
    results = program_runs.read_results(trained)
    again = program_runs.train("enwik8", text, trained, "--resume")
    assert "parameters" not in again.stderr  # nothing was trained
    assert program_runs.read_results(trained) == results


def test_seeds_give_runs_of_their_own(tmp_path, text):
    out = tmp_path / "seeds"
    program_runs.train(
        "enwik8", text, out, "--model", "base", *SMALL, "--steps", 4, "--seeds", 2, "--seed", 5
    )
    one, two = program_runs.read_results(out)["runs"]
    assert (one["seed"], two["seed"]) == (5, 6) and one["test"] != two["test"]
    assert sorted(os.listdir(out)) == ["config.toml", "results.json", "seed-5", "seed-6"]
    lines = enwik8_table.render(program_runs.read_results(out))
    values = [one["test"]["collapsed"]["bpc"], two["test"]["collapsed"]["bpc"]]
    assert f"{numpy.mean(values):.3f} ± {numpy.std(values, ddof=1):.3f}" in lines[2] and lines[
        2
    ].startswith("| Base |")


def test_a_run_repeats_from_its_config(tmp_path, text):
    program_runs.train("enwik8", text, tmp_path / "one", "--model", "rank1", *SMALL, "--seed", 9)
    program_runs.train(
        "enwik8", text, tmp_path / "two", "--preset", tmp_path / "one" / "config.toml"
    )
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(tmp_path / "one"),
        program_runs.read_checkpoint(tmp_path / "two"),
    )


@pytest.mark.parametrize("checkpoint_every", [1, 1000])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, text, checkpoint_every):
    run = tmp_path / "run"
    result = program_runs.try_train(
        "enwik8",
        text,
        run,
        *SMALL,
        "--model",
        "rank1",
        "--learning-rate",
        1e38,
        "--clip-norm",
        0,
        "--checkpoint-every",
        checkpoint_every,
    )
    assert (
        result.returncode == 1
        and "the loss must be finite. Received: loss=nan at step 1" in result.stderr
    ), result.stderr
    assert (
        "--learning-rate (now 1e+38)" in result.stderr
        and f"{run}/checkpoint/step-" in result.stderr
    )
    for name, value in program_runs.read_checkpoint(run).items():
        assert numpy.isfinite(value).all(), name


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--preset slow", "`preset` must be"),
        ("--members 1", "`members` must be an integer in [2, 1000]. Received: members=1"),
        (
            "--t0 3",
            "`t0` must be less than `epochs`, or the late phase never begins. Received: t0=3, "
            "epochs=3",
        ),
        ("--swa-start 1", "`swa_start` must be at least `t0`"),
        ("--gamma 2", "`gamma` must be a number in (0, 1]. Received: gamma=2"),
        (
            "--learning-rate nan",
            "`learning_rate` must be a number > 0. Received: learning_rate=nan",
        ),
        ("--dtype float16", "float32, float64"),
        ("--model rank2", "all, all-controls, base, rank1, accumulation, lower-rate, decay"),
        ("--device GPU:7", "`device` must be one of CPU:0"),
        ("--threads 0", "threads"),
        (
            "--train-characters 5000",
            "`train_characters` must be in [0, 3600], the training part of the text. "
            "Received: train_characters=5000",
        ),
        (
            "--batch 1000",
            "the training text must give each of `batch` streams "
            "at least `sequence` + 1 characters",
        ),
        ("--data /nowhere/text", "/nowhere/text"),
        ("--resume", "`out` must hold a run to resume, with its config.toml"),
        ("--fly 1", "--fly"),
    ],
)
def test_bad_input_names_the_rule_and_the_value(tmp_path, text, arguments, message):
    given = [] if "--data" in arguments else ["--data", text]
    result = program_runs.run(
        "train", "enwik8", *given, "--out", tmp_path / "run", *SMALL, *arguments.split()
    )
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not list(tmp_path.iterdir())


def test_unknown_programs_are_refused(tmp_path):
    (tmp_path / "config.toml").write_text('program = "mnist"\n')
    for arguments in (("train", "mnist"), ("eval", tmp_path), ("sample", tmp_path)):
        result = program_runs.run(*arguments)
        assert result.returncode == 2, result.stderr
        assert (
            "the training program must be one of enwik8" in result.stderr
            and "Received: mnist" in result.stderr
        )
        if arguments[0] != "train":
            assert f"Received: mnist in {tmp_path}/config.toml" in result.stderr


def test_a_folder_in_which_settings_were_being_written_is_free(text, tmp_path):
    """What is left by a process that was killed before it had a run to resume."""
    (tmp_path / "config.toml.part17-0").write_text("model = ")
    program_runs.train("enwik8", text, tmp_path, "--model", "base", *SMALL, "--steps", 1)
    assert not list(tmp_path.glob("config.toml.*")) and (tmp_path / "config.toml").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.toml.part1").write_text("mine")
    result = program_runs.try_train("enwik8", text, other, "--model", "base", *SMALL)
    assert result.returncode == 2 and "`out` must be new or empty" in result.stderr
    assert (other / "notes.toml.part1").read_text() == "mine"


def test_a_run_does_not_become_several(text, trained):
    base = os.path.join(trained, "base")
    for flags, runs in ((("--seeds", 3), 3), (("--model", "all"), 4)):
        result = program_runs.try_train("enwik8", text, base, "--resume", *flags)
        assert result.returncode == 2 and (
            f"`model` and `seeds` must be those of the one run in `out`. Received: {runs} runs, "
            f"out={base}, which has the checkpoint of one" in result.stderr
        )
    assert not os.path.exists(os.path.join(base, "seed-0"))


@pytest.mark.parametrize("steps", ['"thirty"', "[30]", "null", "29"])
def test_results_of_something_else_are_measured_again(tmp_path, text, trained, steps):
    run = tmp_path / "run"
    shutil.copytree(os.path.join(trained, "late-phase"), run)
    before = program_runs.read_results(run)
    changed = (run / "results.json").read_text().replace('"steps": 30', f'"steps": {steps}')
    (run / "results.json").write_text(changed)
    program_runs.train("enwik8", text, run, "--resume")
    after = program_runs.read_results(run)
    assert [after[name] for name in ("steps", "test")] == [
        before[name] for name in ("steps", "test")
    ]


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path, text):
    """A second one is told so, and the lock of a killed one is gone."""
    out = tmp_path / "run"
    first = program_runs.start_until_checkpoint(0, "enwik8", text, out, *ENDLESS)
    second = program_runs.try_train("enwik8", text, out, "--resume")
    assert second.returncode == 2
    assert (
        f"`out` must not be in use by another process. Received: out={out}, in which one is "
        "training" in second.stderr
    )
    assert first.poll() is None
    first.kill()
    first.communicate()
    steps = int(program_runs.checkpoint_folders(out)[-1][-12:])
    program_runs.train("enwik8", text, out, "--resume", "--steps", steps + 1)


def test_a_folder_that_is_removed_ends_the_training(tmp_path, text):
    """It is not made again with half of a run in it."""
    out = tmp_path / "run"
    process = program_runs.start_until_checkpoint(0, "enwik8", text, out, *ENDLESS)
    out.rename(tmp_path / "moved")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        f"cannot write to {out}: {out}/metrics.jsonl: No such file or directory" in stderr
        or f"{out}/checkpoint" in stderr  # while a checkpoint was written
    )
    assert not out.exists()
    steps = int(program_runs.checkpoint_folders(tmp_path / "moved")[-1][-12:])
    program_runs.train("enwik8", text, tmp_path / "moved", "--resume", "--steps", steps + 1)


def test_a_file_is_no_folder(text, tmp_path):
    (tmp_path / "file").write_text("")
    result = program_runs.try_train("enwik8", text, tmp_path / "file", "--model", "base", *SMALL)
    assert result.returncode == 2 and "`out` must be new or empty" in result.stderr


def test_another_run_is_never_overwritten(text, trained):
    before = program_runs.read_results(trained)
    result = program_runs.try_train("enwik8", text, trained, *SMALL)
    assert result.returncode == 2 and "`out` must be new or empty" in result.stderr
    result = program_runs.try_train(
        "enwik8", text, os.path.join(trained, "base"), "--resume", "--steps", 7
    )
    assert (
        result.returncode == 2
        and "`steps` must be at least 30, the minibatches done already. Received: steps=7"
        in result.stderr
    )
    # Nor continued as something else.
    result = program_runs.try_train(
        "enwik8",
        text,
        os.path.join(trained, "base"),
        "--resume",
        "--steps",
        40,
        "--learning-rate",
        0.5,
    )
    assert (
        result.returncode == 2
        and "as in the checkpoint. Received: base=adam lr=0.5" in result.stderr
    )
    # Nor on another text, whose epochs are as long.
    result = program_runs.try_train(
        *("enwik8", text, os.path.join(trained, "base"), "--resume"),
        *("--steps", 40, "--train-characters", 1638),
    )
    assert (
        result.returncode == 2
        and "`train_characters` must be 1608, as in the checkpoint. Received: train_characters=1638"
        in result.stderr
    )
    assert program_runs.read_results(trained) == before


def test_eval_gives_the_figures_of_the_run(text, trained):
    test = program_runs.read_results(trained)["runs"][-1]["test"]
    result = program_runs.run("eval", trained, "--data", text, "--threads", 2)
    assert result.returncode == 0, result.stderr
    rows = dict(
        line.strip("| ").split(" | ")
        for line in result.stdout.splitlines()
        if line.startswith("| ")
    )
    expected = {"collapsed": test["collapsed"], "swa": test["swa"], "ensemble": test["ensemble"]}
    expected.update({f"member-{k}": member for k, member in enumerate(test["members"])})
    for weights, figures in expected.items():
        assert rows[weights] == f"{figures['bpc']:.4f}"
    one = program_runs.run(
        "eval", trained, "--data", text, "--weights", "member-1,current", "--threads", 2
    )
    # The last of 18 minibatches was member 2's.
    assert (
        f"| member-1 | {rows['member-1']} |" in one.stdout
        and f"| current | {rows['member-2']} |" in one.stdout
    )


def test_eval_on_another_split(text, trained):
    validation = program_runs.read_results(trained)["runs"][-1]["validation"]
    evaluate = lambda split: program_runs.run(
        "eval", trained, "--data", text, "--weights", "swa", "--split", split, "--threads", 2
    )
    assert (
        f"| weights | validation BPC |\n|---|---|\n| swa | {validation['swa']['bpc']:.4f} |\n"
        in evaluate("validation").stdout
    )
    refused = evaluate("train")
    assert (
        refused.returncode == 2
        and "`split` must be one of validation, test. Received: split=train" in refused.stderr
    )


def test_eval_of_several_runs_has_a_row_for_each(tmp_path, text, trained):
    runs = [os.path.join(trained, model) for model in ("base", "rank1")]
    result = program_runs.run(
        "eval",
        *runs,
        "--data",
        text,
        "--weights",
        "collapsed",
        "--out",
        tmp_path / "out",
        "--threads",
        2,
    )
    assert result.returncode == 0, result.stderr
    figures = [program_runs.read_results(run)["test"]["collapsed"]["bpc"] for run in runs]
    rows = [f"| {run} | collapsed | {bpc:.4f} |" for run, bpc in zip(runs, figures)]
    assert result.stdout.splitlines()[3:] == [
        "| run | weights | test BPC |",
        "|---|---|---|",
        *rows,
    ]
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert [(row["run"], row["weights"]) for row in evaluation["rows"]] == [
        (run, "collapsed") for run in runs
    ]
    assert [row["bpc"] for row in evaluation["rows"]] == pytest.approx(figures)


def test_eval_refuses_what_is_for_images(tmp_path, text, trained):
    for flags in (["--ood", text], ["--corrupt=generated"], ["--flatness", 0.1], ["--ensemble"]):
        result = program_runs.run(
            "eval", trained, "--data", text, "--out", tmp_path / "out", *flags
        )
        message = (
            f"{flags[0].split('=')[0]} is for runs of cifar, whose networks classify images. "
            "Received: a run of enwik8"
        )
        assert (
            result.returncode == 2 and message in result.stderr and not (tmp_path / "out").exists()
        ), result.stderr


def test_eval_takes_the_first_of_several_seeds(tmp_path, text):
    out = tmp_path / "seeds"
    program_runs.train(
        "enwik8", text, out, "--model", "base", *SMALL, "--steps", 2, "--seeds", 2, "--seed", 5
    )
    result = program_runs.run("eval", out, "--data", text)
    assert result.returncode == 0 and result.stdout.startswith(f"{out}/seed-5, step 2\n"), (
        result.stderr
    )


@pytest.mark.parametrize(
    "model, weights, message",
    [
        (
            "late-phase",
            "member-3",
            "no such weights: member-3; this run has collapsed, current, swa, member-0 to "
            "member-2, ensemble",
        ),
        ("late-phase", "average", "no such weights: average; there are collapsed, swa, members"),
        ("nowhere", "swa", "RUN_DIR must be the folder of a run"),
    ],
)
def test_eval_says_what_a_run_does_not_have(text, trained, model, weights, message):
    result = program_runs.run(
        "eval", os.path.join(trained, model), "--data", text, "--weights", weights
    )
    assert result.returncode == 2 and message in result.stderr


def test_eval_before_the_late_phase_and_without_swa(tmp_path, text):
    program_runs.train(
        "enwik8", text, tmp_path / "run", "--model", "late-phase", *SMALL, "--steps", 3
    )
    for weights, message in (
        (
            "swa",
            "no such weights: swa; this run has collapsed, current (SWA has no sample at step 3)",
        ),
        (
            "ensemble",
            "no such weights: ensemble; this run has collapsed, current (the members are spawned "
            "at step 12)",
        ),
    ):
        result = program_runs.run("eval", tmp_path / "run", "--data", text, "--weights", weights)
        assert result.returncode == 2 and message in result.stderr
    assert "| collapsed |" in program_runs.run("eval", tmp_path / "run", "--data", text).stdout


def test_sample_writes_text_of_the_vocabulary(trained):
    sample = lambda *flags: program_runs.run(
        "sample", trained, "--prompt", "1234", "--length", 50, *flags
    )
    one, again, other = sample(), sample(), sample("--seed", 1)
    assert one.returncode == 0 and one.stdout.startswith("1234") and len(one.stdout) == 4 + 50 + 1
    assert set(one.stdout[:-1]) <= {chr(32 + token) for token in range(30)}
    assert one.stdout == again.stdout != other.stdout
    assert sample("--temperature", 0).stdout == sample("--temperature", 0, "--seed", 1).stdout
    refused = program_runs.run("sample", trained, "--prompt", "Ü")
    assert (
        refused.returncode == 2
        and "`prompt` must consist of characters of the training text. Received: the byte 195"
        in refused.stderr
    )


def test_tables_hold_the_figures_of_the_runs(trained):
    results = program_runs.read_results(trained)
    lines = enwik8_table.render(results)
    late_phase = results["runs"][-1]
    row = [
        f"{late_phase['train']['bpc']:.3f}",
        f"{late_phase['test']['collapsed']['bpc']:.3f}",
        f"{late_phase['test']['swa']['bpc']:.3f}",
    ]
    assert f"| Late-phase Rank1 | {' | '.join(row)} | 1.522 | 1.633 | 1.615 |" in lines
    assert f"their predictions averaged: {late_phase['test']['ensemble']['bpc']:.3f}" in lines[-1]
    members = [member["bpc"] for member in late_phase["test"]["members"]]
    assert f"{min(members):.3f} to {max(members):.3f} each" in lines[-1]
