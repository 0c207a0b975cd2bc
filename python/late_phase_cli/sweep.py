"""sweep: trains a program with several values of its settings, each an ordinary run, and compares
the results.
"""

import concurrent.futures
import contextlib
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib

from late_phase_cli import (
    files,
    interrupt,
    locations,
    metric_names,
    model_names,
    program,
    program_flags,
    results,
    scheduler,
    sweep_plan,
    sweep_table,
)
from late_phase_cli.extras import MissingExtra


def say(text):
    print(text, file=sys.stderr, flush=True)


def settle(options):
    """Checks the options from main.py, and adds what follows from them."""
    if not options.over:
        raise sweep_plan.SweepError(
            "`over` must be given: a setting and its values, such as --over members=1,2,5."
        )
    for name, least in (("seeds", 1), ("seed", 0), ("parallel", 1), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise sweep_plan.SweepError(
                f"`{name}` must be an integer >= {least}. Received: {name}={value}"
            )
    options.out = options.out or f"runs/{options.program}-sweep"
    options.seeds = list(range(options.seed, options.seed + options.seeds))
    options.axes = sweep_plan.read_axes(options.over)
    given = {flag.partition("=")[0] for flag in options.flags if flag.startswith("--")}
    for flag in given & {"--resume", "--dry-run"}:
        raise sweep_plan.SweepError(
            f"{flag} is not a flag of sweep: every point is checked first anyway, and repeating "
            f"the command resumes it. Received: {flag}"
        )
    for name in options.axes:
        flag = f"--{name.replace('_', '-')}"
        if flag in given or (name == "model" and options.model):
            raise sweep_plan.SweepError(
                f"`{name}` must be given by --over or by a flag, not both. "
                f"Received: {flag} and --over {name}={','.join(options.axes[name])}"
            )
    options.model = options.model or "late-phase"
    if options.model in ("all", "all-controls"):
        raise sweep_plan.SweepError(
            "`model` must be one model; --over model=… compares several. "
            f"Received: model={options.model}"
        )
    if "members" in options.axes and not model_names.has_members(options.program, options.model):
        raise sweep_plan.SweepError(
            "`model` must be late-phase, accumulation or lower-rate if members are varied; one "
            f"member is the network without. Received: model={options.model}"
        )


def train_arguments(options, *arguments):
    return ["train", options.program, *options.flags, *arguments]


def ask_program(arguments):
    """Runs the program, with only its arguments and the data; returns its status, standard output
    and error.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        one = program.Program(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        while one.receive() is not None:
            pass
        status = one.wait()
        for file in (output, errors):
            file.seek(0)
        return status, output.read().decode(), errors.read().decode(errors="replace")


def check_names(options):
    """Tells a misspelt setting from a value that train does not accept."""
    flags = [
        name.removeprefix("--").replace("-", "_")
        for name in program_flags.words(f"train {options.program}")
    ]
    for name in options.axes:
        if name not in flags:
            alike = difflib.get_close_matches(name, flags, 1)
            raise sweep_plan.SweepError(
                f"`over` must name a setting of {options.program} (train {options.program} "
                f"--help lists them). Received: over={name}={','.join(options.axes[name])}"
                + (f"; did you mean {alike[0]}?" if alike else "")
            )


def check(options, point):
    """Every setting of the point as train understands it, or its error message if it does not."""
    # The folder is not created, and must not exist.
    out = os.path.join(options.out, f".check-{os.getpid()}")
    status, config, errors = ask_program(
        train_arguments(
            options, *point.flags, f"--seed={options.seed}", "--seeds=1", "--out", out, "--dry-run"
        )
    )
    if status:
        train = f"{locations.command()} train"
        return None, errors[
            max(errors.find(train), 0) :
        ].strip() or f"{train} ended with status {status}"
    config = tomllib.loads(config)
    # A flag of train that is not in config.toml would not tell runs apart.
    missing = [name for name in point.values if name not in config]
    return (
        config,
        f"`over` must name a setting of {options.program}. Received: over={missing[0]}=…"
        if missing
        else None,
    )


def check_all(options, points, at_a_time):
    """Reports what is wrong with any point before hours are spent on the first."""
    first = check(options, points[0])  # the data is looked for here, once
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        checked = [first, *pool.map(lambda point: check(options, point), points[1:])]
    complaints = {}
    for point, (config, complaint) in zip(points, checked):
        point.config = config
        if complaint:
            complaints.setdefault(complaint, []).append(str(point))
    if complaints:
        raise sweep_plan.SweepError(
            "\n  ".join(
                ["every point must be accepted by train. Received:"]
                + [
                    f"{'; '.join(names) if len(names) < len(points) else 'every point'}: "
                    f"{complaint}"
                    for complaint, names in complaints.items()
                ]
            )
        )


def has_gpu(options):
    device = next(
        (
            flag
            for flag in " ".join(options.flags).replace("=", " ").split()
            if re.match("CPU:|GPU:", flag)
        ),
        None,
    )
    return device.startswith("GPU") if device else os.path.exists("/dev/nvidia0")


def check_folder(out, plan):
    """Whatever is in OUT must belong to this sweep."""
    try:
        fits = not os.listdir(out) or sweep_plan.is_part_of(
            files.read_json(os.path.join(out, "sweep.json")), plan
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise sweep_plan.SweepError(
            "`out` must be new or empty, or hold this sweep or a part of it: the same settings, "
            f"and no further values or seeds. Received: out={out}, which holds something else"
        )


@contextlib.contextmanager
def locked_folder(out, plan):
    """Creates OUT with its sweep.json, and returns the scheduler's lock."""
    with scheduler.locked(out) as lock:
        check_folder(out, plan)
        try:
            files.write_json(os.path.join(out, "sweep.json"), plan)
        except OSError as error:
            raise sweep_plan.SweepError(
                f"`out` must be a folder that can be written to. Received: out={out} "
                f"({error.strerror})"
            ) from error
        yield lock


def job_of(options, point, seed, threads):
    """Trains the run of a point, or resumes it."""
    folder = os.path.join(options.out, point.run_folder(seed))
    resume = os.path.exists(os.path.join(folder, "config.toml"))
    if not resume and os.path.exists(folder):
        shutil.rmtree(folder)  # it was killed before it had written its settings, let alone a state
    flags = ["--resume"] if resume else [*point.flags, f"--seed={seed}", "--seeds=1"]
    return scheduler.Job(
        f"{point}, seed {seed}",
        folder,
        train_arguments(options, *flags, "--out", folder, "--threads", str(threads)),
    )


def result_text(result):
    metrics = result["test"]["collapsed"]
    named = [
        (metric_names.metric_of(name), metrics[name])
        for name in metric_names.MAIN_METRICS
        if name in metrics
    ]
    text = ", ".join(f"{metric.head} {metric.number(value)}" for metric, value in named)
    memory = f", {result['peak_bytes'] / 1e9:.1f} GB" if "peak_bytes" in result else ""
    return f"test {text} ({result['seconds'] / 60:.1f} min of training{memory})"


def finish(job):
    """For a run that has finished: draws its curves, and returns what to print about it."""
    try:
        results.draw(job.folder)
    except MissingExtra:
        pass  # reported once, at the end
    except Exception as error:  # any error: the results exist
        say(f"{locations.command()} sweep: could not draw the curves of {job.folder}: {error}")
    return result_text(sweep_table.finished(job.folder))


def run(options):
    """The command: options come from main.py."""
    settle(options)
    points = sweep_plan.plan_points(options.program, options.model, options.axes, options.grid)
    cores = len(os.sched_getaffinity(0))
    with interrupt.patient():
        check_names(options)
        check_all(options, points, cores)
    if interrupt.came:
        return interrupt.status()
    sweep_plan.share_runs(points)
    folders = {point.folder: point for point in reversed(points)}
    # Seed by seed: a sweep that is stopped then has something to say about every point.
    runs = [
        (folders[folder], seed)
        for seed in options.seeds
        for folder in dict.fromkeys(point.folder for point in points)
    ]
    parallel = min(options.parallel or (1 if has_gpu(options) else cores), len(runs))
    threads = options.threads or max(1, cores // parallel)

    with locked_folder(
        options.out,
        sweep_plan.to_json(options.program, options.axes, options.grid, options.seeds, points),
    ) as lock:
        jobs = [
            job_of(options, point, seed, threads)
            for point, seed in runs
            if sweep_table.finished(os.path.join(options.out, point.run_folder(seed))) is None
        ]
        failed = scheduler.Scheduler(jobs, parallel, threads, lock, len(runs), finish).run()
    if interrupt.came:
        say(
            f"Stopped; the states are saved. To resume: {locations.command()} "
            f"{shlex.join(options.typed)}"
        )
        return 0
    print()
    results.show("sweep", options.out)
    for job in failed:
        say(
            f"{locations.command()} sweep: {job.name} has no results and is not in the table; see "
            f"{job.log}"
        )
    return 1 if failed else 0
