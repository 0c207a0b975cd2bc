"""A few training steps of the C++ program on a device and on the CPU, on made-up data: where its
ops are placed, how long a step takes, and whether the losses agree.
"""

import json
import os
import re
import subprocess

from late_phase_cli import program

# As in the presets, but with the late phase from the first step on.
LATE = "--model late-phase --t0 0 --swa-start -1 --evaluate-every 0 --log-every 1".split()
PROGRAMS = {
    "LSTM (enwik8, paper)": "enwik8 --preset paper".split(),
    "ConvNet (cifar, convnet)": "cifar --preset convnet".split(),
    "WRN 16-2 (cifar, wrn-16-2-small)": "cifar --preset wrn-16-2-small --train-images 0".split(),
}
STEPS = 40
STEPS_ON_CPU = 12  # of ten members: with a step of the base
WARM_UP = 10  # steps that are not timed
TOLERANCE = 0.02  # of the losses: products may be rounded to TensorFloat-32
PATIENCE = 3600  # seconds


def write_data(folder):
    """A text and images of random numbers, in the formats of enwik8 and CIFAR-10."""
    import numpy as np

    random = np.random.default_rng(0)
    text = random.integers(0, 205, 250_000).astype(np.uint8)
    text[:205] = np.arange(205)
    text.tofile(os.path.join(folder, "text"))
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for name in names:
        images = random.integers(0, 256, (256, 1 + 3 * 32 * 32)).astype(np.uint8)
        images[:, 0] %= 10
        images.tofile(os.path.join(folder, name))


def measure(arguments, device, data, folder):
    """What the program does on the device, and its problems. The run is folder/run."""
    result, problems = {}, []
    for place, name, count in ((device, "run", STEPS), ("CPU:0", "on-cpu", STEPS_ON_CPU)):
        run = os.path.join(folder, name)
        try:
            said = train(arguments, place, data, run, count)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return result, [*problems, f"on {place}: {error}"]
        lines = read_lines(run)
        result[name] = {
            "device": place,
            "milliseconds": round(milliseconds(lines), 3),
            "losses": [line["loss"] for line in lines],
            "placement": placement(said),
        }
    problems += misplaced(result["run"]["placement"], device)
    problems += unequal(result["run"]["losses"], result["on-cpu"]["losses"])
    return result, problems


def train(arguments, device, data, run, steps):
    """What a run says on standard error."""
    kind, *flags = arguments
    source = os.path.join(data, "text") if kind == "enwik8" else data
    words = ["train", kind, *LATE, *flags, "--steps", steps, "--device", device]
    command = [program.locations.program(), *map(str, [*words, "--data", source, "--out", run])]
    finished = subprocess.run(
        command,
        env=program.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=PATIENCE,
    )
    if finished.returncode:
        last = " ".join(finished.stderr.splitlines()[-5:])
        raise RuntimeError(f"the program ended with status {finished.returncode}: {last}")
    return finished.stderr


def read_lines(run):
    """What metrics.jsonl says about the training, step by step."""
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        lines = map(json.loads, file)
        return [line for line in lines if line["kind"] == "train"]


def milliseconds(lines):
    """The shortest step, once all is warm."""
    seconds = [line["seconds"] for line in lines]
    steps = [later - earlier for earlier, later in zip(seconds, seconds[1:])]
    return 1000 * min(steps[WARM_UP:] or steps)


def placement(said):
    """Device -> the library's ops that ran there, from what the program said."""
    found = re.findall(r"([A-Z]+:\d+) runs \d+ kinds of ops(?:, of ours ([^;\n]*))?", said)
    return {device: ops.split(", ") if ops else [] for device, ops in found}


def misplaced(placement, device):
    problems = [
        f"{', '.join(ops)} ran on {other}, not on {device}"
        for other, ops in placement.items()
        if ops and other != device
    ]
    if not placement.get(device):
        problems.append(f"none of the library's ops ran on {device}")
    return problems


def unequal(losses, expected):
    """The first loss that is not the CPU's."""
    for step, (one, other) in enumerate(zip(losses, expected), 1):
        if not abs(one - other) <= TOLERANCE * abs(other):
            return [f"the loss of step {step} is {one:.6g}, on the CPU {other:.6g}"]
    return []
