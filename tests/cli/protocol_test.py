"""The C++ program's part of the conversation with the driver (tools/program/driver.h), and the
driver around the real program.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support import cifar_files, enwik8_text, program_runs

SMALL = enwik8_text.SMALL


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", 4000)


class Conversation:
    """The program, with this test as its driver: `answer` is what it answers, `messages` all that
    it was told.
    """

    def __init__(self, *arguments, answer=None):
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                program_runs.command(*arguments),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                pass_fds=[theirs.fileno()],
                env={**program_runs.ENVIRONMENT, "LATE_PHASE_DRIVER": str(theirs.fileno())},
            )
        self.messages = []
        with ours, ours.makefile("r") as lines:
            for line in lines:
                self.messages.append(json.loads(line))
                if "needs" in self.messages[-1]:
                    ours.sendall(json.dumps(answer).encode() + b"\n")
        self.stdout, self.stderr = process.communicate()
        self.status = process.returncode

    def of(self, kind):
        return [message for message in self.messages if kind in message]


def test_enwik8_is_asked_for_and_the_end_is_told(tmp_path, text):
    flags = [*SMALL, "--model", "base", "--out", tmp_path / "run"]
    said = Conversation("train", "enwik8", "--data", "my text", *flags, answer={"path": text})
    assert said.status == 0, said.stderr
    assert said.messages[0] == {"needs": "enwik8", "data": "my text"}
    assert said.messages[-1] == {"finished": "enwik8", "folder": str(tmp_path / "run")}
    progress = [message["progress"] for message in said.of("progress")]
    assert [one["done"] for one in progress] == pytest.approx([(i + 1) / 6 for i in range(6)])
    assert all(" bpc, " in one["text"] and one["text"].endswith(" left") for one in progress)
    assert (tmp_path / "run" / "results.json").exists()
    evaluated = Conversation("eval", tmp_path / "run", answer={"path": text})
    assert evaluated.messages == [
        {"needs": "enwik8", "data": None},
        {"finished": "eval", "folder": str(tmp_path / "run" / "evaluation")},
    ]
    sampled = Conversation("sample", tmp_path / "run", "--prompt", "0", "--length", 3)
    assert (sampled.status, sampled.messages) == (0, [])


def test_a_complaint_of_the_driver_is_told_as_the_programs_own(tmp_path):
    said = Conversation(
        "train", "enwik8", *SMALL, "--out", tmp_path / "run", answer={"error": "no text today"}
    )
    assert (
        said.status == 2
        and said.stderr.endswith("tools/latephase train enwik8: no text today\n")
        and not list(tmp_path.iterdir())
    )


def test_images_are_read_where_they_are(tmp_path):
    files = cifar_files.write_cifar(tmp_path / "files")
    said = Conversation(
        "train",
        "cifar",
        "--data",
        files,
        "--out",
        tmp_path / "run",
        "--model",
        "base",
        "--network",
        "convnet",
        "--batch",
        10,
        "--steps",
        1,
    )
    assert said.status == 0 and not said.of("needs"), said.stderr
    assert said.messages[-1] == {"finished": "cifar", "folder": str(tmp_path / "run")}


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    """A folder of CIFAR, and a run on it."""
    files = cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"))
    run = tmp_path_factory.mktemp("runs") / "run"
    program_runs.train(
        "cifar", files, run, "--model", "base", "--network", "convnet", "--batch", 10, "--steps", 1
    )
    return files, str(run)


@pytest.mark.parametrize(
    "arguments, images, data",
    [
        ("RUN --data FILES --corrupt", 1000, "FILES"),
        ("--corrupt RUN --data FILES --corrupt-images 7", 7, "FILES"),
        ("--data=FILES RUN --corrupt --weights collapsed", 1000, "FILES"),
        ("RUN --corrupt=generated", 1000, None),
    ],
)
def test_corrupted_images_are_asked_for_where_none_are_named(
    tmp_path, monkeypatch, image_run, arguments, images, data
):
    files, run = image_run
    monkeypatch.setitem(program_runs.ENVIRONMENT, "LATE_PHASE_DATA", files)
    arguments = arguments.replace("FILES", files).replace("RUN", run).split()
    said = Conversation(
        "eval", *arguments, "--out", tmp_path / "out", answer={"error": "none today"}
    )
    assert said.messages == [
        {"needs": "corruptions", "run": run, "data": data and files, "images": images}
    ]
    assert (
        said.status == 2
        and "tools/latephase eval: none today" in said.stderr
        and not list(tmp_path.iterdir())
    )


@pytest.mark.parametrize(
    "arguments", ["RUN --corrupt FOLDER --weights collapsed", "RUN --corrupt=FOLDER"]
)
def test_a_folder_of_corrupted_images_is_read(tmp_path, image_run, arguments):
    files, run = image_run
    arguments = arguments.replace("RUN", run).replace("FOLDER", str(tmp_path / "none")).split()
    said = Conversation("eval", *arguments, "--data", files, "--out", tmp_path / "out")
    assert said.status == 2 and not said.messages and f"{tmp_path}/none" in said.stderr


def test_without_a_driver_nothing_is_generated(tmp_path, image_run):
    files, run = image_run
    said = program_runs.run("eval", run, "--corrupt", "--data", files, "--out", tmp_path / "out")
    assert (
        said.returncode == 2
        and "`corrupt` must name a folder of corrupted images. Received: corrupt=generated"
        in said.stderr
    )


def plan_of(text, out, *flags):
    said = Conversation(
        "train", "enwik8", "--data", text, "--out", out, *SMALL, *flags, answer={"path": text}
    )
    assert said.status == 0, said.stderr
    (plan,) = (message["plan"] for message in said.of("plan"))
    return plan


def test_the_plan_of_several_runs(tmp_path, text):
    out = str(tmp_path / "all")
    plan = plan_of(
        text, out, "--model", "all", "--seeds", 2, "--seed", 4, "--parallel", 3, "--threads", 2
    )
    assert (plan["folder"], plan["parallel"], plan["threads"]) == (out, 3, 2)
    assert (
        plan["resume"]
        == f"tools/latephase train enwik8 --resume --out {out} --parallel 3 --threads 2"
    )
    models = ["base", "rank1", "rank1-accumulation", "late-phase"]
    assert [(run["model"], run["seed"]) for run in plan["runs"]] == [
        (model, seed) for seed in (4, 5) for model in models
    ]
    for run in plan["runs"]:
        folder = f"{out}/seed-{run['seed']}"
        forked = run["model"] in models[2:]
        assert (
            run["name"] == f"{run['model']}, seed {run['seed']}"
            and run["folder"] == f"{folder}/{run['model']}"
        )
        assert (
            run["fork_from"] == (f"{folder}/rank1" if forked else None)
            and run["ready"] == (not forked)
            and not run["finished"]
        )
    # What they share is written, and nothing is trained yet.
    assert os.listdir(out) == ["config.toml"]


def test_a_run_of_a_plan_is_trained_alone_and_forks_when_it_can(tmp_path, text):
    out = tmp_path / "all"
    plan = plan_of(text, out, "--model", "all", "--parallel", 2, "--threads", 1)
    base, rank1, accumulation, late_phase = plan["runs"]
    trunk = Conversation(*rank1["arguments"], answer={"path": text})
    assert trunk.status == 0, trunk.stderr
    assert trunk.of("forked") == [{"forked": rank1["folder"]}] and trunk.messages[-1] == {
        "finished": "enwik8",
        "folder": rank1["folder"],
    }
    # It was told before the trunk had gone on to its end.
    assert trunk.messages.index({"forked": rank1["folder"]}) < trunk.messages.index(
        trunk.of("progress")[-1]
    )
    assert (
        sorted(os.listdir(out)) == ["config.toml", "rank1"] and not (out / "results.json").exists()
    )

    again = Conversation(
        "train",
        "enwik8",
        "--data",
        text,
        "--resume",
        "--out",
        out,
        "--parallel",
        2,
        "--threads",
        1,
        answer={"path": text},
    )
    (plan,) = (message["plan"] for message in again.of("plan"))
    assert [(run["model"], run["finished"], run["ready"]) for run in plan["runs"]] == [
        ("base", False, True),
        ("rank1", True, True),
        ("rank1-accumulation", False, True),
        ("late-phase", False, True),
    ]
    forked = Conversation(*late_phase["arguments"], answer={"path": text})
    assert forked.status == 0 and "late-phase: forked from rank1 at step 12" in forked.stderr

    # Whoever collects trains what is missing, and nothing twice.
    before = (out / "rank1" / "results.json").stat().st_mtime_ns
    collected = Conversation(*plan["collect"], answer={"path": text})
    assert collected.status == 0 and collected.messages[-1] == {
        "finished": "enwik8",
        "folder": str(out),
    }, collected.stderr
    assert [run["model"] for run in program_runs.read_results(out)["runs"]] == [
        "base",
        "rank1",
        "rank1-accumulation",
        "late-phase",
    ]
    assert (out / "rank1" / "results.json").stat().st_mtime_ns == before and not (
        out / "rank1" / "fork"
    ).exists()
    assert all(run["threads"] == 1 for run in program_runs.read_results(out)["runs"])


def test_runs_at_a_time_are_those_that_start_from_scratch(tmp_path, text):
    cores = len(os.sched_getaffinity(0))
    for flags, scratch in ((["--model", "all"], 2), (["--model", "base", "--seeds", 3], 3)):
        out = tmp_path / f"run-{scratch}"
        said = Conversation(
            "train",
            "enwik8",
            "--data",
            text,
            "--out",
            out,
            *SMALL,
            *flags,
            "--steps",
            1,
            answer={"path": text},
        )
        parallel = min(cores, scratch)
        assert [message["plan"]["parallel"] for message in said.of("plan")] == [parallel] * (
            parallel > 1
        ), said.stderr
        assert all(
            message["plan"]["threads"] == max(1, cores // parallel) for message in said.of("plan")
        )


def test_a_plan_must_fit_into_memory(tmp_path, text):
    said = Conversation(
        "train",
        "enwik8",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        *SMALL,
        "--units",
        3000,
        "--model",
        "base",
        "--seeds",
        999,
        "--parallel",
        999,
        answer={"path": text},
    )
    assert (
        said.status == 2 and "must fit into memory" in said.stderr and "parallel=999" in said.stderr
    ), said.stderr
    assert not (tmp_path / "run").exists()


def test_one_run_needs_no_plan(tmp_path, text):
    said = Conversation(
        "train",
        "enwik8",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        *SMALL,
        "--model",
        "base",
        "--steps",
        1,
        "--parallel",
        4,
        answer={"path": text},
    )
    assert said.status == 0 and not said.of("plan") and said.of("finished")


def test_a_program_whose_driver_is_killed_saves_its_state(tmp_path, text):
    run = tmp_path / "run"
    process = program_runs.driver(
        "train",
        "enwik8",
        "--out",
        run,
        *SMALL,
        "--model",
        "base",
        "--checkpoint-every",
        10**9,
        "--steps",
        10**9,
        env=small_enwik8(tmp_path, text),
    )
    begin = time.monotonic()
    while not (run / "metrics.jsonl").exists() or not program_runs.read_metrics(run):  # some steps
        assert process.poll() is None and time.monotonic() - begin < 100, process.communicate()
        time.sleep(0.01)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        (child,) = file.read().split()
    process.kill()
    process.wait()
    try:
        killed = time.monotonic()
        while os.path.exists(f"/proc/{child}"):
            assert time.monotonic() - killed < 60
            time.sleep(0.01)
    except AssertionError:
        os.kill(int(child), signal.SIGKILL)  # it has no end of its own
        raise
    step = int(program_runs.checkpoint_folders(run)[-1][-12:])
    resumed = program_runs.train("enwik8", text, run, "--resume", "--steps", step + 1)
    assert step > 0 and f"at step {step}" in resumed.stderr


def small_enwik8(folder, text):
    """An environment in which Python takes the text for enwik8."""
    (folder / "python").mkdir(exist_ok=True)
    (folder / "python" / "sitecustomize.py").write_text(
        "from late_phase_cli import enwik8_data\nenwik8_data.find = lambda data, text=None: "
        f"{text!r}\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder / "python"), *filter(None, sys.path)])}


# --- The driver around the program.

FOLDERS = ["base", "rank1", "rank1-accumulation", "late-phase"]


def assert_same_runs(one, other):
    for folder in FOLDERS:
        program_runs.assert_same_bits(
            program_runs.read_checkpoint(one / folder), program_runs.read_checkpoint(other / folder)
        )
        for metrics in ("train", "validation", "test"):
            assert (
                program_runs.read_results(one / folder)[metrics]
                == program_runs.read_results(other / folder)[metrics]
            )
    assert [run["test"] for run in program_runs.read_results(one)["runs"]] == [
        run["test"] for run in program_runs.read_results(other)["runs"]
    ]


def drive_training(out, *flags, parallel, env):
    """The driver's `train enwik8`, with one thread per run."""
    command = ["train", "enwik8", "--out", out, *flags, "--parallel", parallel, "--threads", 1]
    return program_runs.drive(*command, env=env)


