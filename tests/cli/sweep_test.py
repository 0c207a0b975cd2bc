"""tools/latephase sweep: real small trainings on generated images; what they leave, what resumes,
what is refused.
"""

import json
import math
import os
import signal
import subprocess
import time
import tomllib

import numpy
import pytest

from late_phase_cli import errors, main, sweep, sweep_plan, sweep_plot, sweep_table
from tests.support import cifar_files, program_runs

# 50 training images, 10 minibatches of 5 an epoch.
SMALL = (
    "--network convnet --batch 5 --learning-rate 0.02 --members 3 --t0 1 --sigma 0.2 "
    "--swa-start 1 --swa-every 0.5 --epochs 2 --late-head true --late-batch-norm true"
).split()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"), train_per_file=10, test=30)


def command(files, out, *arguments):
    return ["sweep", "cifar", "--data", files, "--out", out, *arguments]


def run(files, out, *arguments):
    return program_runs.drive(*command(files, out, *arguments))


def refusal(monkeypatch, *arguments):
    for name, value in {
        **program_runs.ENVIRONMENT,
        "LATE_PHASE_PROGRAM": program_runs.PROGRAM,
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.UserError) as refused:
        sweep.run(main.parse(["sweep", *map(str, arguments)]))
    return str(refused.value)


@pytest.fixture(scope="module")
def swept(tmp_path_factory, files):
    """Two points with two seeds each: the folder, and what was printed."""
    out = tmp_path_factory.mktemp("sweeps") / "k"
    result = run(
        files, out, *SMALL[:6], *SMALL[8:], "--over", "members=1,3", "--seeds", 2, "--seed", 4
    )
    assert result.returncode == 0, result.stderr
    return out, result


def figures_of(out, point, weights, figure):
    return [
        program_runs.read_results(out / point / f"seed-{seed}")["test"][weights][figure]
        for seed in (4, 5)
    ]


def test_every_point_is_an_ordinary_run(swept):
    out, _ = swept
    assert sorted(os.listdir(out)) == [
        "members-1",
        "members-3",
        "results.json",
        "sweep.json",
        "sweep.png",
    ]
    for point, model in (("members-1", "base"), ("members-3", "late-phase")):
        assert sorted(os.listdir(out / point)) == ["seed-4", "seed-4.log", "seed-5", "seed-5.log"]
        for seed in (4, 5):
            folder = out / point / f"seed-{seed}"
            assert {
                "checkpoint",
                "config.toml",
                "curves.png",
                "metrics.jsonl",
                "results.json",
            } <= set(os.listdir(folder))
            config = tomllib.loads((folder / "config.toml").read_text())
            assert (
                config["model"],
                config["seed"],
                config["seeds"],
                config["members"],
                config["sigma"],
            ) == (model, seed, 1, {"members-1": 5}.get(point, 3), 0.2)
    assert len(program_runs.read_results(out / "members-3" / "seed-5")["test"]["members"]) == 3


def test_dry_run_prints_the_configuration_and_leaves_nothing(tmp_path, files, swept):
    flags = [*SMALL, "--model", "late-phase", "--seed", 5, "--seeds", 1]
    result = program_runs.try_train("cifar", files, tmp_path / "run", *flags, "--dry-run")
    assert (result.returncode, os.listdir(tmp_path)) == (0, [])
    assert result.stdout == (swept[0] / "members-3" / "seed-5" / "config.toml").read_text()


def test_table_and_results_are_means_and_standard_errors_of_the_runs(swept):
    out, result = swept
    results = json.loads((out / "results.json").read_text())
    assert [run["folder"] for run in results["runs"]] == [
        f"members-{k}/seed-{seed}" for k in (1, 3) for seed in (4, 5)
    ]
    for one in results["runs"]:
        assert program_runs.read_results(out / one["folder"]) == {
            name: value for name, value in one.items() if name != "folder"
        }
    cells = {}
    for point, k in zip(results["points"], (1, 3)):
        assert point["values"] == {"members": k} and point["runs"] == [
            f"members-{k}/seed-4",
            f"members-{k}/seed-5",
        ]
        assert list(point["test"]) == ["collapsed", "swa"] + ["current", "ensemble"] * (k > 1)
        for weights in point["test"]:
            for figure, scale, digits in (("accuracy", 100, 2), ("nll", 1, 4), ("ece", 1, 4)):
                values = figures_of(out, f"members-{k}", weights, figure)
                mean, error = numpy.mean(values), numpy.std(values, ddof=1) / math.sqrt(2)
                recorded = point["test"][weights][figure]
                assert recorded["values"] == values
                assert (recorded["mean"], recorded["standard_error"]) == (
                    pytest.approx(mean, rel=1e-12),
                    pytest.approx(error, rel=1e-9),
                )
                cells[k, weights, figure] = (
                    f"{scale * mean:.{digits}f} ± {scale * error:.{digits}f}"
                )
    order = [
        (weights, figure)
        for weights in ("collapsed", "swa", "current", "ensemble")
        for figure in ("accuracy", "nll")
    ]
    expected = [
        "| K | seeds | test accuracy % | NLL | SWA: accuracy % | NLL | one member: accuracy % | "
        "NLL | ensemble: accuracy % | NLL |",
        "|---" * 10 + "|",
    ]
    expected += [
        "| " + " | ".join([str(k), "2", *(cells.get((k, *column), "–") for column in order)]) + " |"
        for k in (1, 3)
    ]
    assert [line for line in result.stdout.splitlines() if line.startswith("|")] == expected
    assert cells[1, "collapsed", "nll"] != cells[3, "collapsed", "nll"]


