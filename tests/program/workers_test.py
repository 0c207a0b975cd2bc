"""Several workers as processes: what they refuse, how they stop, what becomes of a run when one of
them is killed or hangs, and that nothing listens unless it is asked to.
"""

import glob
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.support import cifar_files, enwik8_text, program_runs, worker_runs

SMALL = [*enwik8_text.SMALL, "--model", "late-phase"]  # 30 minibatches
KILLS = int(os.environ.get("LATE_PHASE_KILLS", 2))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", 4000)


def wait_for_checkpoint(workers, out, step):
    begin = time.monotonic()
    while not any(int(folder[-12:]) >= step for folder in program_runs.checkpoint_folders(out)):
        ended = [process.poll() for process in workers.processes]
        assert ended == [None] * len(ended) and time.monotonic() - begin < 100, workers.all_said()
        time.sleep(0.01)


def refusals(count, text, out, **options):
    """What each worker says when all of them refuse to begin."""
    with worker_runs.Workers(count, "enwik8", text, out, *SMALL, **options) as workers:
        assert workers.end() == [2] * count, workers.all_said()
        assert not os.path.exists(out)
        return [workers.said(task) for task in range(count)], workers.addresses


def test_a_worker_with_another_setting_is_refused_by_name(tmp_path, text):
    said, addresses = refusals(2, text, tmp_path / "run", of_task={1: ["--clip-norm", "0.5"]})
    for one in said:
        assert (
            f"`clip_norm` must be 1.0 for every worker, as for task 0 ({addresses[0]}). Received: "
            f"clip_norm=0.5 from task 1 ({addresses[1]})" in one
        )


def test_a_worker_with_other_data_is_refused_by_name(tmp_path, text):
    other = enwik8_text.write_text(tmp_path / "other", 4000, seed=1)
    said, addresses = refusals(3, text, tmp_path / "run", of_task={2: ["--data", other]})
    for one in said:
        assert re.search(
            rf"`data` must be \w{{16}} for every worker, as for task 0 \({addresses[0]}\). "
            rf"Received: data=\w{{16}} from task 2 \({addresses[2]}\)",
            one,
        )


def test_unequal_shares_are_refused(tmp_path, text):
    said, _ = refusals(3, text, tmp_path / "run")
    for one in said:
        assert (
            "`batch` must be a multiple of 3, the workers, so that all have equal shares. "
            "Received: batch=8" in one
        )


def test_an_unequal_last_minibatch_is_refused(tmp_path):
    files = cifar_files.write_cifar(tmp_path / "cifar", train_per_file=9)
    flags = ["--model", "base", "--network", "convnet", "--batch", 8]
    with worker_runs.Workers(2, "cifar", files, tmp_path / "run", *flags) as workers:
        assert workers.end() == [2, 2]
        assert (
            "an epoch's last minibatch must be a multiple of 2 images, the workers, so that all "
            "have equal shares; choose `train_images` or `batch` accordingly. Received: 5 of "
            "train_images=45 with batch=8" in workers.said(1)
        )


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--workers", "a:1,b", "--task", 0], "addresses of the form HOST:PORT. Received: b"),
        (["--workers", "a:1,b:1"], "counted from 0. Received: task=-1"),
        (["--task", 1], "`task` must be given together with `workers`. Received: task=1"),
        (["--workers", "TF_CONFIG"], "TF_CONFIG must hold a cluster of workers"),
        (["--local-workers", 2], "`local_workers` needs the driver"),
        (["--local-workers", 2, "--model", "all"], "several workers must train a single run"),
    ],
)
def test_flags_that_name_no_group_are_refused(tmp_path, text, flags, complaint):
    said = program_runs.try_train("enwik8", text, tmp_path / "run", *SMALL, *flags)
    assert said.returncode == 2 and complaint in said.stderr, said.stderr
    assert not os.path.exists(tmp_path / "run")


@pytest.mark.parametrize(
    "task",
    [
        {"type": "ps", "index": 0},
        {"type": "worker", "index": 2},
        {"type": "worker", "index": -1},
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 1.0},
        {"type": "worker", "index": 2**63 - 1},
        {"type": "worker", "index": 2**64 - 1},
    ],
)
def test_a_task_that_is_none_of_tf_configs_is_refused(tmp_path, text, task):
    config = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": task})
    words = ["train", "enwik8", "--data", text, "--out", tmp_path / "run", *SMALL]
    said = subprocess.run(
        program_runs.command(*words, "--workers", "TF_CONFIG"),
        capture_output=True,
        text=True,
        env={**program_runs.ENVIRONMENT, "TF_CONFIG": config},
    )
    assert said.returncode == 2 and "a task that is one of them. Received: the task" in said.stderr
    assert f'"index":{task["index"]}' in said.stderr