@pytest.fixture(scope="module")
def in_a_row(tmp_path_factory, text):
    """All models, one after the other."""
    folder = tmp_path_factory.mktemp("row")
    trained = drive_training(
        folder / "run", "--model", "all", *SMALL, parallel=1, env=small_enwik8(folder, text)
    )
    assert trained.returncode == 0 and "at a time" not in trained.stderr, trained.stderr
    return folder / "run"


def test_runs_at_the_same_time_have_the_bits_of_runs_in_a_row(tmp_path, text, in_a_row):
    out = tmp_path / "run"
    trained = drive_training(
        out, "--model", "all", *SMALL, parallel=2, env=small_enwik8(tmp_path, text)
    )
    assert trained.returncode == 0, trained.stderr
    assert "4 runs, 0 of them finished; 2 at a time, 1 thread each" in trained.stderr
    assert_same_runs(in_a_row, out)
    assert (
        "forked from rank1 at step 12" in (out / "late-phase.log").read_text()
        and not (out / "rank1" / "fork").exists()
    )
    # A line for each, with its result and how many there are by then.
    lines = [line for line in trained.stderr.splitlines() if ": test " in line]
    assert len(lines) == 4
    for place, line in enumerate(lines, 1):
        name = line.partition(":")[0]
        bpc = program_runs.read_results(out / name)["test"]["collapsed"]["bpc"]
        assert line.startswith(f"{name}: test {bpc:.4f} bpc, with SWA "), line
        assert line.endswith(f"; {place} of 4 runs finished"), line
    table = trained.stdout.splitlines()
    assert (
        table[0].startswith("| bits per character |")
        and f"{out}/results.json" in table
        and f"{out}/curves.png" in table
    )


