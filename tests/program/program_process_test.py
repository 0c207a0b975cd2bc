"""The programs as processes: how many threads they have, and what Ctrl-C and SIGTERM do to them, on
a terminal and off it.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from tests.support import cifar_files, enwik8_text, program_runs
from tests.support.terminal import Project

# Without end, and with a checkpoint after every minibatch.
ENDLESS = (
    "--units 24 --embedding 8 --batch 8 --sequence 20 --train-characters 1608 "
    "--validation-characters 0 --test-characters 0 --evaluate-every 0 --checkpoint-every 1 "
    "--steps 1000000000"
).split()
FOUND = "def find(data):\n    return {!r}\n"  # in place of enwik8_data.py
COMM = "latephase_program"[:15]  # the kernel's name for the process
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", 4000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    run = tmp_path_factory.mktemp("runs") / "run"
    program_runs.train("enwik8", text, run, *ENDLESS[:-4], "--model", "rank1", "--steps", 2)
    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of CIFAR, and a run on it."""
    files = cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"))
    run = tmp_path_factory.mktemp("runs") / "run"
    program_runs.train(
        "cifar", files, run, "--model", "base", "--network", "convnet", "--batch", 10, "--steps", 1
    )
    return files, run


@pytest.fixture
def project(tmp_path):
    """The real programs in it."""
    project = Project(tmp_path / "project")
    shutil.copytree(program_runs.PRESETS, project.folder / "models" / "presets", dirs_exist_ok=True)
    (project.folder / "bazel-bin/tools/program").mkdir(parents=True)
    (project.folder / "bazel-bin/tools/program/latephase_program").symlink_to(program_runs.PROGRAM)
    return project


def wait_for(process, condition):
    begin = time.monotonic()
    while not condition():
        if process.poll() is not None or time.monotonic() - begin > 100:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.005)


def threads_of(pid):
    """How many. (Only some releases of TensorFlow give theirs names.)"""
    return len(os.listdir(f"/proc/{pid}/task"))


def test_threads_are_as_many_as_asked_for(tmp_path, text):
    found = {}
    for threads in (1, 2, 5):
        run = tmp_path / f"run-{threads}"
        process = subprocess.Popen(
            program_runs.command(
                "train",
                "enwik8",
                "--data",
                text,
                "--out",
                run,
                "--threads",
                threads,
                "--model",
                "base",
                *ENDLESS,
            ),
            stderr=subprocess.PIPE,
            text=True,
            env=program_runs.ENVIRONMENT,
        )
        try:
            wait_for(
                process,
                lambda: any(
                    int(folder[-12:]) >= 2 for folder in program_runs.checkpoint_folders(run)
                ),
            )
            found[threads] = threads_of(process.pid)
        finally:
            process.kill()
            process.communicate()
    # Besides those inside ops: the main thread, the one that prepares minibatches, one that runs
    # ops one at a time, and one that TensorFlow folds constants with.
    assert found == {threads: threads + 4 for threads in found}


def send(terminal, number):
    if number == signal.SIGINT:
        terminal.press()
    else:
        os.kill(terminal.pid, number)  # tools/latephase alone
    terminal.wait_for("tools/latephase: interrupted")


@SIGNALS
def test_training_saves_its_state_and_says_how_to_resume(project, text, number):
    run = project.folder / "run"
    project.write("python/late_phase_cli/enwik8_data.py", FOUND.format(text))
    with project.terminal(
        "train", "enwik8", "--out", str(run), *ENDLESS, "--model", "rank1"
    ) as terminal:
        terminal.wait_for(
            lambda: (
                len(program_runs.checkpoint_folders(run))
                and program_runs.checkpoint_folders(run)[-1][-12:] >= f"{3:012}"
            )
        )
        send(terminal, number)
        assert terminal.end() == 0, terminal.said
        terminal.assert_alone()
    (folder,) = program_runs.checkpoint_folders(run)
    step = int(folder[-12:])
    assert "rank1: will stop after this step and save its state" in terminal.said
    assert f"rank1: stopped at step {step}; the state is saved" in terminal.said
    assert f"To resume: tools/latephase train enwik8 --resume --out {run}" in terminal.said
    assert [line["step"] for line in program_runs.read_metrics(run)] == list(
        range(100, step + 1, 100)
    )
    assert not [
        name for _, _, names in os.walk(run) for name in names if ".part" in name
    ] and not os.listdir(project.folder / "tmp")
    program_runs.train("enwik8", text, run, "--resume", "--steps", step + 1)
    assert program_runs.read_results(run)["steps"] == step + 1


def handles_signals(terminal):
    """The program behind a terminal, once it listens to Ctrl-C; None before."""
    for pid in terminal.processes():
        try:
            status = dict(
                line.split(":\t", 1)
                for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
            )
        except OSError:
            continue
        if status["Name"] == COMM and int(status["SigCgt"], 16) >> (signal.SIGINT - 1) & 1:
            return pid
    return None


