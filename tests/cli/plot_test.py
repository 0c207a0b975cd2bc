"""python/late_phase_cli/plot.py on generated runs: what is drawn, and what is said when nothing can
be.
"""

import json
import math
import os
import statistics
import struct
import subprocess
import sys

import pytest

from late_phase_cli import plot, run_files

EPOCHS = 6


def make_run(
    folder,
    model="base",
    seed=0,
    program="enwik8",
    t0=2.0,
    swa_start=4.0,
    epochs=EPOCHS,
    per_epoch=10,
):
    """A run as the trainer leaves it. Returns what was written: training, collapsed and swa, each
    [(epoch, value)].

    A CIFAR run knows no accuracy of its minibatches, and without images held out it is evaluated on
    the test images.
    """
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'program = "{program}"\nmodel = "{model}"\nseed = {seed}\nt0 = {t0}\nswa_start = '
        f"{swa_start}\nepochs = {epochs}\n"
    )
    key = plot.METRICS[program].name
    of_training, split = ([key], "validation") if program == "enwik8" else ([], "test")
    offset = {"base": 0.3, "rank1": 0.2}.get(model, 0.1) + 0.01 * seed
    curve = lambda epoch: offset + 1.5 + 3 * math.exp(-3 * epoch)
    lines, written = [], {"training": [], "collapsed": [], "swa": []}
    for step in range(1, epochs * per_epoch + 1):
        epoch = step / per_epoch
        written["training"] += [(epoch, curve(epoch) - 0.05) for _ in of_training]
        lines.append(
            {
                "kind": "train",
                "step": step,
                "epoch": epoch,
                "loss": 1,
                **{one: curve(epoch) - 0.05 for one in of_training},
                "input_wait": 0,
            }
        )
        if step % per_epoch == 0:
            written["collapsed"].append((epoch, curve(epoch)))
            lines.append(
                {
                    "kind": "evaluation",
                    "step": step,
                    "epoch": epoch,
                    "split": split,
                    "weights": "collapsed",
                    key: curve(epoch),
                }
            )
            if 0 <= swa_start < epoch:
                written["swa"].append((epoch, curve(epoch) - 0.02))
                lines.append(
                    {
                        "kind": "evaluation",
                        "step": step,
                        "epoch": epoch,
                        "split": split,
                        "weights": "swa",
                        key: curve(epoch) - 0.02,
                    }
                )
    if split != "test":
        lines.append(
            {
                "kind": "evaluation",
                "step": step,
                "epoch": epoch,
                "split": "test",
                "weights": "collapsed",
                key: 99,
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return written


def pairs(series):
    return list(zip(series.epochs, series.values))


def lines_of(figure):
    """{label: [(x, y)]} of the lines that the legend names."""
    return {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata()))
        for line in figure.axes[0].lines
        if line.get_label()[0] != "_"
    }


def texts_of(figure):
    return {(text.get_text().strip(), text.get_position()[0]) for text in figure.axes[0].texts}


def assert_png(path, width=960, height=630):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (width, height)


@pytest.mark.parametrize("program", ["enwik8", "cifar"])
def test_single_run_is_drawn_as_it_was_written(tmp_path, program):
    written = make_run(tmp_path / "run", "late-phase", program=program)
    run = plot.load_run(str(tmp_path / "run"))
    assert pairs(run.training) == written["training"]
    assert {weights: pairs(one) for weights, one in run.evaluations.items()} == {
        "collapsed": written["collapsed"],
        "swa": written["swa"],
    }
    assert run.starts == {"late phase": 2, "SWA": 4}
    figure = plot.draw_run(run)
    expected = {
        "enwik8": {
            "training": written["training"],
            "validation": written["collapsed"],
            "validation, SWA": written["swa"],
        },
        "cifar": {"test": written["collapsed"], "test, SWA": written["swa"]},
    }
    assert lines_of(figure) == expected[program]
    assert texts_of(figure) == {("late phase", 2), ("SWA", 4)}
    assert figure.axes[0].get_xlabel() == "epoch"
    assert (
        figure.axes[0].get_ylabel()
        == {"enwik8": "bits per character", "cifar": "accuracy"}[program]
    )
    plot.main(str(tmp_path / "run"))
    assert sorted(os.listdir(tmp_path / "run")) == ["config.toml", "curves.png", "metrics.jsonl"]
    assert_png(tmp_path / "run" / "curves.png")


@pytest.mark.parametrize(
    "names", [("member_spread", "gradient_agreement"), ("member_spread",), ("gradient_agreement",)]
)
def test_members_have_a_panel_of_their_own(tmp_path, names):
    written = make_run(tmp_path / "run", "late-phase")
    values = {"member_spread": [0.1, 0.05, 0.04], "gradient_agreement": [0.9, 0.4, None]}
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        for i, epoch in enumerate((3, 4, 5)):
            line = {"kind": "members", "step": 10 * epoch, "epoch": epoch, "member_spread/u": 7}
            file.write(json.dumps(line | {name: values[name][i] for name in names}) + "\n")
    run = plot.load_run(str(tmp_path / "run"))
    assert list(run.members) == list(names)
    figure = plot.draw_run(run)
    assert lines_of(figure)["validation"] == written["collapsed"]  # as without them
    drawn = {
        axes.get_ylabel(): list(zip(line.get_xdata(), line.get_ydata()))
        for axes in figure.axes[1:]
        for line in axes.lines
    }
    assert list(drawn) == [plot.MEMBERS[name] for name in names]
    for name in names:
        shown = drawn[plot.MEMBERS[name]]
        assert shown[:2] == list(zip((3, 4), values[name]))
        assert len(shown) == 3 and (values[name][2] is not None or math.isnan(shown[2][1]))
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    plot.main(str(tmp_path / "run"))
    assert_png(tmp_path / "run" / "curves.png", height=870)


