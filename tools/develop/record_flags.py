"""Records the flags of the C++ program for the driver's help and completion: python -m
tools.develop.record_flags --write

Writes python/late_phase_cli/flags.json; tests/program/flags_test.py checks it.
"""

import json
import subprocess
import sys

from late_phase_cli import files, locations, main, program

PATH = "python/late_phase_cli/flags.json"
COMMANDS = (
    *(f"train {name}" for name in main.TRAINED),
    *(name for name in main.PASSED_ON if name != "train"),
)


def describe(command):
    """What the program says of the flags of a command."""
    said = subprocess.run(
        [locations.program(), "flags", *command.split()],
        env=program.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return json.loads(said.stdout)


def describe_all():
    return {command: describe(command) for command in COMMANDS}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"{__doc__}\nThe argument must be --write. Received: {' '.join(sys.argv[1:])}")
    files.write_json(PATH, describe_all())
    print(PATH)
