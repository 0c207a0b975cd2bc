"""Runs of version 0.1.0 resume, evaluate and serve as a start: tests/data/version-0.1.0, which the
program of that version made.
"""

import json
import os
import shutil

import pytest

import late_phase.checkpoint
from tests.support import cifar_files, enwik8_text, program_runs

FOLDER = "tests/data/version-0.1.0"
# How far figures may differ where products of another instruction set round otherwise: to float64's
# and to float32's last digits, times what a dozen steps of Adam or of a network with BatchNorm make
# of that. Sums that are lost on the way make 1e-4 and 1.7e-2, moments more.
TOLERANCE = {"enwik8": 1e-7, "cifar": 1e-3}
RUNS = [
    "enwik8-late-phase-5",
    "enwik8-late-phase-12",
    "enwik8-late-phase-28",
    "enwik8-base-28",
    "cifar-late-phase-9",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "enwik8": enwik8_text.write_text(folder / "text", 4000),
        "cifar": cifar_files.write_cifar(folder / "images"),
    }


@pytest.fixture(params=RUNS)
def old(request, tmp_path, data):
    """A copy of the run, its program, its data."""
    program = request.param.split("-")[0]
    return (
        shutil.copytree(os.path.join(FOLDER, request.param), tmp_path / "run"),
        program,
        data[program],
    )


def figures(results):
    """Every figure by its path, but for those that count images: one that lies on the fence may
    fall on either side.
    """
    found = {}

    def collect(path, value):
        if isinstance(value, dict):
            for key in value:
                collect(f"{path}/{key}", value[key])
        elif isinstance(value, list):
            for k, one in enumerate(value):
                collect(f"{path}/{k}", one)
        elif path.split("/")[-1] in ("bpc", "nll", "brier", "loss"):
            found[path] = value

    collect(
        "", {split: results[split] for split in ("train", "validation", "test") if split in results}
    )
    return found


def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def test_a_run_goes_on_to_what_it_would_have_come_to(old):
    run, program, data = old
    expected, before = read(run, "resumed.json"), program_runs.read_metrics(run)
    result = program_runs.train(program, data, run, "--resume", "--steps", expected["steps"])
    assert f"resumes at step {read(run, 'evaluated.json')['steps']}" in result.stderr
    found, expected = figures(program_runs.read_results(run)), figures(expected)
    assert found == pytest.approx(expected, rel=TOLERANCE[program]) and len(expected) >= 3
    assert program_runs.read_metrics(run)[: len(before)] == before


def test_a_run_is_evaluated_as_it_was(old, tmp_path):
    run, program, data = old
    before, expected = program_runs.read_checkpoint(run), read(run, "evaluated.json")["test"]
    result = program_runs.run(
        "eval", run, "--data", data, *(["--out", tmp_path / "out"] if program == "cifar" else [])
    )
    assert result.returncode == 0, result.stderr
    if program == "cifar":
        (row,) = [
            row
            for row in read(tmp_path / "out", "evaluation.json")["rows"]
            if row["weights"] == "collapsed"
        ]
        assert row["nll"] == pytest.approx(expected["collapsed"]["nll"], rel=TOLERANCE[program])
    else:
        rows = program_runs.table_rows(result.stdout)
        found = {weights: float(bpc) for weights, bpc in rows}
        assert found["collapsed"] == pytest.approx(
            expected["collapsed"]["bpc"], abs=6e-5
        )  # four digits
        assert ("swa" in found) == ("swa" in expected)
    if program == "cifar":
        # It was evaluated with the mean of scale, offset and statistics, and says so by another
        # name.
        named = ("--weights", "collapsed,collapsed-mean", "--out", tmp_path / "out")
        assert program_runs.run("eval", run, "--data", data, *named).returncode == 0
        collapsed, mean = read(tmp_path / "out", "evaluation.json")["rows"]
        assert collapsed["nll"] == pytest.approx(mean["nll"], rel=1e-5)
    program_runs.assert_same_bits(before, program_runs.read_checkpoint(run))
    assert late_phase.checkpoint.read(run).keys() == before.keys() - {
        name for name in before if name.startswith("late_phase_checkpoint/")
    }


def test_a_run_is_what_another_starts_from(old, tmp_path):
    run, program, data = old
    result = program_runs.train(
        program,
        data,
        tmp_path / "new",
        "--preset",
        run / "config.toml",
        "--pretrained",
        run,
        "--steps",
        1,
    )
    assert "starts from the weights in" in result.stderr


def test_settings_must_agree_in_the_digits_that_a_checkpoint_has(tmp_path, data):
    """Six in one of version 0.1.0, all in one of today."""
    run = shutil.copytree(os.path.join(FOLDER, "enwik8-late-phase-28"), tmp_path / "run")
    refused = program_runs.try_train(
        "enwik8", data["enwik8"], run, "--resume", "--steps", 30, "--sigma", 0.1234
    )
    assert (
        refused.returncode != 0
        and "`sigma` must be 0.123457, as in the checkpoint. Received: sigma=0.1234"
        in refused.stderr
    )
    program_runs.train("enwik8", data["enwik8"], run, "--resume", "--steps", 30)
    refused = program_runs.try_train(
        "enwik8", data["enwik8"], run, "--resume", "--steps", 32, "--sigma", 0.1234567892
    )
    assert refused.returncode != 0
    assert (
        "`sigma` must be 0.1234567891, as in the checkpoint. Received: sigma=0.1234567892"
        in refused.stderr
    )
