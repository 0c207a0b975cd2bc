"""Kills trainings at random moments (kill -9), resumes them, and compares their ends with those of
trainings that were never killed.

    tools/test //tests/campaign:kills --test_arg=--kills=100 --test_arg=--seed=1 --test_output=all

Each trial is a training that is killed once or several times. What a user would type next must
work: the command that resumes, or the first one again if nothing had been written yet. The last
line counts; the exit status is 0 if nothing was found.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tests.campaign import report
from tests.campaign.trainings import TRAININGS, Training, differing, end_of, finish, to_resume


def kill_after(process, seconds):
    """Whether it was killed; False if it had already ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()  # nothing happens to one that has ended
    return finish(process)[0] == -signal.SIGKILL


def moment(out, training):
    """In which part of the training a process was killed, as far as its folder tells."""
    checkpoints = os.path.join(out, "checkpoint")
    if not os.path.exists(os.path.join(out, "config.toml")):
        return "before its settings were written"
    if os.path.exists(os.path.join(out, "results.json")):
        return "after its results were written"
    names = os.listdir(checkpoints) if os.path.isdir(checkpoints) else []
    steps = [int(name[-12:]) for name in names if name.startswith("step-") and name[-12:].isdigit()]
    if not steps:
        return "before the first checkpoint"
    if len(names) != 1:
        return "while a checkpoint was written"
    with open(os.path.join(out, "config.toml")) as file:
        settings = dict(line.split(" = ", 1) for line in file if " = " in line)
    epoch = max(steps) / training.minibatches_per_epoch
    for name, text in (("swa_start", "in SWA"), ("t0", "with members")):
        if epoch >= float(settings[name]):
            return text
    return "before T0"


def trial(training, number, shares):
    """Kills a training after these shares of its time, and resumes it after each. Returns in which
    parts it was killed, and what is wrong with its end: "" if nothing.
    """
    out = os.path.join(training.folder, f"trial-{number}")
    kills, arguments = [], []
    for share in shares:
        if not kill_after(training.start(out, arguments), share * training.seconds):
            arguments = ["--resume"]  # which finds it finished
            break
        kills.append(moment(out, training))
        arguments = to_resume(out)
    status, errors = finish(training.start(out, arguments))
    if status:
        return kills, f"status {status} after kills {kills}: {errors[-1000:]}"
    wrong = differing(end_of(out), training.end)
    if not wrong:
        shutil.rmtree(out)
        return kills, ""
    return kills, f"another end after kills {kills}: {', '.join(wrong)} differ; see {out}"


def campaign(options, folder):
    """Returns the findings, and how often a training was killed in each of its parts."""
    trainings = [Training(name, folder) for name in TRAININGS]
    findings, moments = [], collections.Counter()
    until = time.monotonic() + options.seconds

    def one(number):
        if moments.total() >= options.kills or time.monotonic() > until:
            return
        training = trainings[number % len(trainings)]
        draw = random.Random(f"{options.seed}-{number}")
        shares = [draw.uniform(0.02, 1.05) for _ in range(draw.choice([1, 1, 2, 3]))]
        kills, complaint = trial(training, number, shares)
        moments.update(f"{training.program}: {kill}" for kill in kills)
        if complaint:
            findings.append(f"trial {number}, {training.name}: {complaint}")

    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        for numbers in iter_chunks(options.processes):
            list(pool.map(one, numbers))
            if moments.total() >= options.kills or time.monotonic() > until:
                break
    return findings, moments


def iter_chunks(size):
    numbers = itertools.count()
    while True:
        yield [next(numbers) for _ in range(size)]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="others draw other moments")
    parser.add_argument("--seconds", type=float, default=86400, help="at the most (%(default)s)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args(arguments)


def main(arguments=None):
    folder = tempfile.mkdtemp()
    findings, moments = campaign(parse(arguments), folder)
    if not findings:
        shutil.rmtree(folder)
    return report.conclude("kills", moments, findings)


if __name__ == "__main__":
    sys.exit(main())
