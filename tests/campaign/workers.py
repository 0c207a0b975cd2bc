"""Campaigns of numbered trials, which run in processes of their own.

A trial that ends its process is reported like any other finding, and the next one follows in a new
process. The last line counts; the exit status is 0 if nothing was found.
"""

import argparse
import collections
import concurrent.futures
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time

from tests.campaign import report

_PLACE = 16  # bytes in which a process leaves the number of the trial it is at
_TELL = 100  # trials after which a process says what it has counted


class Campaign:
    """What is tried, and how.

    Attributes:
      what: what a trial is called, in the plural, such as "calls".
      program: the arguments of Python with which a process calls `main`.
    """

    def __init__(self, what, count, program, description, run, describe, each=None):
        """
        Args:
          count: how many trials there are by default.
          description: for --help.
          run: of the options and a number: (kind, the trial as text, what is wrong or "").
          describe: of the same: the trial as text, without running it.
          each: trials after which a process makes room for a new one; None: no such limit.
        """
        self.what, self.program = what, program
        self._count, self._each, self._run, self.describe = count, each, run, describe
        self._parser = argparse.ArgumentParser(description=description.partition("\n")[0])
        self._own_flags = []
        self._add_flags()

    def _add_flags(self):
        add, hidden = self._parser.add_argument, argparse.SUPPRESS
        add(f"--{self.what}", type=int, default=self._count, help="how many (%(default)s)")
        add("--seed", type=int, default=0, help=f"others draw other {self.what} (%(default)s)")
        add("--first", type=int, default=0, help="the number of the first one (%(default)s)")
        add("--seconds", type=float, default=86400, help="at the most (%(default)s)")
        add("--processes", type=int, default=len(os.sched_getaffinity(0)))
        add("--until", type=float, help=hidden)
        add("--worker", help=hidden)  # the numbers of a process: start, stop, step; and its place

    def add_flag(self, name, **options):
        """A flag of the campaign's own, which its processes get, too."""
        self._parser.add_argument(f"--{name}", **options)
        self._own_flags.append(name)

    def parse(self, arguments=None):
        options = self._parser.parse_args(arguments)
        options.until = options.until or time.time() + options.seconds
        return options

    def main(self, arguments=None):
        options = self.parse(arguments)
        if options.worker:
            return self._work(options)
        with tempfile.TemporaryDirectory() as folder:
            findings, counts = self.go(options, folder)
        found = [f"{finding['trial']}\n  {finding['complaint']}" for finding in findings]
        return report.conclude(self.what, counts, found)

    def go(self, options, folder):
        """Returns the findings, and how many trials there were of each kind."""
        shares = range(options.processes)
        workers = [_Worker(self, options, share, folder) for share in shares]
        with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
            list(pool.map(_Worker.work, workers))
        counts = sum((worker.counts for worker in workers), collections.Counter())
        return [finding for worker in workers for finding in worker.findings], counts

    def _work(self, options):
        """In a process of its own: prints findings and counts, and in the end what is next."""
        start, stop, step, file = json.loads(options.worker)
        with open(file, "r+b") as opened:
            place = mmap.mmap(opened.fileno(), _PLACE)
        counts = collections.Counter()

        def tell(**more):
            print(json.dumps({"counts": counts, **more}), flush=True)
            counts.clear()

        end = stop if self._each is None else min(stop, start + self._each * step)
        for number in range(start, end, step):
            if time.time() > options.until:
                end = stop
                break
            place[:_PLACE] = f"{number:{_PLACE}d}".encode()
            kind, trial, complaint = self._run(options, number)
            counts[kind] += 1
            if complaint:
                print(json.dumps({"trial": trial, "complaint": complaint}), flush=True)
            if counts.total() == _TELL:
                tell()
        tell(next=end)

    def command(self, options, numbers):
        """What starts a process."""
        command = [sys.executable, *self.program, "--worker", json.dumps(numbers)]
        for name in ("seed", "until", *self._own_flags):
            command += [f"--{name}", str(getattr(options, name))]
        return command


class _Worker:
    """A share of the trials, and the processes that run them one after the other."""

    def __init__(self, campaign, options, share, folder):
        self.campaign, self.options = campaign, options
        self.next, self.stop = (
            options.first + share,
            options.first + getattr(options, campaign.what),
        )
        self.place = os.path.join(folder, f"place-{share}")
        self.findings, self.counts = [], collections.Counter()

    def work(self):
        while self.next < self.stop:
            self._start()
            self._finish()

    def _start(self):
        with open(self.place, "wb") as file:
            file.write(b" " * _PLACE)
        numbers = [self.next, self.stop, self.options.processes, self.place]
        self.process = subprocess.Popen(
            self.campaign.command(self.options, numbers),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TF_CPP_MIN_LOG_LEVEL": "3",  # else each refusal is a line
            },
        )

    def _finish(self):
        """Waits for the process, and finds out where the next one begins."""
        output, errors = self.process.communicate()
        for line in output.splitlines():
            if not line.startswith("{"):
                continue  # a library's own words
            told = json.loads(line)
            self.counts.update(told.get("counts", {}))
            if "trial" in told:
                self.findings.append(told)
            if "next" in told:
                self.next = told["next"]
                return
        with open(self.place) as file:
            place = file.read().strip()
        if not place:
            raise RuntimeError(f"the process could not begin: {errors}")
        self.findings.append({
            "trial": self.campaign.describe(self.options, int(place)),
            "complaint": f"its process ended with {self.process.returncode}: {errors[-2000:]}",
        })  # fmt: skip
        self.next = int(place) + self.options.processes
