"""Trains a program at several values of its settings, each an ordinary run, and compares the results.

  tools/latephase sweep cifar --preset convnet-quick --data DIR --out runs/k-sweep --over members=1,2,5,10 --seeds 3

OUT/members-5/seed-0 is a run like any other. One member is the model without late-phase weights (enwik8: rank1). Several --over are taken
one at a time, the preset saying the rest, or as a grid. Flags that are not listed here go to every run: see train PROGRAM --help.
The same command again goes on with what was interrupted and leaves alone what has finished; with more values or seeds it adds them.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import difflib
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib

from late_phase_cli import metric_names, plot, sweep_plan, sweep_table

COMMAND = "tools/latephase sweep"


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=f"{COMMAND} PROGRAM --over SETTING=VALUE,... [OPTION]... [FLAG OF train]...")
    count = {"type": int, "metavar": "N"}
    parser.add_argument("program", choices=sweep_plan.SINGLE, metavar="PROGRAM", help=" or ".join(sweep_plan.SINGLE))
    parser.add_argument("--over", action="append", required=True, metavar="SETTING=VALUE,...", help="a setting and its values; may be repeated")
    parser.add_argument("--grid", action="store_true", help="every combination of the values, instead of one setting at a time")
    parser.add_argument("--seeds", default=1, **count, help="runs of each point, with consecutive seeds (default: 1)")
    parser.add_argument("--seed", default=0, **count, help="the first of them (default: 0)")
    parser.add_argument("--model", help="the model to train (default: late-phase)")
    parser.add_argument("--out", metavar="DIR", help="folder of the sweep (default: runs/PROGRAM-sweep)")
    parser.add_argument("--data", metavar="PATH", help="as for train")
    parser.add_argument("--jobs", **count, help="runs at a time, each with memory of its own (default: one per core; with a GPU one)")
    parser.add_argument("--threads", **count, help="of each run (default: the cores shared among the runs)")
    options, options.flags = parser.parse_known_args(arguments)
    for name, least in (("seeds", 1), ("seed", 0), ("jobs", 1), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise sweep_plan.SweepError(f"`{name}` must be an integer >= {least}. Received: {name}={value}")
    options.out = options.out or f"runs/{options.program}-sweep"
    options.seeds = list(range(options.seed, options.seed + options.seeds))
    options.axes = sweep_plan.read_axes(options.over)
    given = {flag.partition("=")[0] for flag in options.flags if flag.startswith("--")}
    for flag in given & {"--resume", "--dry-run"}:
        raise sweep_plan.SweepError(
            f"{flag} is no flag of a sweep: every point is checked first, and the same command again goes on. Received: {flag}")
    for name in options.axes:
        flag = f"--{name.replace('_', '-')}"
        if flag in given or (name == "model" and options.model):
            raise sweep_plan.SweepError(f"`{name}` must be given by --over or by a flag, not both. "
                                        f"Received: {flag} and --over {name}={','.join(options.axes[name])}")
    if "members" in options.axes and options.model not in (None, "late-phase"):
        raise sweep_plan.SweepError(
            f"`model` must be late-phase where members are varied; one member is the model without. Received: model={options.model}")
    options.model = options.model or "late-phase"
    if options.model == "all":
        raise sweep_plan.SweepError("`model` must be one model; --over model=… compares several. Received: model=all")
    return options


def find_data(options):
    """The flags that name the data: for enwik8 the checked text, so that it is looked for once."""
    if options.program != "enwik8":
        return ["--data", options.data] if options.data is not None else []
    given = ["--data", options.data] if options.data is not None else []
    command = [sys.executable, "-P", "-m", "late_phase_cli.run_tool", "late_phase_cli.enwik8_data", *given]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if found.returncode:
        sys.exit(found.returncode)
    return ["--data", found.stdout.strip()]


def train_command(options, *arguments):
    return [os.environ["LATE_PHASE_TRAIN"], "train", options.program, *options.flags, *options.data_flags, *arguments]


def check_names(options):
    """A misspelt setting is told from a value that train does not take."""
    program = subprocess.run([os.environ["LATE_PHASE_TRAIN"], "train", options.program, "--help"], capture_output=True, text=True, errors="replace")
    flags = [flag.replace("-", "_") for flag in re.findall(r"^\s+--([a-z0-9-]+)", program.stdout, re.MULTILINE)]
    for name in options.axes:
        if name not in flags:
            alike = difflib.get_close_matches(name, flags, 1)
            raise sweep_plan.SweepError(f"`over` must name a setting of {options.program} (train {options.program} --help lists them). "
                                        f"Received: over={name}={','.join(options.axes[name])}" + (f"; did you mean {alike[0]}?" if alike else ""))


def check(options, point):
    """Every setting of the point as train understands it, and its complaint if it does not."""
    # The folder is not made, and must be one that is not there.
    out = os.path.join(options.out, f".check-{os.getpid()}")
    program = subprocess.run(train_command(options, *point.flags, f"--seed={options.seed}", "--seeds=1", "--out", out, "--dry-run"),
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if program.returncode:
        complaint = program.stderr[max(program.stderr.find("tools/latephase train"), 0):].strip()
        return None, complaint or f"tools/latephase train ended with status {program.returncode}"
    config = tomllib.loads(program.stdout)
    # A flag that train has, but config.toml does not, tells nobody which run is which.
    missing = [name for name in point.values if name not in config]
    return config, f"`over` must name a setting of {options.program}. Received: over={missing[0]}=…" if missing else None


def check_all(options, points, at_a_time):
    """What is wrong with any point is said before hours go into the first."""
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        checked = list(pool.map(lambda point: check(options, point), points))
    complaints = {}
    for point, (config, complaint) in zip(points, checked):
        point.config = config
        if complaint:
            complaints.setdefault(complaint, []).append(str(point))
    if complaints:
        raise sweep_plan.SweepError("\n  ".join(["every point must be one that train takes. Received:"] + [
            f"{'; '.join(names) if len(names) < len(points) else 'every point'}: {complaint}" for complaint, names in complaints.items()]))


def has_gpu(options):
    device = next((flag for flag in " ".join(options.flags).replace("=", " ").split() if re.match("CPU:|GPU:", flag)), None)
    return device.startswith("GPU") if device else os.path.exists("/dev/nvidia0")


def check_folder(out, plan):
    """What is in OUT must belong to this sweep."""
    try:
        fits = not os.listdir(out) or sweep_plan.is_part_of(sweep_table.read_json(os.path.join(out, "sweep.json")), plan)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise sweep_plan.SweepError("`out` must be new or empty, or hold this sweep or a part of it: the same settings, and no value or seed more. "
                         f"Received: out={out}, which holds something else")


@contextlib.contextmanager
def locked_folder(out, plan):
    """Makes OUT with its sweep.json and gives the lock that keeps others from working in it. The runs hold it as well, so that those which
    outlive a killed sweep by a step are not started a second time."""
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(out, exist_ok=True)
            lock = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check_folder(out, plan)
            sweep_table.write_json(os.path.join(out, "sweep.json"), plan)
        except BlockingIOError as error:
            raise sweep_plan.SweepError(
                f"`out` must not be at work already. Received: out={out}, in which runs of another process are going on") from error
        except OSError as error:
            raise sweep_plan.SweepError(f"`out` must be a folder that can be made and written to. Received: out={out} ({error.strerror})") from error
        yield lock


def end_with_parent():
    """In a run, before it begins: a sweep that is killed takes its runs along, each with its state saved."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)


