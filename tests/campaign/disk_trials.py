"""A trial with a disk: a training whose disk fails it at a random moment, and what a user does once
it is mended. The training must have said what was wrong and left nothing half-written, and it must
end in its own bits.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import tensorflow as tf

from tests.campaign.disks import Disk
from tests.campaign.trainings import differing, end_of, finish, to_resume
from tests.support import program_runs

# What a message says of a disk.
REASONS = (
    "No space left on device",
    "File too large",
    "Read-only file system",
    "No such file or directory",
    "`out` must",
)
PARTS = ["checkpoint", "config.toml", "metrics.jsonl", "results.json"]


class Fault:
    """How a disk fails, and how that is mended. A trial's folder is a scene
    (tests/campaign/scenes.py), in which the training's is `run`.
    """

    fails = True  # the training, unless it has ended before

    def __init__(self, training, scene, draw, user):
        self.training, self.scene, self.draw, self.user = training, scene, draw, user
        self.out = self.view = f"{scene}/run"  # for the program, and for everybody else
        self.enter = ()

    def start(self, arguments=None, **options):
        command = program_runs.command(*self.training.command(self.out, arguments))
        return subprocess.Popen(
            [*self.enter, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=program_runs.ENVIRONMENT,
            **options,
        )

    def start_disturbed(self):
        return self.start()

    def wait(self, process):
        """Until a moment drawn at random, or the end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.draw.uniform(0.02, 1.0) * self.training.seconds)

    def strike(self, process):
        """Returns what is wrong with anything but the training."""
        return ""

    def mend(self):
        pass

    def close(self):
        pass


class OnDisk(Fault):
    """On a disk of its own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.disk = Disk(f"{self.scene}/disk")
        self.out, self.view = f"{self.disk.folder}/run", f"{self.disk.view}/run"
        self.enter = self.disk.enter

    def close(self):
        self.disk.close()


class Full(OnDisk):
    def strike(self, process):
        self.wait(process)
        self.disk.fill(self.draw.choice([0, self.draw.randrange(300_000)]))
        return ""

    def mend(self):
        self.disk.empty()


class ReadOnly(OnDisk):
    """From the beginning, or after the training was killed."""

    def start_disturbed(self):
        process = self.start()
        self.wait(process)
        process.kill()
        finish(process)
        self.disk.allow_writing(False)
        return self.start(to_resume(self.view))

    def mend(self):
        self.disk.allow_writing(True)


class Limit(Fault):
    """On the size of files, which needs no rights."""

    def start_disturbed(self):
        most = self.draw.choice([4_000, 100_000, 1_100_000])
        bytes = self.draw.randrange(most)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as if the disk were full
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, bytes))

        return self.start(preexec_fn=limit)


class Removed(Fault):
    """The folder of the run, while it is being trained."""

    def strike(self, process):
        self.wait(process)
        for _ in range(100):  # the training may be making a file in it
            shutil.rmtree(self.out, ignore_errors=True)
            if not os.path.exists(self.out):
                break
        return ""


class Second(Fault):
    """Another process in the same folder."""

    fails = False
    commands = ("resume", "resume", "resume", "eval", "plot", "report", "advise")

    def strike(self, process):
        self.wait(process)
        command = self.draw.choice(self.commands)
        outcome = self.user.type(command, self.scene)
        if outcome.crash or (outcome.status and not outcome.says.startswith("tools/latephase ")):
            return (
                f"{command} beside it: {outcome.crash or 'no message'}: {outcome.messages[-800:]}"
            )
        return ""


FAULTS = {
    "a full disk": Full,
    "a limit on files": Limit,
    "a read-only disk": ReadOnly,
    "a folder that is removed": Removed,
    "a second process": Second,
}


def make_scene(training, scene):
    os.makedirs(scene)
    os.symlink(training.data[1], f"{scene}/data")
    with open(f"{scene}/scene.json", "w") as file:
        json.dump({"program": training.program}, file)


def half_written(out):
    """What is there, but not whole: "" if nothing. The last line of metrics.jsonl may be."""
    if os.path.exists(f"{out}/results.json"):
        try:
            program_runs.read_results(out)
        except ValueError:
            return "results.json"
    for folder in program_runs.checkpoint_folders(out):
        try:
            reader = tf.train.load_checkpoint(f"{folder}/state")
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except Exception as error:  # TensorFlow's, of several types
            return f"{os.path.basename(folder)} ({error})"
    if os.path.exists(f"{out}/metrics.jsonl"):
        with open(f"{out}/metrics.jsonl") as file:
            *lines, _ = file.read().split("\n")
        try:
            list(map(json.loads, lines))
        except ValueError:
            return "metrics.jsonl"
    return ""


def wrong_end(training, out):
    """In what a finished training differs from one that nothing has disturbed: "" if in nothing."""
    left = sorted(name for name in os.listdir(out) if not name.startswith("events."))
    if left != PARTS:
        return f"{left} in its folder"
    try:
        differ = differing(end_of(out), training.end)
    except Exception as error:  # TensorFlow's, too
        return f"an end that cannot be read: {error!r}"
    return f"another {', '.join(differ)}" if differ else ""


def disturb(fault):
    """(what came of it, what is wrong) of a training during the fault."""
    process = fault.start_disturbed()
    wrong = fault.strike(process)
    status, errors = finish(process)
    if wrong:
        return "", wrong
    if status == 0 and os.path.exists(fault.view):
        wrong = wrong_end(fault.training, fault.view)
        return "it ended before", f"it ends with status 0, and {wrong}" if wrong else ""
    if status == 0:
        return "it ended before", ""
    says = errors[max(0, errors.rfind("tools/latephase ")) :]
    if not fault.fails or status not in (1, 2):
        return "", f"status {status}: {errors[-1500:]}"
    if not says.startswith("tools/latephase ") or not any(reason in says for reason in REASONS):
        return "", f"no clear message: {errors[-1500:]}"
    half = half_written(fault.view)
    return "it said so and ended", f"half-written: {half}" if half else ""


def resume(fault):
    """What is wrong with the training once the fault is mended: "" if nothing."""
    begin = time.monotonic()
    status, errors = finish(fault.start(to_resume(fault.view)))
    if status:
        return f"does not resume: status {status}: {errors[-1000:]}"
    wrong = wrong_end(fault.training, fault.view)
    seconds = time.monotonic() - begin
    return f"once mended, it ends after {seconds:.1f} s with {wrong}" if wrong else ""


def trial(training, name, number, seed, user):
    """(what came of it, in words; what is wrong: "" if nothing)"""
    scene = os.path.join(training.folder, f"disk-{number}")
    make_scene(training, scene)
    draw = random.Random(f"{seed}-disk-{number}")
    fault = FAULTS[name](training, scene, draw, user)
    try:
        came, wrong = disturb(fault)
        fault.mend()
        wrong = wrong or resume(fault)
    finally:
        fault.close()
    if not wrong:
        shutil.rmtree(scene)
        return f"{training.program}, {name}: {came}", ""
    return f"{training.program}, {name}: wrong", f"disk {number}: {training.name}, {name}: {wrong}"