def wait_for_checkpoint(process, folder, step):
    begin = time.monotonic()
    while not any(int(path[-12:]) >= step for path in program_runs.checkpoint_folders(folder)):
        assert process.poll() is None and time.monotonic() - begin < 100, process.communicate()
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_and_killed_drivers_leave_runs_that_resume_bit_for_bit(tmp_path, text, number):
    # Steps long enough to be stopped in between.
    flags = ["--model", "all", *SMALL, "--units", 200, "--checkpoint-every", 3]
    environment = small_enwik8(tmp_path, text)
    out = tmp_path / "stopped"
    process = program_runs.driver(
        "train", "enwik8", "--out", out, *flags, "--parallel", 2, "--threads", 1, env=environment
    )
    wait_for_checkpoint(process, out / "rank1", 6)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = file.read().split()
    assert children  # one of the two if `base`, which nobody waits for here, has ended already
    process.send_signal(number)
    _, stderr = process.communicate()
    begin = time.monotonic()
    while any(
        os.path.exists(f"/proc/{child}") for child in children
    ):  # runs do not outlive their driver
        assert time.monotonic() - begin < 60
        time.sleep(0.01)
    resume = f"tools/latephase train enwik8 --resume --out {out} --parallel 2 --threads 1"
    if number == signal.SIGTERM:
        assert (
            process.returncode == 0
            and f"Stopped; the states are saved. To resume: {resume}" in stderr
        ), stderr
        assert "stopped at step" in (out / "rank1.log").read_text()
    assert not (out / "results.json").exists() and not (out / "rank1" / "results.json").exists()
    assert not [name for _, _, names in os.walk(out) for name in names if ".part" in name]

    resumed = program_runs.drive(*resume.split()[1:], env=environment)
    assert resumed.returncode == 0, resumed.stderr
    whole = drive_training(tmp_path / "whole", *flags, parallel=1, env=environment)
    assert whole.returncode == 0, whole.stderr
    assert_same_runs(tmp_path / "whole", out)