def test_without_members_the_plot_has_one_panel(tmp_path):
    make_run(tmp_path / "run", "late-phase")
    run = plot.load_run(str(tmp_path / "run"))
    assert run.members == {} and len(plot.draw_run(run).axes) == 1


@pytest.mark.parametrize(
    "model, t0, swa_start, starts",
    [
        ("base", 2, 4, {"SWA": 4}),
        ("rank1", 2, -1, {}),
        ("late-phase", 0, -1, {"late phase": 0}),
        ("late-phase", 3, 3, {"late phase": 3, "SWA": 3}),
        ("late-phase", 30, 40, {}),
    ],
)
def test_only_phases_of_the_run_are_marked(tmp_path, model, t0, swa_start, starts):
    make_run(tmp_path / "run", model, t0=t0, swa_start=swa_start)
    run = plot.load_run(str(tmp_path / "run"))
    assert run.starts == starts
    labels = {name for name, _ in texts_of(plot.draw_run(run))}
    assert labels == ({"SWA, late phase"} if t0 == swa_start else set(starts))


def test_models_are_compared_and_each_has_its_own_figure(tmp_path):
    models = ["late-phase", "rank1", "zoo", "base"]
    written = {model: make_run(tmp_path / model, model) for model in models}
    plot.main(str(tmp_path))
    for folder in [tmp_path, *(tmp_path / model for model in models)]:
        assert_png(folder / "curves.png")
    figure = plot.draw_comparison(
        [plot.load_run(folder) for folder in run_files.find_runs(str(tmp_path))], str(tmp_path)
    )
    expected = {model: written[model]["collapsed"] for model in models} | {
        model + ", SWA": written[model]["swa"] for model in models
    }
    assert lines_of(figure) == expected
    assert list(lines_of(figure)) == [
        name
        for model in ("base", "rank1", "late-phase", "zoo")
        for name in (model, model + ", SWA")
    ]
    assert not figure.axes[0].collections  # no band without seeds
    assert [line.get_linestyle() for line in figure.axes[0].lines[:2]] == ["-", "--"]


def test_seeds_are_averaged_with_their_spread(tmp_path):
    seeds = [make_run(tmp_path / f"seed-{seed}" / "base", seed=seed) for seed in range(3)]
    make_run(tmp_path / "seed-0" / "rank1", "rank1")
    runs = [plot.load_run(folder) for folder in run_files.find_runs(str(tmp_path))]
    assert len(runs) == 4
    base = plot.compare(runs)["base"]["collapsed"]
    values = [[seed["collapsed"][i][1] for seed in seeds] for i in range(EPOCHS)]
    assert base.epochs == [1, 2, 3, 4, 5, 6]
    assert base.values == pytest.approx([sum(three) / 3 for three in values])
    assert base.spread == pytest.approx(
        [statistics.stdev(three) for three in values]
    ) and base.spread[0] == pytest.approx(0.01)
    figure = plot.draw_comparison(runs, str(tmp_path))
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert max(y for x, y in band if x == 6) == pytest.approx(base.values[-1] + base.spread[-1])
    assert len(figure.axes[0].collections) == 2 and "3 seeds" in figure.axes[0].get_title()
    plot.main(str(tmp_path))
    for folder in ["", "seed-0/base", "seed-0/rank1", "seed-1/base", "seed-2/base"]:
        assert_png(tmp_path / folder / "curves.png")
    assert not (tmp_path / "seed-0" / "curves.png").exists()


def test_mean_stops_where_a_seed_is_not_there_yet():
    mean = plot.mean_over_seeds(
        [plot.Series([1, 2, 3], [5, 4, 3]), plot.Series([1, 2], [7, math.nan])]
    )
    assert mean.epochs == [1, 2] and mean.values[0] == 6 and math.isnan(mean.values[1])


def test_axis_tells_the_late_part_apart():
    falling = plot.Series(list(range(100)), [8 / (1 + i) + 1.5 for i in range(100)])
    low, high = plot.value_range([falling], lower_is_better=True)
    assert low < falling.values[-1] and falling.values[10] < high < falling.values[5]
    rising = plot.Series(falling.epochs, [-value for value in falling.values])
    assert plot.value_range([rising], lower_is_better=False) == pytest.approx((-high, -low))
    # Training has many more points than validation, which lies above it.
    validation = plot.Series([10, 50, 90], [3, 2.5, 2])
    assert plot.value_range([falling, validation], True)[1] > 3
    # A run that went astray still shows where it ended; values that are no numbers do not count.
    assert plot.value_range([plot.Series([1, 2, 3], [1, 2, 9])], True)[1] > 9
    assert plot.value_range([plot.Series([1, 2], [math.nan, 2])], True) == pytest.approx((1.9, 2.1))
    assert plot.value_range([plot.Series([1], [math.nan])], True) is None


