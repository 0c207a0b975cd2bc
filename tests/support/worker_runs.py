"""Runs of several workers of the C++ program, for tests; they meet at loopback addresses."""

import contextlib
import os
import socket
import subprocess

from tests.support import program_runs

PATIENCE = 240  # seconds for all of them to end


def free_addresses(count):
    """Loopback addresses whose ports nobody uses at the moment."""
    with contextlib.ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in bound]


class Workers:
    """The processes of `train PROGRAM ...`, by task. Only the first one has the run's folder."""

    def __init__(self, count, program, data, out, *arguments, of_task=None):
        """of_task: further arguments of single tasks."""
        self.addresses = free_addresses(count)
        self.logs = [f"{out}.task-{task}.log" for task in range(count)]
        self.processes = []
        for task in range(count):
            folder = out if task == 0 else f"{out}-of-task-{task}"
            words = ["train", program, "--data", data, "--out", folder, "--threads", 1]
            words += ["--workers", ",".join(self.addresses), "--task", task]
            words += [*arguments, *(of_task or {}).get(task, ())]
            with open(self.logs[task], "w") as log:
                self.processes.append(
                    subprocess.Popen(
                        program_runs.command(*words),
                        stdout=log,
                        stderr=log,
                        env=program_runs.ENVIRONMENT,
                    )
                )

    def end(self, patience=PATIENCE):
        """Their statuses, once all have ended by themselves."""
        try:
            return [process.wait(patience) for process in self.processes]
        finally:
            self.kill()

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def said(self, task):
        with open(self.logs[task], errors="replace") as log:
            return log.read()

    def all_said(self):
        return "\n".join(f"task {task}: {self.said(task)}" for task in range(len(self.logs)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def train(count, program, data, out, *arguments, **options):
    """A run of several workers that must succeed."""
    with Workers(count, program, data, out, *arguments, **options) as workers:
        statuses = workers.end()
        assert statuses == [0] * count, workers.all_said()
        assert not [task for task in range(1, count) if os.path.exists(f"{out}-of-task-{task}")]
        return workers