def test_workers_are_found_in_tf_config(tmp_path, text):
    addresses = worker_runs.free_addresses(2)
    processes = []
    for job, name in (("chief", "run"), ("worker", "other")):
        config = {
            "cluster": {"chief": addresses[:1], "worker": addresses[1:]},
            "task": {"type": job, "index": 0},
        }
        words = ["train", "enwik8", "--data", text, "--out", tmp_path / name, "--threads", 1]
        processes.append(
            subprocess.Popen(
                program_runs.command(*words, *SMALL, "--steps", 2, "--workers", "TF_CONFIG"),
                stderr=subprocess.PIPE,
                text=True,
                env={**program_runs.ENVIRONMENT, "TF_CONFIG": json.dumps(config)},
            )
        )
    said = [process.communicate(timeout=worker_runs.PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert program_runs.read_results(tmp_path / "run")["steps"] == 2
    assert not os.path.exists(tmp_path / "other")


def listens_at(pid):
    """The addresses, in the kernel's hexadecimal form, and ports at which a process listens."""
    inodes = set()
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        except OSError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].rpartition(":")
                found.add((address, int(port, 16)))
    return found


# 127.0.0.1, as an address of IPv4 and of IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


def endless(*arguments):
    return [*SMALL, "--checkpoint-every", 1, "--steps", 10**9, "--evaluate-every", 0, *arguments]


def test_nothing_listens_without_workers(tmp_path, text):
    out = tmp_path / "run"
    words = program_runs.command("train", "enwik8", "--data", text, "--out", out, *endless())
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=program_runs.ENVIRONMENT)
    try:
        begin = time.monotonic()
        while not program_runs.checkpoint_folders(out) and time.monotonic() - begin < 100:
            time.sleep(0.01)
        assert program_runs.checkpoint_folders(out) and listens_at(process.pid) == set()
    finally:
        process.kill()
        process.communicate()
    with worker_runs.Workers(2, "enwik8", text, tmp_path / "two", *endless()) as workers:
        wait_for_checkpoint(workers, tmp_path / "two", 1)
        for process, address in zip(workers.processes, workers.addresses):
            found = listens_at(process.pid)
            # TensorFlow opens ports of its own beside the server's.
            assert int(address.rpartition(":")[2]) in {port for _, port in found}
            assert {where for where, _ in found} <= LOOPBACK, found
        for task in range(2):
            port = workers.addresses[task].rpartition(":")[2]
            assert f"task {task} of 2 listens on port {port} of 127.0.0.1" in workers.said(task)


@pytest.mark.parametrize("task", [0, 1])
def test_a_signal_to_any_worker_stops_all_at_the_same_step(tmp_path, text, task):
    out = tmp_path / "run"
    with worker_runs.Workers(2, "enwik8", text, out, *endless()) as workers:
        wait_for_checkpoint(workers, out, 3)
        workers.processes[task].send_signal(signal.SIGTERM)
        assert workers.end() == [0, 0], workers.all_said()
        (folder,) = program_runs.checkpoint_folders(out)
        step = int(folder[-12:])
        for one in range(2):
            assert f"late-phase: stopped at step {step}; the state is saved" in workers.said(one)
        assert (
            f"To resume: tools/latephase train enwik8 --resume --out {out} --threads 1 --workers "
            f"{','.join(workers.addresses)} --task 0" in workers.said(0)
        )
    # By one worker alone.
    program_runs.train("enwik8", text, out, "--resume", "--steps", step + 1)
    assert program_runs.read_results(out)["steps"] == step + 1


def whole_run(tmp_path, text):
    whole = tmp_path / "whole"
    worker_runs.train(2, "enwik8", text, whole, *SMALL, "--checkpoint-every", 3)
    return whole


def test_killed_workers_resume_to_the_bits_of_a_run_without_a_fault(tmp_path, text):
    """LATE_PHASE_KILLS sets the number of kills."""
    whole = whole_run(tmp_path, text)
    for kill in range(KILLS):
        draw = random.Random(kill)
        out = tmp_path / f"killed-{kill}"
        flags = [*SMALL, "--checkpoint-every", 3]
        with worker_runs.Workers(2, "enwik8", text, out, *flags) as workers:
            wait_for_checkpoint(workers, out, draw.choice([0, 3, 6, 15, 21]))
            time.sleep(draw.uniform(0, 0.1))
            victim = draw.randrange(2)
            workers.processes[victim].kill()
            begin = time.monotonic()
            statuses = workers.end()
            if statuses[1 - victim] != 0:  # else all was done
                assert statuses[1 - victim] == 1, workers.all_said()
                assert time.monotonic() - begin < 60
                assert_explained(workers.said(1 - victim))
        assert not glob.glob(f"{out}/**/*.part", recursive=True)
        worker_runs.train(2, "enwik8", text, out, "--resume")
        program_runs.assert_same_bits(
            program_runs.read_checkpoint(whole), program_runs.read_checkpoint(out)
        )
        for figures in ("train", "validation", "test"):
            assert (
                program_runs.read_results(whole)[figures] == program_runs.read_results(out)[figures]
            )
        shutil.rmtree(out)


def assert_explained(said):
    assert "the other workers no longer answer" in said, said
    assert (
        "Nothing has been saved since the last checkpoint. To resume from it, start every worker "
        "again with --resume." in said
    )


def test_a_worker_that_hangs_is_noticed_in_time(tmp_path, text):
    out = tmp_path / "run"
    with worker_runs.Workers(2, "enwik8", text, out, *endless("--worker-timeout", 5)) as workers:
        wait_for_checkpoint(workers, out, 2)
        workers.processes[1].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        assert workers.processes[0].wait(60) == 1, workers.all_said()
        assert time.monotonic() - begin < 30
        assert_explained(workers.said(0))
        assert len(program_runs.checkpoint_folders(out)) == 1


def test_the_driver_starts_local_workers(tmp_path):
    files = cifar_files.write_cifar(tmp_path / "cifar", train_per_file=8)
    out = tmp_path / "run"
    flags = "--model base --network convnet --batch 8 --steps 6 --local-workers 2".split()
    finished = program_runs.drive("train", "cifar", "--data", files, "--out", out, *flags)
    assert finished.returncode == 0, finished.stderr
    assert re.search(
        rf"2 workers with \d+ threads each; the others' output is in {out}.worker-1.log",
        finished.stderr,
    )
    assert "task 0 of 2 listens on port" in finished.stderr
    assert "task 1 of 2 listens on port" in pathlib.Path(f"{out}.worker-1.log").read_text()
    results = program_runs.read_results(out)
    assert results["steps"] == 6 and results["workers"] == 2
    assert "| Base |" in finished.stdout, finished.stdout
