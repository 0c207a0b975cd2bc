"""Small trainings of both programs, and what they end in: what campaigns that disturb trainings
share.
"""

import json
import os
import time

from tests.support import cifar_files, enwik8_text, program_runs

TEXT = (*enwik8_text.SMALL, "--checkpoint-every", 3, "--evaluate-every", 0.5)
IMAGES = (
    "--preset convnet-quick --batch 8 --members 3 --t0 1.2 --swa-start 2 --swa-every 0.5 "
    "--epochs 3 --anneal-start 1 --anneal-end 3 --validation-images 0 --test-images 0 "
    "--log-every 4 --evaluate-every 0.5 --checkpoint-every 4"
).split()
TRAININGS = {
    "enwik8 late-phase": ("enwik8", TEXT, ("--model", "late-phase")),
    "enwik8 rank1-accumulation": ("enwik8", TEXT, ("--model", "rank1-accumulation")),
    "cifar late-phase": ("cifar", IMAGES, ("--model", "late-phase")),
    "cifar base": ("cifar", IMAGES, ("--model", "base")),
}
# Figures that depend on the time of day.
TIMES = ("seconds", "items_per_second", "input_wait", "peak_bytes", "expected_bytes", "time")


class Training:
    """A training and where it must end."""

    def __init__(self, name, folder):
        self.name = name
        self.program, settings, model = TRAININGS[name]
        self.folder = os.path.join(folder, name.replace(" ", "-"))
        os.makedirs(self.folder)
        if self.program == "enwik8":
            data = enwik8_text.write_text(os.path.join(self.folder, "text"), 4000)
        else:
            data = cifar_files.write_cifar(os.path.join(self.folder, "images"))
        self.data = ("--data", data)
        self.arguments = [*self.data, *settings, *model]
        self.whole = os.path.join(self.folder, "whole")
        begin = time.monotonic()
        self.finish(self.start(self.whole))
        self.seconds = time.monotonic() - begin
        self.end = end_of(self.whole)
        whole = program_runs.read_results(self.whole)
        self.minibatches_per_epoch = whole["steps"] / whole["epochs"]

    def command(self, out, arguments=None):
        """What trains in the folder `out`: from the beginning or, given --resume, further."""
        more = [*arguments, *self.data] if arguments else self.arguments
        return ["train", self.program, "--out", out, "--threads", 1, *more]

    def start(self, out, arguments=None):
        return program_runs.start(*self.command(out, arguments))

    def finish(self, process):
        status, errors = finish(process)
        if status:
            raise RuntimeError(f"{self.name} fails by itself: {errors}")


def finish(process):
    """Waits for the program: its status and standard error."""
    _, errors = process.communicate()
    return process.returncode, errors


def to_resume(out):
    """What a user would type next: the command that resumes, or the first one again if that had not
    got as far as writing its settings.
    """
    return ["--resume"] if os.path.exists(os.path.join(out, "config.toml")) else []


def end_of(out):
    """What a training leaves that must not depend on what happened to it."""
    return {
        "checkpoint": {
            name: (value.tobytes() if hasattr(value, "tobytes") else value)
            for name, value in program_runs.read_checkpoint(out).items()
        },
        "results": timeless(program_runs.read_results(out)),
        "metrics": [comparable(line) for line in program_runs.read_metrics(out)],
        "left": sorted(os.listdir(os.path.join(out, "checkpoint"))),
    }


def differing(end, other):
    """The names of the parts in which two ends differ."""
    return [what for what in other if end.get(what) != other[what]]


def comparable(line):
    """A line about training is about the minibatches since the last one, or since resuming."""
    if line.get("kind") == "train":
        return {name: line.get(name) for name in ("kind", "step", "epoch")}
    return timeless(line)


def timeless(value):
    return {name: one for name, one in value.items() if name not in TIMES}


def write_lines(path, lines):
    """Writes metrics.jsonl as the program does."""
    with open(path, "w") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