def test_figure_shows_the_table(swept):
    results = sweep_table.collect(swept[0])
    (panel,) = sweep_plot.draw(results).axes
    drawn = {container.get_label(): container for container in panel.containers}
    assert list(drawn) == ["collapsed", "SWA", "one member", "ensemble"]
    line, _, (bars,) = drawn["collapsed"].lines
    accuracies = [point["test"]["collapsed"]["accuracy"] for point in results["points"]]
    assert list(line.get_ydata()) == [100 * one["mean"] for one in accuracies]
    assert list(line.get_xdata()) == pytest.approx([1, 3], abs=0.05)
    spans = [segment[:, 1] for segment in bars.get_segments()]
    assert [high - low for low, high in spans] == pytest.approx(
        [200 * one["standard_error"] for one in accuracies]
    )
    assert [text.get_text() for text in panel.get_xticklabels()] == [
        "1",
        "3",
    ] and panel.get_xlabel() == "K"
    assert (swept[0] / "sweep.png").read_bytes()[:4] == b"\x89PNG"


def test_finished_runs_stay_and_values_can_be_added(swept, files):
    out, first = swept
    folders = [
        out / point / f"seed-{seed}" for point in ("members-1", "members-3") for seed in (4, 5)
    ]
    times = [os.stat(folder / "results.json").st_mtime_ns for folder in folders]
    again = run(
        files, out, *SMALL[:6], *SMALL[8:], "--over", "members=1,3,2", "--seeds", 2, "--seed", 4
    )
    assert again.returncode == 0, again.stderr
    assert "6 runs, 4 of them finished" in again.stderr and again.stderr.count(": started;") == 2
    assert [os.stat(folder / "results.json").st_mtime_ns for folder in folders] == times
    lines = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert lines[:4] == [
        line for line in first.stdout.splitlines() if line.startswith("|")
    ] and lines[4].startswith("| 2 | 2 | ")


