"""What the pages show of recorded runs: "output of PATH" and "table of PATH" -> its lines.

The blocks themselves are tools/develop/docs_blocks.py's.
"""

import glob
import json
import tomllib

from late_phase_cli import cifar_table, enwik8_table, methods_table, run_table, sweep_table
from tools.bench import bench_batchnorm, bench_enwik8, bench_keras, bench_lstm, bench_optimizer


def _json(path):
    with open(f"docs/results/{path}") as file:
        return json.load(file)


def _config(folder):
    with open(f"{folder}/config.toml", "rb") as file:
        return tomllib.load(file)


def _recorded(path, render):
    return lambda: render(_json(path))


def _cifar(name, render=cifar_table.render):
    return lambda: render(*run_table.read_run(f"docs/results/{name}"))


def _enwik8_times():
    """Short trainings with the large presets."""
    folders = {name: f"enwik8-{name}-200-steps" for name in ("laptop", "paper")}
    return enwik8_table.render_times(
        [
            (name, _config(f"docs/results/{folder}"), _json(f"{folder}/results.json"))
            for name, folder in folders.items()
        ]
    )


def _enwik8_trials():
    """The same small network at other learning rates."""
    trials = []
    for folder in sorted(glob.glob("docs/results/enwik8-64-units-*")):
        config = _config(folder)
        rate = config["learning_rate"]
        factors = config.get("member_learning_rate") or rate
        results = _json(f"{folder.removeprefix('docs/results/')}/results.json")
        trials.append((f"learning rate {rate:g}, of u and v {factors:g}", results))
    return enwik8_table.render_trials(trials)


def _enwik8_first_seed():
    """What the command without flags prints: the first of the recorded seeds."""
    runs = run_table.runs_of(_json("enwik8-quick/results.json"))
    return enwik8_table.render({"runs": [run for run in runs if run["seed"] == 0]})


_OUTPUTS = {
    "bench_batchnorm.json": _recorded("bench_batchnorm.json", bench_batchnorm.render),
    "bench_enwik8.json": _recorded("bench_enwik8.json", bench_enwik8.render),
    "bench_keras.json": _recorded("bench_keras.json", bench_keras.render),
    "bench_lstm.json": _recorded("bench_lstm.json", bench_lstm.render),
    "bench_optimizer.json": _recorded("bench_optimizer.json", bench_optimizer.render),
}
_TABLES = {
    "bench_enwik8.json": _recorded("bench_enwik8.json", bench_enwik8.summary),
    "cifar-convnet": _cifar("cifar-convnet"),
    "cifar-convnet-quick": _cifar("cifar-convnet-quick"),
    "cifar-wrn-16-2-small": _cifar("cifar-wrn-16-2-small"),
    "cifar-wrn-28-10-ten-steps": _cifar("cifar-wrn-28-10-ten-steps", cifar_table.render_cost),
    "enwik8-quick/results.json": _recorded("enwik8-quick/results.json", enwik8_table.render),
    "enwik8-quick/seed-0": _enwik8_first_seed,
    "enwik8-small/results.json": _recorded("enwik8-small/results.json", enwik8_table.render),
    "enwik8-*-200-steps": _enwik8_times,
    "enwik8-64-units-*": _enwik8_trials,
    "methods-convnet-short": lambda: methods_table.render(
        "docs/results/methods-convnet-short/evaluations"
    ),
    "sweep-convnet-quick-members": _recorded(
        "sweep-convnet-quick-members/results.json", sweep_table.render
    ),
    "sweep-convnet-quick-t0": _recorded("sweep-convnet-quick-t0/results.json", sweep_table.render),
}
RECORDS = {
    (kind, f"docs/results/{path}"): lines
    for kind, found in (("output of", _OUTPUTS), ("table of", _TABLES))
    for path, lines in found.items()
}


def text(kind, path):
    """What a block shows of a recorded run; None if it is not one."""
    lines = RECORDS.get((kind, path))
    return "\n".join(lines()) + "\n" if lines else None
