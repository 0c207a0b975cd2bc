"""Runs of the C++ program, for the tests of its commands, and what they leave behind; `driver` is
for those of the driver.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import time

import numpy
import tensorflow as tf

PROGRAM = os.path.abspath(os.environ["LATE_PHASE_PROGRAM"])
PRESETS = os.path.abspath(os.environ["LATE_PHASE_PRESETS"])
# As tools/latephase and the driver set it, but without a driver.
ENVIRONMENT = {
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "LATE_PHASE_PRESETS": PRESETS,
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "LATE_PHASE_COMMAND": "tools/latephase",
}


def command(*arguments):
    return [PROGRAM, *map(str, arguments)]


def run(*arguments):
    """Runs the program to its end: its status, stdout, stderr."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, errors="replace", env=ENVIRONMENT
    )


def start(*arguments):
    """The running program; its standard error is to be read by communicate()."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=ENVIRONMENT,
    )


def driver(*arguments, **options):
    """A process of the driver: tools/latephase without its preparations."""
    environment = {
        **ENVIRONMENT,
        "LATE_PHASE_PROGRAM": PROGRAM,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **options.pop("env", {}),
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "late_phase_cli", *map(str, arguments)],
        text=True,
        errors="replace",
        env=environment,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def drive(*arguments, **options):
    """Runs the driver to its end: its status, stdout, stderr."""
    process = driver(*arguments, **options)
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def try_train(program, data, out, *arguments):
    """A training run: its status, stdout, stderr."""
    return run("train", program, "--data", data, "--out", out, *arguments)


def train(program, data, out, *arguments):
    """A training run that must succeed."""
    result = try_train(program, data, out, "--threads", 2, *arguments)
    assert result.returncode == 0, result.stderr
    return result


def table_rows(stdout):
    """The cells of a printed table's rows, without its head."""
    lines = [line for line in stdout.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def checkpoint_folders(run_folder):
    return sorted(glob.glob(os.path.join(run_folder, "checkpoint", "step-*")))


def read_checkpoint(run_folder, kind="checkpoint"):
    """Every variable of the newest checkpoint; settings and thread count left out."""
    folder = sorted(glob.glob(os.path.join(run_folder, kind, "step-*")))[-1]
    reader = tf.train.load_checkpoint(os.path.join(folder, "state"))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "dtype", None) != numpy.dtype(object)
    }


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert numpy.array_equal(one[name], other[name]), name


def read_metrics(run_folder):
    with open(os.path.join(run_folder, "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def logged_tags(run_folder):
    """What a run has logged for TensorBoard. The folder must hold its files, and no others."""
    events = [name for name in os.listdir(run_folder) if name.startswith("events.out.tfevents.")]
    assert len(events) == 1
    assert sorted(set(os.listdir(run_folder)) - set(events)) == [
        "checkpoint",
        "config.toml",
        "metrics.jsonl",
        "results.json",
    ]
    return {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(os.path.join(run_folder, events[0]))
        for value in event.summary.value
    }


def read_results(run_folder):
    with open(os.path.join(run_folder, "results.json")) as file:
        return json.load(file)


def start_until_checkpoint(step, program, data, out, *arguments):
    """A run without end, once the checkpoint of `step`, or a later one, has appeared."""
    whole = ("train", program, "--data", data, "--out", out, "--threads", 2, "--steps", 10**9)
    process = start(*whole, *arguments)
    begin = time.monotonic()
    while not any(int(folder[-12:]) >= step for folder in checkpoint_folders(out)):
        assert process.poll() is None and time.monotonic() - begin < 100, process.communicate()
        time.sleep(0.001)
    return process


def kill_after_checkpoint(step, program, data, out, *arguments, signal_number=signal.SIGKILL):
    """Sends a signal to the process of start_until_checkpoint. Returns status and stderr."""
    process = start_until_checkpoint(step, program, data, out, *arguments)
    process.send_signal(signal_number)
    _, stderr = process.communicate()
    return process.returncode, stderr


def initial_checkpoint(program, data, out, *arguments):
    """The variables before the first step of a run, which can be resumed from there."""
    kill_after_checkpoint(0, program, data, out, "--checkpoint-every", 10**9, *arguments)
    initial = read_checkpoint(out)
    assert initial["late_phase/step"] == 0
    return initial


def assert_resumes_bit_for_bit(whole, step, program, data, *arguments):
    """Kills a run after its checkpoint of `step` and before the next one, and resumes it to where
    `whole`, uninterrupted, ended.
    """
    for attempt in range(10):
        killed = f"{whole}-killed-{step}-{attempt}"
        kill_after_checkpoint(step, program, data, killed, "--checkpoint-every", step, *arguments)
        if checkpoint_folders(killed)[-1].endswith(f"step-{step:012}"):
            break
    else:
        raise AssertionError(f"never killed between the checkpoints of steps {step} and {2 * step}")
    steps = read_results(whole)["steps"]
    resumed = train(program, data, killed, "--resume", "--steps", steps)
    assert f"resumes at step {step}" in resumed.stderr
    assert_same_bits(read_checkpoint(whole), read_checkpoint(killed))
    for figures in ("train", "validation", "test"):
        assert read_results(whole).get(figures) == read_results(killed).get(figures)
    # No step twice, although the killed process had written lines past its checkpoint.
    lines = [line["step"] for line in read_metrics(killed) if line["kind"] == "train"]
    assert lines == sorted(set(lines)) and lines[-1] == steps
