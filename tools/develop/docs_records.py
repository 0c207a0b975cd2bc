"""What the pages show about recorded runs: "output of PATH" and "table of PATH" -> its lines.

The blocks themselves are tools/develop/docs_blocks.py's.
"""

import glob
import json
import os
import statistics
import tomllib

from late_phase_cli import (
    advice_runs,
    cifar_table,
    enwik8_table,
    law_table,
    members_table,
    methods_table,
    model_differences,
    run_table,
    sweep_table,
    text_table,
)
from tools.develop import outcomes
from tools.bench import (
    bench_batchnorm,
    bench_enwik8,
    bench_keras,
    bench_lstm,
    bench_optimizer,
    keras_evidence_table,
)


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


def _law():
    """The noise law compared with every record of enwik8 with SWA."""
    return law_table.render(law_table.comparisons(law_table.read_all(*outcomes.TEXT)))


def _members():
    """What members add to accumulation, over every record of enwik8 that can tell."""
    return members_table.render(members_table.added(law_table.read_all(*outcomes.TEXT)))


def _law_fit(folder):
    """A sweep of accumulation over members."""
    (found,) = law_table.k_sweeps(law_table.comparisons(law_table.read_all(folder)))
    return law_table.render_fit(found)


# What is compared: head -> (model of enwik8, model of CIFAR, weight set); and the paper's figures.
_METHODS = {
    "base": ("base", "base", "collapsed"),
    "base + SWA": ("base", "base", "swa"),
    "accumulation": ("rank1-accumulation", "accumulation", "collapsed"),
    "late-phase": ("late-phase", "late-phase", "collapsed"),
    "late-phase + SWA": ("late-phase", "late-phase", "swa"),
}
_PAPER = {
    "the paper: CIFAR-10, WRN 28-10, %": "96.16 96.48 – 96.46 96.81 96.19 96.91",
    "the paper: CIFAR-100, WRN 28-10, %": "81.35 82.46 80.76 82.87 83.06 81.25 84.09",
    "the paper: enwik8, BPC": "1.695 1.626 – 1.633 1.615 – –",
}
_COMPARED = {
    "cifar-convnet": "CIFAR-10, ConvNet, %",
    "cifar-wrn-16-2-small": "10,000 images of it, WRN 16-2, %",
    "enwik8-quick": "enwik8 `quick`, BPC",
    "enwik8-96-units": "enwik8, 96 units, ten short epochs, BPC",
    "enwik8-128-units-1e-3": "enwik8, 128 units at the rate 1e-3, BPC",
}


def _gains():
    """The methods side by side: in the paper, and in recorded runs, as means over their seeds."""
    rows = [[name, *cells.split()] for name, cells in _PAPER.items()]
    for folder, name in _COMPARED.items():
        config, results = run_table.read_run(f"docs/results/{folder}")
        text = config["program"] == "enwik8"
        metric, scale, digits = ("bpc", 1, 3) if text else ("accuracy", 100, 2)
        cells = []
        for of_text, of_images, weights in _METHODS.values():
            tests = [
                run["test"][weights][metric]
                for run in run_table.runs_of(results)
                if run["model"] == (of_text if text else of_images) and weights in run["test"]
            ]
            mean = f"{scale * statistics.fmean(tests):.{digits}f}" if tests else "–"
            cells.append(mean)
        seeds = len({run["seed"] for run in run_table.runs_of(results)})
        rows.append([f"here: {name}; {seeds} seed{'s' * (seeds > 1)}", *cells, "–", "–"])
    return text_table.render(["", *_METHODS, "BatchEnsemble", "deep ensemble"], rows)


def _advice(folder):
    return lambda: ["```", *advice_runs.render(f"docs/results/{folder}").splitlines(), "```"]


def _differences(results):
    return model_differences.render("enwik8", run_table.runs_of(results))[1:]


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
    "enwik8-quick/results.json#differences": _recorded("enwik8-quick/results.json", _differences),
    "enwik8-quick-controls/results.json": _recorded(
        "enwik8-quick-controls/results.json", enwik8_table.render
    ),
    "enwik8-96-units/results.json": _recorded("enwik8-96-units/results.json", enwik8_table.render),
    "enwik8-128-units-1e-3/results.json": _recorded(
        "enwik8-128-units-1e-3/results.json", enwik8_table.render
    ),
    "enwik8-*-200-steps": _enwik8_times,
    "enwik8-64-units-*": _enwik8_trials,
    "enwik8-*": _law,
    "enwik8-*#members": _members,
    "enwik8-128-units-1e-3/rank1": _advice("enwik8-128-units-1e-3/rank1"),
    "*": _gains,
    "methods-convnet-short": lambda: methods_table.render(
        "docs/results/methods-convnet-short/evaluations"
    ),
    "sweep-convnet-quick-members": _recorded(
        "sweep-convnet-quick-members/results.json", sweep_table.render
    ),
    "sweep-convnet-quick-t0": _recorded("sweep-convnet-quick-t0/results.json", sweep_table.render),
}
# Recorded by `sweep enwik8 --over members=1,2,5,… --model rank1-accumulation --seeds N`.
_TABLES |= {
    folder.removeprefix("docs/results/"): lambda folder=folder: _law_fit(folder)
    for folder in sorted(glob.glob("docs/results/sweep-enwik8-*"))
}
# Made by tools/bench/keras_evidence.py; a part of a record's path names its table.
_TABLES |= {
    f"{os.path.basename(path)}{part}": _recorded(os.path.basename(path), render)
    for path in sorted(glob.glob("docs/results/keras-evidence-*.json"))
    for part, render in (
        ("", keras_evidence_table.render),
        ("#differences", keras_evidence_table.render_differences),
        ("#settings", keras_evidence_table.render_choice),
    )
}
RECORDS = {
    (kind, f"docs/results/{path}"): lines
    for kind, found in (("output of", _OUTPUTS), ("table of", _TABLES))
    for path, lines in found.items()
}


def text(kind, path):
    """What a block shows about a recorded run; None if it is not one."""
    lines = RECORDS.get((kind, path))
    return "\n".join(lines()) + "\n" if lines else None
