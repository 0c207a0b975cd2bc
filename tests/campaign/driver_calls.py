"""Commands of the driver, each in a process of its own, at a fraction of the price of starting one:
a process that has imported all of the driver forks for each.

Run as a program (`python -m tests.campaign.driver_calls`), it is that process: it reads one call a
line and answers each with its exit status.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

from tests.support import program_runs

# Instead of a command of the user's: the look-up of the text that the program asks the driver for.
LOOK_UP = "look-up"


class Driver:
    """Runs commands of the driver, one at a time."""

    def __init__(self):
        self._lock = threading.Lock()
        self._output = tempfile.TemporaryDirectory()
        environment = {**program_runs.ENVIRONMENT, "LATE_PHASE_PROGRAM": program_runs.PROGRAM}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, *arguments, seconds):
        """A command's status, stdout and stderr; after `seconds` it is ended by SIGALRM."""
        paths = [os.path.join(self._output.name, name) for name in ("stdout", "stderr")]
        with self._lock:
            call = {"arguments": [*map(str, arguments)], "seconds": seconds, "output": paths}
            print(json.dumps(call), file=self._process.stdin, flush=True)
            status = json.loads(self._process.stdout.readline())
            texts = []
            for path in paths:
                with open(path, errors="replace") as file:
                    texts.append(file.read())
        return subprocess.CompletedProcess(arguments, status, *texts)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._output.cleanup()


def _look_up(path, size, md5, cache):
    """What the driver answers if the program asks for a text of that size and checksum."""
    from late_phase_cli import enwik8_data, program

    os.environ["XDG_CACHE_HOME"] = cache
    enwik8_data.find.__defaults__ = (enwik8_data.Text(size=int(size), md5=md5),)
    answer = program.find({"needs": "enwik8", "data": path})
    if "error" in answer:
        print(f"tools/latephase train enwik8: {answer['error']}", file=sys.stderr)
        return 2
    with open(answer["path"], "rb") as file:
        print(hashlib.md5(file.read()).hexdigest())
    return 0


def _child(call):
    """In the fork: the command, and then the end of the process."""
    from late_phase_cli import main

    signal.alarm(call["seconds"])
    for descriptor, path in enumerate(call["output"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    status = 1
    try:
        command, *arguments = call["arguments"]
        status = _look_up(*arguments) if command == LOOK_UP else main.main([command, *arguments])
    except SystemExit as end:
        status = end.code
    except BaseException:  # as Python itself does at its end
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def _serve():
    # What takes time to import, and what each command imports by itself.
    from late_phase_cli import (  # noqa: F401
        advice_runs,
        enwik8_data,
        evaluation_plot,
        main,
        plot,
        report,
        results,
    )

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
