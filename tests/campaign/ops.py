"""Calls every op at random, and checks each call against the reference.

    tools/test //tests/campaign:ops --test_arg=--calls=1000000 --test_arg=--seed=1 --test_output=all

Calls run in processes of their own, so that one that ends its process is reported like any other
finding, and the next one continues. The last line counts; the exit status is 0 if nothing was
found.
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

PROGRAM = ["-m", "tests.campaign.ops"]  # what each process runs
_RACES = 500  # every so many calls are a race of threads for one variable
_PLACE = 16  # bytes in which a process leaves the number of the call it is at


def _work(options):
    """In a process of its own: calls from `first` on; prints findings and counts."""
    from tests.campaign import op_calls, op_races, op_trial

    with open(options.place, "r+b") as file:
        place = mmap.mmap(file.fileno(), _PLACE)
    counts = collections.Counter()

    def tell():
        print(json.dumps({"counts": counts}), flush=True)
        counts.clear()

    for number in range(options.first, options.calls, options.step):
        if time.time() > options.until:
            break
        place[:_PLACE] = f"{number:{_PLACE}d}".encode()
        if number % _RACES == _RACES - 1:
            call = op_races.Race(options.seed, number)
            complaint, kind = call.run(), "races of threads"
        else:
            call = op_calls.make(options.seed, number)
            complaint = op_trial.run(call, op_trial.FORMS[options.form])
            kind = f"{call.signature.op} {'accepted' if call.expected() else 'refused'}"
        counts[kind] += 1
        if complaint:
            print(json.dumps({"call": str(call), "complaint": complaint}), flush=True)
        if sum(counts.values()) == 500:
            tell()
    tell()
    print(json.dumps({"done": True}), flush=True)


class _Worker:
    """A share of the calls, and the processes that make them one after the other."""

    def __init__(self, options, first, step, folder):
        self.options, self.first, self.step = options, first, step
        self.place = os.path.join(folder, f"place-{first}")
        self.findings, self.counts = [], collections.Counter()

    def work(self):
        self._start()
        while not self._finish():
            self._start()

    def _start(self):
        with open(self.place, "wb") as file:
            file.write(b" " * _PLACE)
        options = self.options
        command = [sys.executable, *PROGRAM, "--worker"]
        for name in ("calls", "seed", "form"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--first", str(self.first), "--step", str(self.step), "--place", self.place,
                    "--until", str(options.until)]  # fmt: skip
        self.process = subprocess.Popen(
            command,
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
        """Waits for the process; True if it has made all of its calls."""
        output, errors = self.process.communicate()
        whole = False
        for line in output.splitlines():
            told = json.loads(line)
            whole = whole or "done" in told
            self.counts.update(told.get("counts", {}))
            if "call" in told:
                self.findings.append(told)
        if whole:
            return True
        from tests.campaign import op_calls, op_races

        with open(self.place) as file:
            place = file.read().strip()
        if not place:
            raise RuntimeError(f"the process could not begin: {errors}")
        number = int(place)
        make = op_races.Race if number % _RACES == _RACES - 1 else op_calls.make
        self.findings.append({
            "call": str(make(self.options.seed, number)),
            "complaint": f"its process ended with {self.process.returncode}: {errors[-2000:]}",
        })  # fmt: skip
        self.first = number + self.step
        return self.first >= self.options.calls


def campaign(options, folder):
    """Returns the findings, and how many calls of each op were accepted and refused."""
    shares = range(options.processes)
    workers = [_Worker(options, first, options.processes, folder) for first in shares]
    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(_Worker.work, workers))
    counts = sum((worker.counts for worker in workers), collections.Counter())
    return [finding for worker in workers for finding in worker.findings], counts


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="others draw other calls (%(default)s)")
    parser.add_argument("--seconds", type=float, default=86400, help="at the most (%(default)s)")
    parser.add_argument(
        "--form", choices=["eager", "function"], default="eager",
        help="how the ops are called; function: by tf.function with unknown shapes (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    for name in ("first", "step"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.until = options.until or time.time() + options.seconds
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.worker:
        return _work(options)
    with tempfile.TemporaryDirectory() as folder:
        findings, counts = campaign(options, folder)
    found = [f"{finding['call']}\n  {finding['complaint']}" for finding in findings]
    return report.conclude("calls", counts, found)


if __name__ == "__main__":
    sys.exit(main())