def test_a_model_that_fails_keeps_the_states_of_the_others(tmp_path, text):
    environment, out = small_enwik8(tmp_path, text), tmp_path / "run"
    checked = drive_training(
        out, "--model", "all", *SMALL, "--dry-run", parallel=2, env=environment
    )
    assert checked.returncode == 0, checked.stderr
    out.mkdir()
    (out / "config.toml").write_text(checked.stdout)
    (out / "rank1").write_text("in the way")
    failed = drive_training(out, "--resume", parallel=2, env=environment)
    assert failed.returncode == 1 and "rank1: failed with status" in failed.stderr, failed.stderr
    assert (
        "late-phase: not trained" in failed.stderr
        and program_runs.read_results(out / "base")["steps"] == 30
    )
    (out / "rank1").unlink()
    again = drive_training(out, "--resume", parallel=2, env=environment)
    assert again.returncode == 0 and "4 runs, 1 of them finished" in again.stderr, again.stderr


# --- Completion.


def complete(script, *words):
    """What bash offers for the last of the words."""
    program = (
        f"{script}\nCOMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; "
        '_latephase; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    run = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    return set(run.stdout.split())


def test_bash_completes_commands_flags_and_words():
    made = program_runs.drive("completion", "bash")
    assert made.returncode == 0, made.stderr
    offered = lambda *words: complete(made.stdout, "latephase", *words)
    assert {"train", "eval", "sweep", "report"} <= offered("") and offered("tr") == {"train"}
    assert offered("train", "") == {"enwik8", "cifar"} and offered("bench", "l") == {"lstm"}
    assert offered("train", "enwik8", "--pre") == {
        "--preset",
        "--pretrained",
    } and "--units" not in offered("train", "cifar", "--")
    assert {"quick", "small", "paper"} <= offered("train", "enwik8", "--preset", "")
    assert {"base", "rank1", "late-phase", "all"} <= offered("train", "enwik8", "--model", "")
    assert offered("train", "cifar", "--flip", "") == {"true", "false"}
    assert {"--over", "--grid", "--members"} <= offered("sweep", "cifar", "--") and offered(
        "eval", "--cor"
    ) == {"--corrupt", "--corrupt-images"}
    assert "--only" not in offered("train", "enwik8", "--") and offered("report", "--t") == {
        "--title"
    }
    # Where nothing fits, bash completes files.
    assert (
        offered("eval", "runs/") == set()
        and "complete -o default -F _latephase latephase" in made.stdout
    )