def checkpoint_after(folder, step, process):
    """Waits for a checkpoint of the step or a later one."""
    begin = time.monotonic()
    while not any(int(path[-12:]) >= step for path in program_runs.checkpoint_folders(folder)):
        assert process.poll() is None and time.monotonic() - begin < 100, process.communicate()
        time.sleep(0.002)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def test_stopped_and_killed_sweeps_go_on_bit_for_bit(tmp_path, files):
    # A WRN, whose minibatches take long enough to be stopped in between.
    flags = [
        *SMALL,
        "--network",
        "wrn",
        "--depth",
        10,
        "--width",
        1,
        "--epochs",
        9,
        "--checkpoint-every",
        2,
        "--evaluate-every",
        0,
    ]
    arguments = [*flags[:10], *flags[12:], "--over", "sigma=0.1", "--threads", 2]
    out = tmp_path / "out"
    folder = out / "sigma-0.1" / "seed-0"
    first = program_runs.driver(*command(files, out, *arguments))
    checkpoint_after(folder, 4, first)
    first.send_signal(signal.SIGTERM)
    _, stderr = first.communicate()
    assert (
        first.returncode == 0
        and "To resume: tools/latephase sweep cifar --data" in stderr
        and "--over sigma=0.1" in stderr
    ), stderr
    stopped_at = int(program_runs.checkpoint_folders(folder)[-1][-12:])
    assert stopped_at < 90 and not (out / "results.json").exists()

    second = program_runs.driver(
        *command(files, out, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    checkpoint_after(folder, stopped_at + 2, second)
    (child,) = children_of(second.pid)
    second.kill()
    second.wait()
    begin = time.monotonic()
    while os.path.exists(f"/proc/{child}"):  # a run does not outlive its sweep
        assert time.monotonic() - begin < 60
        time.sleep(0.01)
    assert not (folder / "results.json").exists()

    third = run(files, out, *arguments)
    assert third.returncode == 0, third.stderr
    assert (out / "sigma-0.1" / "seed-0.log").read_text().count("resumes at step") == 2
    program_runs.train(
        "cifar", files, tmp_path / "whole", *flags, "--model", "late-phase", "--sigma", 0.1
    )
    assert (
        program_runs.read_results(folder)["test"]
        == program_runs.read_results(tmp_path / "whole")["test"]
    )
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(folder), program_runs.read_checkpoint(tmp_path / "whole")
    )


def test_a_point_that_fails_does_not_take_the_others_along(tmp_path, files):
    flags = [flag for flag in SMALL if flag not in ("--learning-rate", "0.02")]
    result = run(
        files, tmp_path / "out", *flags, "--model", "base", "--over", "learning_rate=0.02,1e30"
    )
    assert result.returncode == 1
    assert (
        "learning_rate 1e30, seed 0: failed with status 1" in result.stderr
        and "is not in the table" in result.stderr
    )
    rows = [line for line in result.stdout.splitlines() if line.startswith("|")][2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 0.02", "1"], ["| 1e+30", "0"]]
    assert [
        point["runs"]
        for point in json.loads((tmp_path / "out" / "results.json").read_text())["points"]
    ] == [["learning_rate-0.02/seed-0"], []]


def test_a_run_that_others_stop_is_told(tmp_path):
    """A stand-in for train that ends as after a signal."""
    program = tmp_path / "train"
    program.write_text(
        "#!/bin/sh\ncase $* in flags*) echo '--sigma' ;; *--dry-run) echo 'sigma = 1' ;; *) echo "
        "'stopped at step 3' ;; esac\n"
    )
    program.chmod(0o755)
    result = program_runs.drive(
        *command("data", tmp_path / "out", "--over", "sigma=1"),
        env={"LATE_PHASE_PROGRAM": str(program)},
    )
    assert (
        result.returncode == 1
        and "sigma 1, seed 0: stopped early: stopped at step 3" in result.stderr
    ), result.stderr
    assert "sigma 1, seed 0 has no results and is not in the table" in result.stderr


def test_one_setting_at_a_time_or_a_grid():
    axes = sweep_plan.read_axes(["members=1,5", "sigma=0,0.1"])
    single = sweep_plan.plan_points("cifar", "late-phase", axes, grid=False)
    assert [point.folder for point in single] == ["members-1", "members-5", "sigma-0", "sigma-0.1"]
    assert [point.flags for point in single] == [
        ["--model=base"],
        ["--model=late-phase", "--members=5"],
        ["--model=late-phase", "--sigma=0"],
        ["--model=late-phase", "--sigma=0.1"],
    ]
    grid = sweep_plan.plan_points("enwik8", "late-phase", axes, grid=True)
    assert [point.folder for point in grid] == [
        "members-1/sigma-0",
        "members-1/sigma-0.1",
        "members-5/sigma-0",
        "members-5/sigma-0.1",
    ]
    # Without members there is no spawning noise: the same run, which train then finds to be one.
    assert [point.flags for point in grid] == [["--model=rank1"]] * 2 + [
        ["--model=late-phase", "--members=5", f"--sigma={sigma}"] for sigma in ("0", "0.1")
    ]
    for point, config in zip(grid, ("base", "base", "5, 0", "5, 0.1")):
        point.config = {"what": config}
    sweep_plan.share_runs(grid)
    assert [point.folder for point in grid] == [
        "members-1/sigma-0",
        "members-1/sigma-0",
        "members-5/sigma-0",
        "members-5/sigma-0.1",
    ]


def test_a_grid_of_text_runs_is_told_in_bpc(tmp_path):
    points = sweep_plan.plan_points(
        "enwik8", "late-phase", {"members": ["2", "5"], "t0": ["1", "2.5"]}, grid=True
    )
    for i, point in enumerate(points):
        point.config = {"members": i, "units": 8}
        folder = tmp_path / point.run_folder(0)
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(
            json.dumps(
                {
                    "test": {
                        "collapsed": {"bpc": 2 + i / 8, "loss": 1},
                        "swa": {"bpc": None, "loss": None},
                    }
                }
            )
        )
    (tmp_path / "sweep.json").write_text(
        json.dumps(
            sweep_plan.to_json(
                "enwik8", {"members": ["2", "5"], "t0": ["1", "2.5"]}, True, [0], points
            )
        )
    )
    results = sweep_table.summarize(tmp_path)
    assert sweep_table.render(results) == [
        "| K | T0, epochs | seeds | test BPC | SWA: BPC |",
        "|---|---|---|---|---|",
        "| 2 | 1 | 1 | 2.0000 | – |",
        "| 2 | 2.5 | 1 | 2.1250 | – |",
        "| 5 | 1 | 1 | 2.2500 | – |",
        "| 5 | 2.5 | 1 | 2.3750 | – |",
    ]
    assert results["sweep"]["config"] == {"units": 8}
    (panel,) = sweep_plot.draw(results).axes
    assert {
        container.get_label(): list(container.lines[0].get_ydata())
        for container in panel.containers
    } == {"K 2": [2, 2.125], "K 5": [2.25, 2.375]}


def test_the_papers_figures_stand_beside_its_network():
    config = {"network": "wrn", "depth": 28, "width": 10, "train_images": 0, "dataset": "cifar100"}
    results = {"program": "cifar", "sweep": {"config": config}}
    points = [{"values": {"members": k}, "runs": [], "test": {}} for k in (1, 7, 10)]
    heads, rows = sweep_table.table_rows(results, ("members",), points)
    assert heads[-1] == "paper: accuracy %" and [row[-1] for row in rows] == ["81.35", "–", "82.87"]
    config["width"] = 2
    assert "paper: accuracy %" not in sweep_table.table_rows(results, ("members",), points)[0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            "--over members",
            "`over` must be a setting and its values, such as members=1,2,5. "
            "Received: over=members",
        ),
        ("--over members=1,,2", "`over` must be a setting and its values"),
        (
            "--over members=2,2",
            "`over` must name each setting and each value once. Received: over=members=2,2",
        ),
        ("--over seed=1,2", "--seeds N repeats every point. Received: over=seed=1,2"),
        ("--over members=2 --seeds 0", "`seeds` must be an integer >= 1. Received: seeds=0"),
        ("", "`over` must be given"),
        (
            "--over members=2 --parallel 0",
            "`parallel` must be an integer >= 1. Received: parallel=0",
        ),
        (
            "--over members=2 --members 3",
            "`members` must be given by --over or by a flag, not both. Received: --members and "
            "--over members=2",
        ),
        (
            "--over members=2 --model base",
            "`model` must be late-phase, accumulation or lower-rate if members are varied",
        ),
        ("--over members=2 --model decay", "if members are varied; one member is the network"),
        ("--over sigma=1 --model all", "`model` must be one model"),
        ("--over members=2 --model all-controls", "`model` must be one model"),
        ("--over members=2 --resume", "--resume is not a flag of sweep"),
        ("--over member=1,2", "did you mean members?"),
        ("--over device=CPU:0", "`over` must name a setting of cifar. Received: over=device=…"),
        (
            "--over sigma=0.1,-1",
            "sigma -1: tools/latephase train cifar: `sigma` must be a number >= 0. "
            "Received: sigma=-1",
        ),
        (
            "--over t0=1,2 --epochs 2",
            "t0 2: tools/latephase train cifar: `t0` must be less than `epochs`",
        ),
        ("--over members=2 --epoch 2", "every point: tools/latephase train cifar: "),
    ],
)
def test_wrong_use_is_told_before_anything_is_made(
    tmp_path, monkeypatch, files, arguments, message
):
    refused = refusal(
        monkeypatch,
        "cifar",
        "--data",
        files,
        "--out",
        tmp_path / "out",
        *SMALL[:2],
        "--swa-start",
        -1,
        *arguments.split(),
    )
    assert message in refused
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_else_is_left_alone(tmp_path, monkeypatch, files, swept):
    out, _ = swept
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    flags = [*SMALL[:6], *SMALL[8:], "--over", "members=1,3,2", "--seed", 4]
    other = [
        ("--seeds", 2, "--epochs", 3),
        ("--seeds", 1),
    ]  # other settings; runs in there that would be left out
    for more in other:
        assert "or hold this sweep or a part of it" in refusal(
            monkeypatch, "cifar", "--data", files, "--out", out, *flags, *more
        )
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    (tmp_path / "letter.txt").write_text("Dear")
    assert "which holds something else" in refusal(
        monkeypatch, "cifar", "--data", files, "--out", tmp_path, *flags
    )
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_folder_is_worked_in_once_at_a_time(tmp_path):
    out, plan = str(tmp_path / "out"), {"program": "cifar", "seeds": [0], "points": []}
    with sweep.locked_folder(out, plan):
        with (
            pytest.raises(errors.UserError, match="`out` must not be in use by another process"),
            sweep.locked_folder(out, plan),
        ):
            pass
    with sweep.locked_folder(out, plan):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        errors.UserError,
        match="`out` must be a folder that can be created and written to.*"
        "Received: out=.*/file/out",
    ):
        with sweep.locked_folder(str(tmp_path / "file" / "out"), {}):
            pass