def test_half_written_last_line_is_left_out_and_repeated_steps_count_once(tmp_path):
    written = make_run(tmp_path / "run")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write(
            '{"kind":"train","step":3,"epoch":0.3,"bpc":null}\n{"kind":"train","step":60,"epo'
        )
    run = plot.load_run(str(tmp_path / "run"))
    assert run.training.epochs == [epoch for epoch, _ in written["training"]]
    assert (
        math.isnan(run.training.values[2]) and run.training.values[3] == written["training"][3][1]
    )
    plot.main(str(tmp_path / "run"))


def test_run_that_has_just_begun_does_not_hide_the_others(tmp_path):
    make_run(tmp_path / "base")
    make_run(tmp_path / "rank1", "rank1")
    (tmp_path / "rank1" / "metrics.jsonl").write_text("")
    plot.main(str(tmp_path))
    assert_png(tmp_path / "curves.png")
    assert not (tmp_path / "rank1" / "curves.png").exists()


def damage(tmp_path, what):
    run = tmp_path / "run"
    make_run(run)
    if what == "nothing":
        run = tmp_path / "nothing"
    elif what == "config":
        (run / "config.toml").unlink()
    elif what == "key":
        (run / "config.toml").write_text('program = "enwik8"\nmodel = "base"\n')
    elif what == "toml":
        (run / "config.toml").write_text("program = [")
    elif what == "program":
        (run / "config.toml").write_text(
            (run / "config.toml").read_text().replace("enwik8", "chess")
        )
    elif what == "line":
        (run / "metrics.jsonl").write_text(
            '{"kind":"train",\n{"kind":"train","step":1,"epoch":1,"bpc":2}\n'
        )
    elif what == "field":
        (run / "metrics.jsonl").write_text('{"kind":"train","step":1,"bpc":2}\n')
    elif what == "type":
        (run / "metrics.jsonl").write_text('{"kind":"train","step":1,"epoch":"first","bpc":2}\n')
    elif what == "setting":
        (run / "config.toml").write_text((run / "config.toml").read_text() + "members = [3]\n")
    elif what == "empty":
        (run / "metrics.jsonl").write_text("")
    elif what == "mixed":
        make_run(tmp_path / "other", program="cifar")
        run = tmp_path
    elif what == "unevaluated":
        make_run(tmp_path / "all" / "base", epochs=1, per_epoch=2)
        lines = (tmp_path / "all" / "base" / "metrics.jsonl").read_text().splitlines(True)
        (tmp_path / "all" / "base" / "metrics.jsonl").write_text(lines[0])
        run = tmp_path / "all"
    elif what == "unwritable":
        (run / "curves.png").mkdir()
    return run


@pytest.mark.parametrize(
    "what, message",
    [
        (
            "nothing",
            "`RUN` must be the folder of a run, with metrics.jsonl, or of several runs. "
            "Received: RUN={run}",
        ),
        (
            "config",
            "a run must have its config.toml. Received: {run}/config.toml (No such file or "
            "directory)",
        ),
        ("key", "config.toml must have `seed`. Received: {run}/config.toml"),
        ("toml", "a run must have its config.toml. Received: {run}/config.toml ("),
        (
            "program",
            "`program` must be one of enwik8, cifar. Received: program=chess in {run}/config.toml",
        ),
        (
            "line",
            "metrics.jsonl must have one JSON object per line. Received: {run}/metrics.jsonl, "
            "line 1 (",
        ),
        ("field", "every line of metrics.jsonl must have 'epoch'. Received: {run}/metrics.jsonl"),
        (
            "type",
            "metrics.jsonl must have one JSON object per line. Received: {run}/metrics.jsonl, "
            "line 1 (`epoch` must be a finite number. Received: epoch='first')",
        ),
        ("setting", "`members` must be an integer. Received: members=[3] in {run}/config.toml"),
        ("empty", "metrics.jsonl must have a line to draw. Received: {run}/metrics.jsonl"),
        ("mixed", "the runs of a folder must be of one program. Received: cifar, enwik8 in {run}"),
        (
            "unevaluated",
            "every run must have been evaluated once before they can be compared. Received: {run}",
        ),
        ("unwritable", "Is a directory"),
    ],
)
def test_what_cannot_be_drawn_is_told(tmp_path, what, message):
    run = damage(tmp_path, what)
    program = subprocess.run(
        [sys.executable, "-m", "late_phase_cli", "plot", str(run)], capture_output=True, text=True
    )
    assert program.returncode == 2 and program.stdout == ""
    assert program.stderr.startswith("latephase plot: ") and program.stderr.count("\n") == 1, (
        program.stderr
    )
    assert message.format(run=run) in program.stderr
    assert not list(tmp_path.rglob("*.part*"))
