"""Runs of `tools/latephase train enwik8` on small generated texts, for the tests of the program."""

import glob
import json
import os
import signal
import subprocess
import time

import numpy
import tensorflow as tf

PROGRAM = os.path.abspath(os.environ["LATE_PHASE_TRAIN"])
PRESETS = os.path.abspath(os.environ["LATE_PHASE_PRESETS"])
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "LATE_PHASE_PRESETS": PRESETS}


def write_text(path, size, symbols=30, seed=0):
    """A text with some order in it: each character depends on the one before."""
    random = numpy.random.RandomState(seed)
    jumps = random.choice([1, 1, 1, 2, 5, 11], size=size)
    tokens = numpy.cumsum(jumps) % symbols
    tokens[:symbols] = numpy.arange(symbols)  # all of them in the training part
    (tokens + 32 if symbols <= 200 else tokens).astype(numpy.uint8).tofile(path)
    return str(path)


def command(*arguments):
    return [PROGRAM, *map(str, arguments)]


def run(*arguments):
    """The program to its end: its status, stdout, stderr."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, errors="replace", env=ENVIRONMENT)


def train(data, out, *arguments):
    """A training run that must succeed."""
    result = run("train", "enwik8", "--data", data, "--out", out, "--threads", 2, *arguments)
    assert result.returncode == 0, result.stderr
    return result


def checkpoint_folders(run_folder):
    return sorted(glob.glob(os.path.join(run_folder, "checkpoint", "step-*")))


def read_checkpoint(run_folder, kind="checkpoint"):
    """Every variable of the newest checkpoint; settings and thread count left out."""
    folder = sorted(glob.glob(os.path.join(run_folder, kind, "step-*")))[-1]
    reader = tf.train.load_checkpoint(os.path.join(folder, "state"))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return {name: value for name, value in values.items() if getattr(value, "dtype", None) != object}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert numpy.array_equal(one[name], other[name]), name


def read_metrics(run_folder):
    with open(os.path.join(run_folder, "metrics.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def read_results(run_folder):
    with open(os.path.join(run_folder, "results.json")) as file:
        return json.load(file)


def kill_after_checkpoint(step, run_folder, *arguments, signal_number=signal.SIGKILL):
    """Starts a run and sends it a signal when the checkpoint of `step`, or a later one, has appeared. Returns status and stderr."""
    process = subprocess.Popen(
        command("train", "enwik8", "--out", run_folder, "--threads", 2, *arguments), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    begin = time.monotonic()
    while not any(int(folder[-12:]) >= step for folder in checkpoint_folders(run_folder)):
        assert process.poll() is None and time.monotonic() - begin < 100, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal_number)
    _, stderr = process.communicate()
    return process.returncode, stderr