def start(options, point, seed, threads, lock):
    """Starts a run, or goes on with it. Its words go to a file beside its folder."""
    folder = os.path.join(options.out, point.run_folder(seed))
    resume = os.path.exists(os.path.join(folder, "config.toml"))
    if not resume and os.path.exists(folder):
        shutil.rmtree(folder)  # it was killed before it had settings, let alone a state
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    flags = ["--resume"] if resume else [*point.flags, f"--seed={seed}", "--seeds=1"]
    command = train_command(options, *flags, "--out", folder, "--threads", str(threads))
    with open(folder + ".log", "a") as log:
        # A session of its own: Ctrl-C reaches it once, through us.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[lock],
                                preexec_fn=end_with_parent)


def last_line(path):
    with open(path, errors="replace") as file:
        return (file.read().strip().splitlines() or [""])[-1]


def result_text(result):
    metrics = result["test"]["collapsed"]
    named = [(metric_names.metric_of(name), metrics[name]) for name in metric_names.MAIN_METRICS if name in metrics]
    text = ", ".join(f"{metric.head} {metric.number(value)}" for metric, value in named)
    memory = f", {result['peak_bytes'] / 1e9:.1f} GB" if "peak_bytes" in result else ""
    return f"test {text} ({result['seconds'] / 60:.1f} min of training{memory})"


