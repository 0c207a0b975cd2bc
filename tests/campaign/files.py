"""Damages the files of runs and data at random, and disturbs disks while trainings write to them.

    tools/test //tests/campaign:files --test_arg=--flips=1000 --test_arg=--seed=1 --test_output=all

A damaged file must be refused by name or be harmless; a training that could not write must say so,
and end in its own bits once it can. The last line counts; the exit status is 0 if nothing was
found.
"""

import argparse
import collections
import concurrent.futures
import os
import queue
import shutil
import sys
import tempfile
import time
import traceback

from tests.campaign import disk_trials, disks, file_trials, report
from tests.campaign.disk_trials import FAULTS
from tests.campaign.trainings import Training
from tests.campaign.user_commands import User

TRAININGS = ("enwik8 late-phase", "cifar late-phase")


class Campaign:
    """Makes trials, several at a time, until the time is over."""

    def __init__(self, options):
        self.findings, self.counts = [], collections.Counter()
        self._processes = options.processes
        self._until = time.monotonic() + options.seconds

    def run(self, trial, numbers):
        """trial(number, user) -> (what came of it, what is wrong), for each number."""
        users = queue.SimpleQueue()
        for _ in range(self._processes):
            users.put(User())

        def one(number):
            if time.monotonic() > self._until:
                return
            user = users.get()
            try:
                came, wrong = trial(number, user)
            except Exception:  # of the campaign: reported like what it is there to find
                came, wrong = "failed trials", f"trial {number}: {traceback.format_exc()}"
            users.put(user)
            self.counts[came] += 1
            if wrong:
                self.findings.append(wrong)

        with concurrent.futures.ThreadPoolExecutor(self._processes) as pool:
            list(pool.map(one, numbers))
        while not users.empty():
            users.get().close()


def available_faults(folder):
    """The names of the disk faults that can be had here, and lines about the others."""
    try:
        disks.Disk(os.path.join(folder, "disk")).close()
    except disks.NoDisk:
        without = [name for name, fault in FAULTS.items() if issubclass(fault, disk_trials.OnDisk)]
        return [name for name in FAULTS if name not in without], [
            f"Left out, because nothing may be mounted here: {', '.join(without)}"
        ]
    return list(FAULTS), []


def campaign(options, trainings, trials, folder):
    """Returns the findings, what came of the trials how often, and lines about what is left out."""
    made = Campaign(options)
    faults, notes = available_faults(folder)

    def disk_trial(number, user):
        training = trainings[number // len(faults) % len(trainings)]
        return disk_trials.trial(training, faults[number % len(faults)], number, options.seed, user)

    numbers = {"disk": range(options.disks), "trial": range(options.flips * len(trials.cases))}
    if options.only:
        kind, number = options.only
        numbers = {"disk": [], "trial": []} | {kind: [int(number)]}
    made.run(disk_trial, numbers["disk"])
    made.run(trials.run, numbers["trial"])
    return made.findings, made.counts, notes


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--flips", type=int, default=1000, help="damages of each file (%(default)s)"
    )
    parser.add_argument("--disks", type=int, default=100, help="disturbed trainings (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="others draw other damage")
    parser.add_argument("--seconds", type=float, default=86400, help="at the most (%(default)s)")
    parser.add_argument(
        "--only",
        nargs=2,
        metavar=("KIND", "NUMBER"),
        help='the one trial that a finding names, as in "trial 17" or "disk 3"',
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    folder = tempfile.mkdtemp()
    trainings = [Training(name, folder) for name in TRAININGS]
    trials = file_trials.Trials(options.seed, trainings, folder)
    findings, counts, notes = campaign(options, trainings, trials, folder)
    print("".join(f"{note}\n" for note in notes), end="")
    if not findings:
        shutil.rmtree(folder)
    return report.conclude("trials", counts, findings)


if __name__ == "__main__":
    sys.exit(main())
