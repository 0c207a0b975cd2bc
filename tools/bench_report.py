"""What the drivers of `tools/latephase bench` share: running a Google Benchmark program, targets in a report, the command line."""

import argparse
import json
import os
import platform
import subprocess


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
    return (f"{results['cpu']}, {results['threads']} threads, CPU kernels: {results['library']['CPU kernels']}, "
            f"late_phase {results['library']['late_phase']}")


def run_program(name, arguments):
    """The JSON that the benchmark's C++ program prints."""
    run = subprocess.run(
        [os.environ["LATE_PHASE_BENCH"], *arguments], capture_output=True, text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    if run.returncode != 0:
        raise SystemExit(f"bench {name}: {' '.join(arguments)} failed:\n{run.stderr}")
    return json.loads(run.stdout)


def run_benchmarks(name, repetitions, pattern=".*"):
    """Runs the benchmarks that match, one iteration each in random order, `repetitions` times over.

    Returns the seconds of every repetition by benchmark, and Google Benchmark's context.
    """
    report = run_program(name, [
        f"--benchmark_filter=^({pattern})/iterations", "--benchmark_format=json", f"--benchmark_repetitions={repetitions}",
        "--benchmark_enable_random_interleaving=true"])
    times = {}
    for entry in report["benchmarks"]:
        if entry["run_type"] == "iteration":
            times.setdefault(entry["name"].split("/iterations")[0], []).append(entry["real_time"] / 1e3)
    return times, report["context"]


def ratio_line(text, value, target=None, at_least=True):
    verdict = ""
    if target is not None:
        verdict = f"   target {'>=' if at_least else '<='} {target}: " + ("met" if (value >= target) == at_least else "MISSED")
    return f"{text:60}{value:7.3f}{verdict}"


def main(parser, check, measure, render):
    """Measures or, with --show, reads a recorded run; prints the report. `check(options)` returns a complaint or None."""
    parser.add_argument("--out", metavar="FILE", help="also write all times as JSON")
    parser.add_argument("--show", metavar="FILE", help="measure nothing, print the report of a file written by --out")
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
