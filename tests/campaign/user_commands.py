"""The commands that a user types in a scene (tests/campaign/scenes.py), and what comes of them."""

import dataclasses
import glob
import json
import os
import signal
import subprocess

from tests.campaign import driver_calls
from tests.campaign.trainings import end_of
from tests.support import program_runs

# What an interpreter or a library says when nobody has caught an error.
_UNCAUGHT = ("Traceback (most recent call last)", "terminate called", "Check failed")


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int
    messages: str  # standard error
    result: dict  # what the command is there for; {} if it has failed

    @property
    def crash(self):
        """What no file may do to a command; "" if it has ended in an orderly way."""
        if self.status in (-signal.SIGKILL, -signal.SIGALRM):
            return "it hangs"
        if self.status < 0 or self.status >= 126:
            return f"it ends with the status {self.status}"
        return next((f"it says {sign}" for sign in _UNCAUGHT if sign in self.messages), "")

    @property
    def says(self):
        """What the program or the driver says at the end; TensorFlow says things before."""
        return self.messages[max(0, self.messages.rfind("tools/latephase ")) :].strip()


class User:
    """Types commands, and waits for each as long as a user would."""

    def __init__(self, patience=120):
        self._driver = driver_calls.Driver()
        self._patience = patience

    def close(self):
        self._driver.close()

    def type(self, command, scene):
        """The outcome of the command of that name, one of the methods below."""
        ended, read_result = getattr(self, command)(scene)
        result = {}
        if ended.returncode == 0:
            try:
                result = _without(scene, read_result())
            except Exception as error:  # whatever TensorFlow raises for a checkpoint
                result = {"unreadable": repr(error)}
        return Outcome(ended.returncode, ended.stderr.replace(scene + "/", ""), result)

    def resume(self, scene):
        run = f"{scene}/run"
        ended = self._program(
            *("train", facts(scene)["program"], "--resume", "--out", run),
            *("--data", f"{scene}/data", "--threads", 1),
        )
        return ended, lambda: end_of(run)

    def resume_with_table(self, scene):
        """With the driver, which shows the results. It has no images to look up."""
        run = f"{scene}/run"
        ended = self._drive(
            *("train", facts(scene)["program"], "--resume", "--out", run),
            *("--data", f"{scene}/data", "--threads", 1),
        )
        return ended, lambda: end_of(run) | {"table": ended.stdout}

    def eval(self, scene):
        return self._evaluate(scene, "--data", f"{scene}/data")

    def eval_archive(self, scene):
        data = ("--data", f"{scene}/files/cifar-10-binary.tar.gz")
        return self._evaluate(scene, *data, "--weights", "collapsed-reestimated")

    def eval_other_images(self, scene):
        files = ("--corrupt", f"{scene}/files/corrupted", "--ood", f"{scene}/files/other.bin")
        data = ("--data", f"{scene}/data")
        return self._evaluate(scene, *data, *files, "--weights", "collapsed")

    def sample(self, scene):
        ended = self._program(
            *("sample", f"{scene}/run", "--prompt", "!", "--length", 20, "--threads", 1)
        )
        return ended, lambda: {"text": ended.stdout}

    def plot(self, scene):
        ended = self._drive("plot", f"{scene}/run")
        return ended, lambda: _pictures(f"{scene}/run")

    def plot_evaluation(self, scene):
        ended = self._drive("plot", f"{scene}/run/evaluation")
        return ended, lambda: _pictures(f"{scene}/run/evaluation")

    def report(self, scene):
        page = f"{scene}/report.html"
        ended = self._drive("report", f"{scene}/run", "--out", page)
        return ended, lambda: {"page": _read(page)}

    def advise(self, scene):
        ended = self._drive("advise", f"{scene}/run")
        return ended, lambda: {"advice": ended.stdout}

    def look_up(self, scene):
        return self._look_up(scene, "enwik8")

    def look_up_gzip(self, scene):
        return self._look_up(scene, "enwik8.gz")

    def look_up_zip(self, scene):
        return self._look_up(scene, "enwik8.zip")

    def _program(self, *arguments):
        process = subprocess.Popen(
            program_runs.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=program_runs.ENVIRONMENT,
        )
        try:
            stdout, stderr = process.communicate(timeout=self._patience)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def _drive(self, *arguments):
        return self._driver.run(*arguments, seconds=self._patience)

    def _evaluate(self, scene, *arguments):
        out = f"{scene}/evaluated"
        ended = self._program("eval", f"{scene}/run", "--out", out, "--threads", 1, *arguments)
        return ended, lambda: {"table": ended.stdout, "json": _read(f"{out}/evaluation.json")}

    def _look_up(self, scene, name):
        text = facts(scene)["text"]
        ended = self._drive(
            driver_calls.LOOK_UP,
            *(f"{scene}/files/{name}", text["size"], text["md5"], f"{scene}/cache"),
        )
        return ended, lambda: {"md5": ended.stdout}


def facts(scene):
    with open(f"{scene}/scene.json") as file:
        return json.load(file)


def _read(path):
    with open(path, errors="replace") as file:
        return file.read()


def _pictures(folder):
    pictures = {}
    for path in glob.glob(f"{folder}/*.png"):
        with open(path, "rb") as file:
            pictures[os.path.basename(path)] = file.read()
    return pictures


def _without(scene, result):
    """The result without the name of the scene's folder."""
    return {
        name: value.replace(scene + "/", "") if isinstance(value, str) else value
        for name, value in result.items()
    }
