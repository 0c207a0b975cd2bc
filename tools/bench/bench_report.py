"""What the drivers of `tools/latephase bench` share: running a Google Benchmark program, targets in
a report, the command line.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile

import numpy as np


# Of tools/bench/bench_peer.py. The last takes part if an interpreter that has PyTorch is named.
PEERS = {
    "keras-rank1": "Keras RNN, rank-1 cell",
    "keras-lstm": "Keras LSTM (no rank-1)",
    "torch": "PyTorch nn.LSTM (no rank-1)",
}


def cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine():
    """The part of every recorded run that says where it ran and what was loaded."""
    import late_phase

    library = dict(line.split(": ", 1) for line in late_phase.describe().splitlines())
    return {"cpu": cpu_name(), "threads": os.cpu_count(), "library": library}


def machine_line(results):
    return (
        f"{results['cpu']}, {results['threads']} threads, CPU kernels: "
        f"{results['library']['CPU kernels']}, late_phase {results['library']['late_phase']}"
    )


def run_program(name, arguments, environment=None):
    """The JSON that the benchmark's C++ program prints. `environment` is added to ours."""
    run = subprocess.run(
        [os.environ["LATE_PHASE_BENCH"], *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
    )
    if run.returncode != 0:
        raise SystemExit(f"bench {name}: {' '.join(arguments)} failed:\n{run.stderr}")
    return json.loads(run.stdout)


def run_benchmarks(name, repetitions, pattern=".*", environment=None):
    """Runs the benchmarks that match, one iteration each in random order, `repetitions` times over.

    Returns the seconds of every repetition by benchmark, and Google Benchmark's context.
    """
    report = run_program(
        name,
        [
            f"--benchmark_filter=^({pattern})/iterations",
            "--benchmark_format=json",
            f"--benchmark_repetitions={repetitions}",
            "--benchmark_enable_random_interleaving=true",
        ],
        environment,
    )
    times = {}
    for entry in report["benchmarks"]:
        if entry["run_type"] == "iteration":
            times.setdefault(entry["name"].split("/iterations")[0], []).append(
                entry["real_time"] / 1e3
            )
    return times, report["context"]


class Process:
    """A participant that runs when told to: a line to its standard input, a JSON object on a line
    in answer (tools/bench/bench_peer.py).
    """

    def __init__(self, benchmark, name, command):
        self.benchmark, self.name = benchmark, name
        # A pipe that is not read would fill up and stop it.
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self.version = self.answer()["version"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"bench {self.benchmark}: {self.name} failed:\n{self.errors.read()}")
        return json.loads(line)

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why
        return self.answer()

    def seconds(self, steps):
        return self.ask(f"run {steps}")["seconds"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.errors.close()


def peer_names(options):
    return [name for name in PEERS if name != "torch" or options.torch_python]


def start_peer(workload, name, options, folder, threads):
    """tools/bench/bench_peer.py on the arrays in `folder`."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_peer.py")
    python = options.torch_python if name == "torch" else sys.executable
    return Process(
        workload, f"the peer {name}", [python, script, workload, name, folder, str(threads)]
    )


def save_arrays(folder, arrays):
    os.makedirs(folder)
    for name, array in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), array)


def interval(ratios, rng):
    """Median and its bootstrap 95 % interval."""
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    return float(np.median(ratios)), *(float(q) for q in np.quantile(medians, [0.025, 0.975]))


def members_lines(rounds, target=None):
    """The ratios within rounds [[K = 1, K = 1 again, K = 10], ...], given in seconds. The target is
    for the interval's upper end.
    """
    rounds, rng = np.array(rounds), np.random.default_rng(0)
    lines = [
        f"{len(rounds)} rounds of K = 1, K = 1 again, K = 10: median of the ratios within a "
        "round, bootstrap 95 % interval"
    ]
    for text, column, limit in [
        ("K = 1 over K = 1 (control)", 1, None),
        ("K = 10 over K = 1", 2, target),
    ]:
        median, low, high = interval(rounds[:, column] / rounds[:, 0], rng)
        verdict = (
            f"   target upper end <= {limit}: " + ("met" if high <= limit else "MISSED")
            if limit
            else ""
        )
        lines.append(f"{text:38}{median:8.4f}   {low:.4f} to {high:.4f}{verdict}")
    return lines


def ratio_line(text, value, target=None, at_least=True):
    verdict = ""
    if target is not None:
        verdict = f"   target {'>=' if at_least else '<='} {target}: " + (
            "met" if (value >= target) == at_least else "MISSED"
        )
    return f"{text:60}{value:7.3f}{verdict}"


def main(parser, check, measure, render):
    """Measures or, with --show, reads a recorded run; prints the report. `check(options)` returns
    an error message or None.
    """
    parser.add_argument("--out", metavar="FILE", help="also write all times as JSON")
    parser.add_argument(
        "--show",
        metavar="FILE",
        help="measure nothing; print the report of a file written by --out",
    )
    options = parser.parse_args()
    complaint = check(options)
    if complaint:
        parser.error(complaint)
    if options.show:
        with open(options.show) as file:
            results = json.load(file)
    else:
        results = measure(options)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(results, file)
            file.write("\n")
    print("\n".join(render(results)))


def parser(name, description):
    return argparse.ArgumentParser(prog=f"tools/latephase bench {name}", description=description)


def peer_parser(name, description):
    """The parser of a benchmark that has peers and compares members; `check_peer_options` is its
    check.
    """
    result = parser(name, description)
    result.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds, in which all contestants take turns (default 5)",
    )
    result.add_argument(
        "--pairs",
        type=int,
        default=200,
        help="rounds that compare one member with ten; 0 skips them (default 200)",
    )
    result.add_argument(
        "--torch-python",
        metavar="PATH",
        help="an interpreter that has PyTorch, to add it as a peer",
    )
    return result


def at_least(**least):
    """The `check` of a benchmark whose options are counts, each with its least value."""

    def check(options):
        for name, value in least.items():
            if getattr(options, name) < value:
                return f"--{name} must be >= {value}. Received: --{name} {getattr(options, name)}"
        return None

    return check


check_peer_options = at_least(rounds=1, pairs=0)
