"""Trains independent runs in parallel: those of `train --model all` and --seeds, and those of a
sweep.

Each is a process of its own, whose output goes to FOLDER.log. A run that is forked from another one
starts as soon as the state to fork from has been written, while the other one is still training.
After Ctrl-C or SIGTERM every run saves its state and ends; if the driver is killed, its runs end in
the same way. A run that fails affects no others, except those that wait for its fork.
"""

import collections
import contextlib
import dataclasses
import fcntl
import os
import selectors
import signal
import subprocess

from late_phase_cli import interrupt, program
from late_phase_cli.display import Display
from late_phase_cli.errors import UserError


@dataclasses.dataclass(eq=False)
class Job:
    name: str
    folder: str  # of the run
    arguments: list  # of the program
    after: str = None  # the folder of the run whose fork it must wait for; None: no run
    done: float = 0  # fraction of its training
    text: str = ""  # its progress, as text
    wrote: bool = False  # its results
    finished: bool = False  # and ended well

    @property
    def log(self):
        return f"{self.folder}.log"

    def last_words(self):
        with open(self.log, errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]


@contextlib.contextmanager
def locked(out):
    """Creates the folder and returns a lock, which keeps others from working in it. The runs hold
    it, too, so that those that outlive a killed driver by a step are not started a second time.
    """
    try:
        os.makedirs(out, exist_ok=True)
        lock = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(
            "`out` must be a folder that can be created and written to. "
            f"Received: out={out} ({error.strerror})"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                "`out` must not be in use by another process, which is training runs there. "
                f"Received: out={out}"
            ) from error
        yield lock
    finally:
        os.close(lock)


class Scheduler:
    """Runs the jobs in order, `parallel` at a time with `threads` each.

    `total` includes those that had finished before. When a job has finished, `on_finish(job)` may
    return a text to print about it.
    """

    def __init__(self, jobs, parallel, threads, lock, total, on_finish=lambda job: None):
        self.jobs, self.parallel, self.lock = jobs, parallel, lock
        self.total, self.on_finish = total, on_finish
        self.waiting, self.failed, self.display = collections.deque(jobs), [], Display()
        self._going = {}  # program -> job
        self._forked = set()  # folders
        self.display.say(
            f"{total} runs, {total - len(jobs)} of them finished; {parallel} at a time, "
            f"{threads} thread{'s' * (threads > 1)} each"
        )

    def run(self):
        """Returns the jobs that failed or could not start. A signal is left to the caller
        (interrupt.came).
        """
        patience = (
            "; the runs will save their states and stop; press Ctrl-C again to end them at once"
        )
        with interrupt.patient(patience), selectors.DefaultSelector() as selector:
            while True:
                self._start(selector)
                if not self._going:
                    break
                for key, _ in selector.select(1):
                    self._listen(key.data, selector)
                if not interrupt.came:
                    self._show()
        self.display.clear()
        if not interrupt.came:  # those waiting for a fork that never came
            for job in self.waiting:
                self.display.say(
                    f"{job.name}: not trained, because the run it forks from, {job.after}, failed"
                )
                self.failed.append(job)
        return self.failed

    def _start(self, selector):
        """Starts as many as allowed."""
        for job in list(self.waiting):
            if interrupt.came or len(self._going) == self.parallel:
                return
            if job.after is not None and job.after not in self._forked:
                continue
            self.waiting.remove(job)
            os.makedirs(os.path.dirname(job.log), exist_ok=True)
            with open(job.log, "a") as log:
                # A session of its own: Ctrl-C reaches it once, through us.
                one = program.Program(
                    job.arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[self.lock],
                )
            self._going[one] = job
            selector.register(one.connection, selectors.EVENT_READ, one)
            self.display.say(f"{job.name}: started; its output is in {job.log}")

    def _listen(self, one, selector):
        job, messages = self._going[one], one.receive()
        if messages is None:
            selector.unregister(one.connection)
            del self._going[one]
            self._end(job, one.wait())
            return
        for message in messages:
            if "progress" in message:
                job.done, job.text = message["progress"]["done"], message["progress"]["text"]
            elif "forked" in message:
                self._forked.add(message["forked"])
            elif "finished" in message:
                job.wrote = True

    def _end(self, job, status):
        if job.wrote and status == 0:
            job.done, job.finished = 1, True
            self._forked.add(job.folder)  # runs that still wait may begin, from wherever they can
            more = self.on_finish(job)
            told = f"{more}; " if more else ""
            self.display.say(f"{job.name}: {told}{self._finished()} of {self.total} runs finished")
        # Without an interrupt, someone else may have stopped the run.
        elif not interrupt.came or status not in (0, 128 + signal.SIGTERM):
            self.failed.append(job)
            what = f"failed with status {status}" if status else "stopped early"
            self.display.say(f"{job.name}: {what}: {job.last_words()}")

    def _finished(self):
        return self.total - len(self.jobs) + sum(job.finished for job in self.jobs)

    def _show(self):
        share = (self.total - len(self.jobs) + sum(job.done for job in self.jobs)) / self.total
        going = "; ".join(
            f"{job.name} {100 * job.done:.0f} %" + (f", {job.text}" if job.text else "")
            for job in self._going.values()
        )
        if any(job.done for job in self._going.values()):
            self.display.show(f"{self._finished()} of {self.total} runs finished; {going}", share)