def work_off(options, waiting, total, threads, lock):
    """Trains the waiting runs, [(point, seed)], some at a time. Returns those that failed, and whether a signal came."""
    going, failed, stopped = {}, [], []

    def stop(number, frame):
        if number == signal.SIGINT and number in stopped:
            for process in going:
                process.kill()
            os._exit(128 + number)
        if not stopped:
            os.write(2, f"{COMMAND}: the runs save their states and stop; Ctrl-C again ends them at once\n".encode())
        stopped.append(number)
        for process in going:
            process.send_signal(signal.SIGTERM)

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while going or (waiting and not stopped):
            while waiting and not stopped and len(going) < options.jobs:
                point, seed = waiting.pop(0)
                process = start(options, point, seed, threads, lock)
                going[process] = point, seed
                say(f"{point}, seed {seed}: begins; what it says is in {options.out}/{point.run_folder(seed)}.log")
                if stopped:  # the signal may have come before it was known
                    process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            for process in [process for process in going if process.poll() is not None]:
                point, seed = going.pop(process)
                folder = os.path.join(options.out, point.run_folder(seed))
                result = sweep_table.finished(folder)
                if result is not None and process.returncode == 0:
                    draw_curves(folder)
                    say(f"{point}, seed {seed}: {result_text(result)}; {total - len(waiting) - len(going) - len(failed)} of {total} runs finished")
                elif not stopped or process.returncode not in (0, 128 + signal.SIGTERM):  # a run may be told to end by others than us
                    failed.append((point, seed))
                    what = f"failed with status {process.returncode}" if process.returncode else "ended before its time"
                    say(f"{point}, seed {seed}: {what}: {last_line(folder + '.log')}")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return failed, bool(stopped)


def draw_curves(folder):
    try:
        plot.main(folder)
    except (plot.PlotError, OSError) as error:
        say(f"{COMMAND}: could not draw the curves of {folder}: {error}")


def main(arguments):
    options = parse(arguments)
    options.data_flags = find_data(options)
    points = sweep_plan.plan_points(options.program, options.model, options.axes, options.grid)
    cores = len(os.sched_getaffinity(0))
    check_names(options)
    check_all(options, points, cores)
    sweep_plan.share_runs(points)
    folders = {point.folder: point for point in reversed(points)}
    # Seed by seed: a sweep that is stopped has something to say of every point.
    runs = [(folders[folder], seed) for seed in options.seeds for folder in dict.fromkeys(point.folder for point in points)]
    options.jobs = min(options.jobs or (1 if has_gpu(options) else cores), len(runs))
    threads = options.threads or max(1, cores // options.jobs)

    with locked_folder(options.out, sweep_plan.to_json(options.program, options.axes, options.grid, options.seeds, points)) as lock:
        waiting = [(point, seed) for point, seed in runs if sweep_table.finished(os.path.join(options.out, point.run_folder(seed))) is None]
        say(f"{len(runs)} runs, {len(runs) - len(waiting)} of them finished; {options.jobs} at a time, {threads} thread{'s' * (threads > 1)} each")
        failed, stopped = work_off(options, waiting, len(runs), threads, lock)
    if stopped:
        say(f"Stopped; the states are saved. To resume: {COMMAND} {shlex.join(arguments)}")
        return 0
    results = sweep_table.summarize(options.out)
    written = [path for path in (f"{options.out}/results.json", f"{options.out}/sweep.png") if os.path.exists(path)]
    print("\n".join(["", *sweep_table.render(results), "", *written]))
    for point, seed in failed:
        say(f"{COMMAND}: {point}, seed {seed} has no results and is not in the table; see {options.out}/{point.run_folder(seed)}.log")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except sweep_plan.SweepError as error:
        say(f"{COMMAND}: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