def cpu_seconds(pid):
    user, system = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_a_second_ctrl_c_ends_training_at_once(project, tmp_path):
    # Minibatches of several seconds: 0.8 TFLOP on one thread.
    text = enwik8_text.write_text(tmp_path / "long", 100_000)
    run = project.folder / "run"
    project.write("python/late_phase_cli/enwik8_data.py", FOUND.format(text))
    with project.terminal(
        "train",
        "enwik8",
        "--out",
        str(run),
        "--model",
        "rank1",
        "--units",
        "1000",
        "--batch",
        "64",
        "--sequence",
        "500",
        "--train-characters",
        "0",
        "--validation-characters",
        "0",
        "--test-characters",
        "0",
        "--threads",
        "1",
    ) as terminal:
        terminal.wait_for(lambda: program_runs.checkpoint_folders(run))
        pid = handles_signals(terminal)
        begin = cpu_seconds(pid)
        terminal.wait_for(lambda: cpu_seconds(pid) > begin + 0.5)  # in mid-step
        send(terminal, signal.SIGINT)
        terminal.wait_for("will stop after this step")
        terminal.press()
        assert terminal.end() == 130, terminal.said
        terminal.assert_alone()
    assert "stopped at step" not in terminal.said and "To resume" in terminal.said
    assert program_runs.read_checkpoint(run)["late_phase/step"] == 0


@SIGNALS
@pytest.mark.parametrize("command", ["train", "eval", "sample", "nqp"])
def test_what_has_nothing_to_save_ends_at_once(project, text, trained, images, command, number):
    files, run = images
    project.write("python/late_phase_cli/enwik8_data.py", FOUND.format(text))
    out = project.folder / "out"
    flags = {
        "train": [
            "train",
            "cifar",
            "--data",
            files,
            "--preset",
            "wrn-28-10",
            "--out",
            out,
        ],  # its graph takes seconds to build
        "eval": [
            "eval",
            run,
            "--data",
            files,
            "--flatness",
            "1",
            "--samples",
            "100000",
            "--out",
            out,
        ],
        "sample": ["sample", trained, "--prompt", "0", "--length", "100000000"],
        "nqp": ["nqp", "--iterations", "1000000000", "--out", out],
    }
    with project.terminal(*map(str, flags[command])) as terminal:
        terminal.wait_for(lambda: handles_signals(terminal))
        if command != "train":
            time.sleep(1)
        send(terminal, number)
        assert terminal.end() == 128 + number, terminal.said  # the work would take hours
        terminal.assert_alone()
    assert f"tools/latephase {command}: stopped; no results were written" in terminal.said
    assert not out.exists() or not os.listdir(out)


@SIGNALS
def test_signals_ignored_on_entry_are_heard(trained, number):
    """As a program has them in the background of a shell script."""
    process = subprocess.Popen(
        program_runs.command("sample", trained, "--prompt", "0", "--length", 100000000),
        stderr=subprocess.PIPE,
        text=True,
        env=program_runs.ENVIRONMENT,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )
    ignored = lambda: (
        int(pathlib.Path(f"/proc/{process.pid}/status").read_text().split("SigIgn:\t")[1][:16], 16)
        >> (number - 1)
        & 1
    )
    wait_for(process, lambda: not ignored())
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "tools/latephase sample: stopped" in stderr


@SIGNALS
def test_a_sweep_saves_every_state(project, text, number):
    out = project.folder / "sweep"
    project.write("python/late_phase_cli/enwik8_data.py", FOUND.format(text))
    with project.terminal(
        "sweep", "enwik8", "--out", str(out), "--over", "sigma=0.1,0.2", "--parallel", "2", *ENDLESS
    ) as terminal:
        runs = [out / f"sigma-{sigma}" / "seed-0" for sigma in (0.1, 0.2)]
        terminal.wait_for(lambda: all(program_runs.checkpoint_folders(run) for run in runs))
        send(terminal, number)
        assert terminal.end() == 0, terminal.said
        terminal.assert_alone()
    assert (
        "Stopped; the states are saved. To resume: tools/latephase sweep enwik8" in terminal.said
        and "failed" not in terminal.said
    )
    for run in runs:
        (folder,) = program_runs.checkpoint_folders(run)
        assert (
            f"stopped at step {int(folder[-12:])}; the state is saved"
            in pathlib.Path(f"{run}.log").read_text()
        )


@SIGNALS
def test_runs_at_the_same_time_save_their_states(project, text, number):
    out = project.folder / "runs"
    project.write("python/late_phase_cli/enwik8_data.py", FOUND.format(text))
    with project.terminal(
        "train", "enwik8", "--out", str(out), "--model", "all", "--parallel", "2", *ENDLESS
    ) as terminal:
        runs = [out / "base", out / "rank1"]
        terminal.wait_for(lambda: all(program_runs.checkpoint_folders(run) for run in runs))
        send(terminal, number)
        assert terminal.end() == 0, terminal.said
        terminal.assert_alone()
    assert (
        "Stopped; the states are saved. To resume: tools/latephase train enwik8 "
        f"--resume --out {out} --parallel 2" in terminal.said
    )
    assert (
        "failed" not in terminal.said
        and "the runs will save their states and stop" in terminal.said
    )
    for run in runs:
        (folder,) = program_runs.checkpoint_folders(run)
        assert (
            f"stopped at step {int(folder[-12:])}; the state is saved"
            in pathlib.Path(f"{run}.log").read_text()
        )
    assert not (out / "late-phase").exists() and not (out / "results.json").exists()
