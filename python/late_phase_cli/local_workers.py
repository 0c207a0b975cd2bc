"""train --local-workers: the workers of one run on this machine, each a process of its own.

The first one has the terminal; what the others say goes to OUT.worker-1.log and so on. After Ctrl-C
or SIGTERM all of them stop at the same step, and the first one saves the state.
"""

import contextlib
import os
import socket
import subprocess
import threading

from late_phase_cli import interrupt, locations, program
from late_phase_cli.training_output import say


class Other(threading.Thread):
    """A worker without the terminal; its questions are answered on this thread."""

    def __init__(self, task, arguments, folder):
        super().__init__(daemon=True)
        self.task, self.log = task, f"{folder}.worker-{task}.log"
        self.status = None  # until it has ended
        with open(self.log, "w") as log:
            # A session of its own: Ctrl-C reaches it once, through us.
            self.program = program.Program(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.start()

    def run(self):
        while self.program.receive() is not None:
            pass
        self.status = self.program.wait()

    def last_words(self):
        with open(self.log, errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]


def run(arguments, wanted):
    """Runs `train ARGUMENTS` as several workers. Returns the first one's status and what it
    reported.
    """
    count, folder = wanted["count"], wanted["folder"]
    common = [
        "train",
        *arguments,
        "--threads",
        str(wanted["threads"]),
        "--workers",
        ",".join(free_addresses(count)),
        "--task",
    ]
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    others = []
    with interrupt.patient():
        try:
            others = [Other(task, [*common, str(task)], folder) for task in range(1, count)]
            say(
                f"{locations.command()} train: {count} workers with {wanted['threads']} threads "
                f"each; the others' output is in {others[0].log}"
                + (f" to {others[-1].log}" if count > 2 else "")
            )
            status, messages = program.run([*common, "0"], saves=True)
            if status:
                explain(others)
            return status, messages
        finally:
            end(others)


def free_addresses(count):
    """Loopback addresses whose ports nobody uses at the moment."""
    with contextlib.ExitStack() as sockets:
        bound = []
        for _ in range(count):
            bound.append(sockets.enter_context(socket.socket()))
            bound[-1].bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in bound]


def explain(others):
    """Why a worker ended that did so before the first one."""
    for other in others:
        other.join(1)
        if other.status:
            say(f"worker {other.task}: status {other.status}: {other.last_words()}")


def end(others):
    """Waits for them: only the first one has something to save, and they end when it has. What
    is still there long after is waiting for somebody who is gone.
    """
    for other in others:
        other.join(10)
        if other.status is None:
            other.program.process.kill()
            other.join()
