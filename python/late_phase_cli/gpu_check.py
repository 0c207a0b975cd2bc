"""gpu-check: every op, the training programs and Keras on a GPU against the CPU, as one report.

What computes is in processes of their own (check_worker.py): a kernel that crashes is a line of the
report, and the rest is checked all the same.
"""

import os
import tempfile

from late_phase_cli import check_worker, display, files, gpu_summary, program_steps
from late_phase_cli.errors import UserError

CRASHES = 5  # after which no more cases are tried
SHARE = 0.7  # of the ops in the time that all takes, about
ROUNDS = 100  # of steps of Keras
LOSS_TOLERANCE = 0.02  # products may be rounded to TensorFloat-32


def check(out, device="GPU:0", programs=program_steps.PROGRAMS, worker=check_worker.command):
    """Writes the report, prints a summary and returns the exit status.

    Args:
      out: the file to write.
      device: what to compare with the CPU; tests pass "CPU:0".
      programs: name -> arguments of the C++ program.
      worker: the command that runs a part.
    """
    if not os.path.isdir(os.path.dirname(out) or "."):
        raise UserError(f"`out` must be a file in an existing folder. Received: out={out}")
    facts = read_facts(device, worker)
    progress = display.Display()
    try:
        ops, problems = check_ops(device, worker, progress)
        steps, of_steps = check_steps(device, programs, worker, progress)
    finally:
        progress.clear()
    report = {
        "device": device,
        "problems": [*problems, *of_steps],
        "facts": facts,
        "ops": ops,
        "steps": steps,
    }
    files.write_json(out, report)
    print("\n".join(gpu_summary.render(report, out)))
    return 1 if report["problems"] else 0


def read_facts(device, worker):
    """What is known about the machine; a UserError if it has no such device."""
    process = check_worker.Worker(worker("facts"))
    found = list(process.messages())
    if process.problem:
        raise UserError(
            "\n".join(["TensorFlow or late_phase cannot be loaded:", *process.last_words()])
        )
    (facts,) = found
    if device not in facts["devices"]:
        raise UserError(gpu_summary.no_device(device, facts, process.last_words()))
    return facts


def check_ops(device, worker, progress):
    """The worst differences of all ops, as `gpu_summary` shows them, and the problems."""
    results, problems, about, peak = [], [], {}, None
    first = 0
    for _ in range(CRASHES):
        process, at = check_worker.Worker(worker("ops", device, first)), {}
        for message in process.messages():
            if "begins" in message:
                at = message
                progress.show(
                    f"ops: case {at['number'] + 1} of {about['cases']}, {at['begins']}",
                    SHARE * at["number"] / about["cases"],
                )
            elif "case" in message:
                results.append(message)
            elif "peak_bytes" in message:
                peak = message["peak_bytes"]
            else:
                about = message
        if not process.problem:
            break
        where = f"{at['begins']}, by {at['by']}" if at else "before the first case"
        problems.append(
            {
                "where": f"ops: {where}",
                "problem": f"the process {process.problem}",
                "printed": process.last_words(),
            }
        )
        if not at:
            break
        first = at["number"] + 1
    else:
        left = f"the last {about['cases'] - first} cases were not run"
        problems.append({"where": "ops", "problem": f"after {CRASHES} of these, {left}"})
    problems += [
        {
            "where": f"{', '.join(one['ops']) or 'ops'}: {one['case']}, by {one['by']}",
            "problem": one["problem"],
        }
        for one in results
        if one["problem"]
    ]
    problems += not_compared(results, about)
    return {**about, "peak_bytes": peak, "by": worst_of(results)}, problems


def not_compared(results, about):
    """A problem for every op that was not run, in each of its types."""
    done = {(op, one["type"], one["by"]) for one in results for op in one["ops"]}
    return [
        {"where": f"{op}, {type}, by {by}", "problem": "was not compared with the CPU"}
        for op in about.get("ops", ["all ops"])
        for type in about.get("tolerance", ["all types"])
        for by in ("kernels", "XLA")
        if (op, type, by) not in done
    ]


def worst_of(results):
    """by -> how many cases there were, how many were wrong, and for each op and type the largest
    difference, with the case that it is of.
    """
    found = {}
    for one in results:
        of_all = found.setdefault(one["by"], {"cases": 0, "wrong": 0, "ops": {}})
        for op in one["ops"]:
            types = of_all["ops"].setdefault(op, {})
            worst = types.setdefault(one["type"], {"cases": 0, "wrong": 0, "size": 0.0})
            count(worst, one)
            if one.get("size", 0.0) > worst["size"]:
                worst |= {name: one[name] for name in ("size", "tolerance", "case", "output")}
        count(of_all, one)
    return found


def count(counts, result):
    counts["cases"] += 1
    counts["wrong"] += bool(result["problem"])


def check_steps(device, programs, worker, progress):
    """Name of a program -> its steps and those of Keras; and the problems."""
    steps, problems = {}, []
    with tempfile.TemporaryDirectory() as data:
        program_steps.write_data(data)
        for done, (name, arguments) in enumerate(programs.items()):
            progress.show(f"steps: {name}", SHARE + (1 - SHARE) * done / len(programs))
            with tempfile.TemporaryDirectory() as folder:
                measured, found = program_steps.measure(arguments, device, data, folder)
                of_keras = {}
                if "run" in measured:
                    run = os.path.join(folder, "run")
                    of_keras, more = check_keras(device, run, worker)
                    found += more
            steps[name] = {"program": measured, "Keras": of_keras}
            problems += [{"where": name, "problem": problem} for problem in found]
    return steps, problems


def check_keras(device, run, worker):
    """The steps of Keras with the network of a run; and the problems."""
    process, at, measured = check_worker.Worker(worker("steps", device, run, ROUNDS)), "", {}
    for message in process.messages():
        at = message.get("begins", at)
        measured |= {name: value for name, value in message.items() if name != "begins"}
    problems = [f"{kind}: {problem}" for kind, problem in measured.get("problems", {}).items()]
    if process.problem:
        last = " ".join(process.last_words()[-5:])
        problems.append(f"Keras: {at}: the process {process.problem}: {last}")
    losses = measured.get("losses", {})
    for kind in losses.keys() & {"late_phase", "Keras"}:
        compiled = losses.get(f"{kind}, XLA", losses[kind])
        if not abs(losses[kind] - compiled) <= LOSS_TOLERANCE * abs(losses[kind]):
            problems.append(f"{kind}: a first loss of {losses[kind]:.6g}, by XLA {compiled:.6g}")
    return measured, problems


def run(options):
    from late_phase_cli import locations, repository

    if locations.repository():
        repository.use_package()
    return check(options.out)
