"""The program tools/latephase nqp: its files, its messages, its figure. The simulation itself:
tests/models/nqp_test.cc.
"""

import json
import os

import pytest

from late_phase_cli import nqp_plot
from tests.support import program_runs

SMALL = (
    "--members 1,2,5 --seeds 2 --n 12 --iterations 2000 --average-last 500 --drift-iterations 300 "
    "--drift-average-last 100"
).split()


def nqp(*arguments):
    return program_runs.run("nqp", *arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--lr 3", "`lr` must be a number in (0, 2). Received: lr=3"),
        ("--lr nan", "`lr` must be a number in (0, 2). Received: lr=nan"),
        ("--phi 0", "`phi` must be a number > 0. Received: phi=0"),
        (
            "--members 2,1",
            "`members` must be ascending integers in [1, 1000], separated by commas. "
            "Received: members=2,1",
        ),
        ("--members 1,", "Received: members=1,"),
        ("--seeds x", "`seeds` must be an integer in [1, 10000]. Received: seeds=x"),
        ("--threads 0", "`threads` must be an integer in [1, 1024]. Received: threads=0"),
        (
            "--iterations 10",
            "`average_last` must be at most `iterations`. Received: average_last=200000, "
            "iterations=10",
        ),
        ("--preset slow", "`preset` must be quick, paper, or a .toml file. Received: preset=slow"),
        (
            "--out /proc/nqp",
            "`out` must be a folder that can be created and written to. Received: out=/proc/nqp",
        ),
        (
            "--n 99999999999999999999",
            "`n` must be an integer in [1, 1000000]. Received: n=99999999999999999999",
        ),
        ("--fly 1", "--fly"),
    ],
)
def test_bad_flags_name_the_rule_and_the_value(tmp_path, arguments, message):
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "run")]
    run = nqp(*arguments.split(), *out)
    assert run.returncode == 2 and message in run.stderr and run.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text, message",
    [
        ("sedes = 3", "Received: sedes in"),
        ("lr = [", "must be a TOML file: line 1"),
        ('lr = "fast"', "Received: lr=fast in"),
    ],
)
def test_bad_presets_are_refused(tmp_path, text, message):
    preset = tmp_path / "mine.toml"
    preset.write_text(text)
    run = nqp("--preset", str(preset), "--out", str(tmp_path / "run"))
    assert run.returncode == 2 and message in run.stderr and not (tmp_path / "run").exists()


def test_run_writes_whole_files_and_repeats_from_its_config(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run = nqp(*SMALL, "--seed", "7", "--out", str(first), "--threads", "3")
    assert run.returncode == 0, run.stderr
    assert sorted(os.listdir(first)) == ["config.toml", "results.json"]
    assert "| 5 |" in run.stdout and "slope" in run.stdout
    again = nqp("--preset", str(first / "config.toml"), "--out", str(second), "--threads", "1")
    assert again.returncode == 0, again.stderr
    results = [json.loads((folder / "results.json").read_text()) for folder in (first, second)]
    assert results[0]["rows"] == results[1]["rows"] and results[0]["drift"] == results[1]["drift"]
    assert (first / "config.toml").read_text() == (second / "config.toml").read_text()
    assert [row["members"] for row in results[0]["rows"]] == [1, 2, 5]
    assert len(results[0]["rows"][0]["late_phase_seeds"]) == 2


@pytest.mark.parametrize("extra", [[], ["--drift-iterations", "0", "--seeds", "1"]])
def test_figure_is_drawn(tmp_path, extra):
    small = (
        SMALL
        if not extra
        else [a for a in SMALL if a not in ("--seeds", "2", "--drift-iterations", "300")]
    )
    assert nqp(*small, *extra, "--out", str(tmp_path)).returncode == 0
    assert nqp_plot.main(str(tmp_path)) == [f"{tmp_path}/nqp.png"]
    assert sorted(os.listdir(tmp_path)) == ["config.toml", "nqp.png", "results.json"]
    assert (tmp_path / "nqp.png").read_bytes().startswith(b"\x89PNG")


def test_recorded_run_shows_the_law_and_is_the_one_on_the_page():
    results = json.load(open("docs/results/nqp/results.json"))
    assert [row["members"] for row in results["rows"]] == [1, 2, 5, 10, 15, 20, 25] and results[
        "seeds"
    ] == 5
    assert all(abs(row["deviation_in_errors"]) < 4 for row in results["rows"])
    assert abs(results["late_phase_slope"] + 1) < 0.1
    assert all(
        abs(row["late_phase"] / row["long_run_theory"] - 1) < 0.1 for row in results["drift"]
    )
    page = open("docs/nqp.md").read()
    for row in results["rows"]:
        assert (
            f"| {row['members']} | {row['late_phase']:.3e} ± {row['late_phase_error']:.1e} | "
            f"{row['late_phase_theory']:.3e} |" in page
        )
        assert (
            f"| {row['full_ensemble']:.3e} | {row['closed_form']:.3e} ± "
            f"{row['closed_form_error']:.1e} |" in page
        )
    for row in results["drift"]:
        assert (
            f"| {row['members']} | {row['late_phase']:.3e} ± {row['late_phase_error']:.1e} | "
            f"{row['long_run_theory']:.3e} |" in page
        )


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_presets_hold_every_setting(tmp_path, preset):
    """A preset that lacks a value would follow a change of the program's defaults unseen."""
    assert nqp(*SMALL, "--preset", preset, "--out", str(tmp_path)).returncode == 0
    names = lambda path: {
        line.split(" = ")[0] for line in open(path) if " = " in line and line[0] != "#"
    }
    assert names(tmp_path / "config.toml") == names(f"models/presets/nqp-{preset}.toml")
