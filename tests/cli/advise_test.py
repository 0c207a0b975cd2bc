"""latephase advise on recorded runs of each kind and on made-up ones, whose numbers are worked out
by hand.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys

import numpy
import pytest
import scipy.stats

from late_phase_cli import advice, advice_runs, finished_runs, main, run_files
from late_phase_cli.errors import UserError
from tests.support.made_up_runs import END, SLOPE, make_run


def said(folder):
    return " ".join(advice_runs.render(str(folder)).split())


def test_numbers_of_a_plateau(tmp_path):
    text = said(make_run(tmp_path / "run", swa=END - 0.08))
    assert "the loss is 2.4000, with SWA 2.3200, which takes 0.0800 off (one seed)" in text
    fall, kept = SLOPE * math.log(17 / 12), 0.08 / math.sqrt(10)
    assert f"fall by another {fall:.4f} in 5 more epochs, less than the noise" in text
    lost = SLOPE * (math.log(12 / 7) - math.log((7 + 5 / math.sqrt(10)) / 7))
    assert f"1/√10 of the noise: {2.32 + kept:.4f}; or up to {2.32 + kept + lost:.4f}" in text
    assert text.count("Recommendation") == 1 and "validation bits per character" in text
    assert "averaged only" not in text  # 20 of them


def test_the_interval_is_students(tmp_path):
    noises = [0.08, 0.07, 0.095]
    for seed, noise in enumerate(noises):
        make_run(
            tmp_path / f"seed-{seed}" / "rank1", seed=seed, loss=END + seed, swa=END + seed - noise
        )
    low, high = scipy.stats.t.interval(
        0.95, 2, numpy.mean(noises), numpy.std(noises, ddof=1) / math.sqrt(3)
    )
    expected = f"takes {numpy.mean(noises):.4f} ± {(high - low) / 2:.4f} off (mean of 3 seeds"
    assert expected in said(tmp_path)


@pytest.mark.parametrize(
    "noise, slope, choice, plateau",
    [
        (0.08, 0.03, "SWA", True),
        (0.08, 0.5, "train longer", False),  # falls by 0.17
        (-0.01, 0.5, "train longer", False),
        (-0.01, 0.001, "nothing", True),
        (0.0005, 0.001, "nothing", True),  # too little to be told from nothing
        (0.01, -0.1, "SWA", True),  # rises: no progress to lose
    ],
)
def test_choices(tmp_path, noise, slope, choice, plateau):
    run = finished_runs.read(str(make_run(tmp_path / "run", swa=END - noise, slope=slope)))
    given = advice.advise(advice_runs.measured_of([run]), recorded=[])
    assert (given.choice, given.on_plateau) == (choice, plateau)
    assert given.excess == pytest.approx(noise) and given.fall >= 0 and given.progress_lost >= 0
    # A loss that does not fall has no progress to lose, and none is spoken of.
    assert ("or up to" in given.findings[-1]) == (noise >= 0.01 and slope > 0)
    word = {"SWA": "use the SWA average", "train longer": "train longer", "nothing": "leave it"}[
        choice
    ]
    assert given.recommendation.startswith(word)


@pytest.mark.parametrize(
    "noises, told",
    [
        ((0.02, -0.015), False),
        ((0.02, 0.01), True),  # of two seeds an interval says nothing
        ((0.04, 0.01, -0.02), False),
        ((0.02, 0.015, 0.025), True),
        ((0.0001, 0.0002), False),
    ],
)
def test_seeds_that_disagree_are_no_noise(tmp_path, noises, told):
    runs = [
        finished_runs.read(str(make_run(tmp_path / str(seed), seed=seed, swa=END - noise)))
        for seed, noise in enumerate(noises)
    ]
    given = advice.advise(advice_runs.measured_of(runs), recorded=[])
    assert ("Averaging removes no noise" in " ".join(given.findings)) == (
        not told
    ) and given.excess > 0
    assert (given.accumulated < END) == told
    assert given.accumulated <= END + 1e-9


def outcome(stage, swa, collapsed=-0.05, seeds=3, **more):
    return {
        "program": "enwik8",
        "stage": stage,
        "seeds": seeds,
        "late_phase": {"collapsed": collapsed, "swa": swa},
        **more,
    }


@pytest.mark.parametrize(
    "recorded, choice",
    [
        ([], "SWA"),
        ([outcome("falling", -0.1)], "SWA"),  # not of this kind
        ([outcome("plateau", -0.01)], "SWA and a late phase"),
        ([outcome("plateau", -0.01, seeds=1)] * 2, "SWA"),  # too few
        ([outcome("plateau", 0.01)], "SWA"),
        (
            [outcome("plateau", -0.1), outcome("plateau", 0.01)],
            "SWA",
        ),  # on the mean, but not mostly
        ([outcome("plateau", -0.01), outcome("plateau", -0.01), outcome("plateau", 0.1)], "SWA"),
    ],
)
def test_records_decide_on_members(tmp_path, recorded, choice):
    run = finished_runs.read(str(make_run(tmp_path / "run", swa=END - 0.08)))
    given = advice.advise(advice_runs.measured_of([run]), recorded)
    assert given.choice == choice
    if choice != "SWA":
        assert given.recommendation.startswith("a late phase with 10 members, and SWA on top")


def test_evidence_is_of_the_same_kind():
    added = {
        "accumulation": {"collapsed": -0.04, "swa": 0},
        "members_add": {"collapsed": -0.01, "swa": 0.002},
    }
    recorded = [
        outcome("plateau", -0.01, -0.06, **added),
        outcome("plateau", 0.02, -0.03),
        outcome("falling", 0.5),
    ]
    text = " ".join(advice.evidence_sentences(recorded, "enwik8", "plateau"))
    assert "changed the test loss by -0.060 to -0.030, with SWA by -0.010 to +0.020" in text
    assert "(2 settings, 6 seeds in all)" in text and "0.500" not in text
    assert (
        "members added to accumulation -0.010, with SWA by +0.002" in text
        and "(1 setting, 3 seeds in all)" in text
    )
    unknown = " ".join(advice.evidence_sentences(recorded, "enwik8", None))
    assert "on a plateau" in unknown and "+0.500" in unknown
    assert list(advice.evidence_sentences([], "enwik8", "plateau")) == [
        "Recorded: no network on a plateau yet."
    ]


def test_few_samples_and_no_trend_are_noted(tmp_path):
    text = said(make_run(tmp_path / "run", swa=END - 0.08, swa_every=1.5))
    assert "SWA has averaged only 3 samples" in text
    short = said(make_run(tmp_path / "short", swa=END - 0.08, epochs=2))
    assert "Plateau: not known" in short and "or up to" not in short


def test_training_stands_in_where_there_are_too_few_evaluations(tmp_path):
    run = make_run(tmp_path / "run", swa=END - 0.08)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(
        "".join(line + "\n" for line in lines if '"evaluation"' not in line)
    )
    trend = finished_runs.read(str(run)).trend()
    assert trend.slope == pytest.approx(2 * SLOPE, rel=0.1)


def test_without_validation_it_is_the_test_that_counts(tmp_path):
    run = make_run(tmp_path / "run", swa=END - 0.08)
    results = json.loads((run / "results.json").read_text())
    del results["validation"]
    (run / "results.json").write_text(json.dumps(results))
    text = said(run)
    assert "test bits per character" in text and "the loss is 2.4500, with SWA 2.3700" in text


def test_a_folder_is_compared_and_has_one_recommendation(tmp_path, monkeypatch):
    monkeypatch.setattr(advice, "outcomes", list)  # whatever is recorded
    for seed in (0, 1):
        make = lambda model, loss, swa: make_run(
            tmp_path / f"seed-{seed}" / model, model, seed, loss + seed / 100, swa + seed / 100
        )
        make("base", 2.43, 2.36)
        make("rank1", 2.41, 2.33)
        make("rank1-accumulation", 2.36, 2.34)
        make("late-phase", 2.35, 2.32)
    text = said(tmp_path)
    assert "base, 2 seeds;" in text and "rank1, 2 seeds;" in text
    assert "Measured here: late-phase with SWA 2.3250, rank1 with SWA 2.3350, " in text
    assert text.count("Recommendation") == 1
    assert "Recommendation: late-phase with SWA, the best that was measured here (mean of 2" in text
    # A seed that one of the models has not finished is not compared.
    (tmp_path / "seed-1" / "base" / "results.json").unlink()
    assert "Measured here: late-phase with SWA 2.3200, " in said(tmp_path)
    for seed in (0, 1):
        shutil.rmtree(tmp_path / f"seed-{seed}" / "late-phase")
    better = "Recommendation (rank1, the better network): use the SWA average (2.3350)"
    assert better in said(tmp_path)


def test_several_trainings_in_a_folder_are_not_compared(tmp_path):
    make_run(tmp_path / "one", swa=END - 0.08)
    make_run(tmp_path / "two", swa=END - 0.08, learning_rate=0.001)
    make_run(tmp_path / "three", "late-phase", loss=2, swa=2)
    text = said(tmp_path)
    assert text.count("rank1, seed 0;") == 2 and "Measured here" not in text
    assert text.count("Recommendation") == 1


@pytest.mark.parametrize("model", ["late-phase", "rank1-accumulation", "decay"])
def test_a_treated_run_is_sent_to_its_network(tmp_path, model):
    run = make_run(tmp_path / "a run", model, swa=END - 0.003)
    network = "base" if model == "decay" else "rank1"
    lines = advice_runs.render(str(run)).splitlines()
    assert lines[-1] == (
        f"  latephase train enwik8 --preset '{run}/config.toml' --model {network} "
        f"--out '{run}-{network}'"
    )
    assert "the difference of +0.0030" in " ".join(lines)


def test_a_run_without_swa_is_told_what_to_measure(tmp_path):
    run = make_run(tmp_path / "run", swa_start=-1.0)
    lines = advice_runs.render(str(run) + "/").splitlines()
    assert (
        f"  latephase train enwik8 --preset {run}/config.toml --swa-start 7 --swa-every 0.25 "
        f"--out {run}-swa" in lines
    )
    assert f"  latephase advise {run}-swa" in lines
    assert "Recommendation: measure the noise first" in lines[-1]
    main.parse(lines[-3].split()[1:])  # such a command exists


def test_runs_that_cannot_be_judged(tmp_path):
    going_on = make_run(tmp_path / "going on")
    (going_on / "results.json").unlink()
    message = (
        f"`RUN` must have finished. Received: RUN={going_on}, which is at epoch 12 of 12. "
        f"To resume it: latephase train enwik8 --resume --out '{going_on}'"
    )
    with pytest.raises(UserError, match=re.escape(message)):
        advice_runs.render(str(going_on))
    with pytest.raises(
        UserError, match="`RUN` must be the folder of a run.*Received: RUN=/nowhere"
    ):
        advice_runs.render("/nowhere")
    with pytest.raises(UserError, match="not of a sweep.*Received: RUN=docs/results/sweep-"):
        advice_runs.render("docs/results/sweep-convnet-quick-members")
    damaged = make_run(tmp_path / "damaged")
    (damaged / "results.json").write_text('{"test": 3}')
    with pytest.raises(run_files.RunError, match="must be those of a run. Received: .*damaged"):
        advice_runs.render(str(damaged))
    older = make_run(tmp_path / "older")
    config = (older / "config.toml").read_text()
    (older / "config.toml").write_text(config.replace("swa_every = 0.25\n", ""))
    with pytest.raises(run_files.RunError, match="config.toml must have `swa_every`. Received: "):
        advice_runs.render(str(older))
    make_run(tmp_path / "all" / "base", "base", swa=END - 0.08)
    shutil.copytree(going_on, tmp_path / "all" / "rank1")
    assert "Not finished, and left out: rank1." in said(tmp_path / "all")


# --- Recorded runs.


@pytest.mark.parametrize(
    "record, words",
    [
        (
            "enwik8-96-units",
            ["base, 3 seeds;", "Recommendation (base, the better network): train longer"],
        ),
        ("enwik8-128-units-1e-3/rank1", ["takes 0.0048 off", "it is not on a plateau"]),
        ("enwik8-128-units-1e-3/late-phase", ["--model rank1 --out"]),
        ("enwik8-64-units-4e-3-factors-4e-4", ["rank1, seed 0;", "only 3 samples"]),
        ("enwik8-laptop-200-steps", ["because the run has no SWA", "--swa-start 0.154"]),
        ("cifar-wrn-16-2-small", ["test NLL", "it is Adam's", "(γ = 1) leaves the noise as it is"]),
        ("cifar-convnet/base", ["train cifar", "--swa-start 50 --swa-every 1 "]),
        ("sweep-convnet-quick-members/members-1", ["base, 2 seeds;", "it is Adam's"]),
    ],
)
def test_recorded_runs(record, words):
    text = said(f"docs/results/{record}")
    assert [word for word in words if word not in text] == [], text
    assert text.count("Recommendation") == 1


def test_the_command(tmp_path):
    command = lambda folder: subprocess.run(
        [sys.executable, "-P", "-m", "late_phase_cli", "advise", folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    run = command("docs/results/enwik8-128-units-1e-3")
    assert run.returncode == 0 and run.stderr == "" and "Recommendation" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 100
    refused = command(str(tmp_path))
    assert refused.returncode == 2 and refused.stderr.startswith("latephase advise: `RUN` must be")


def test_neither_plots_nor_tensorflow_are_needed():
    script = (
        "import sys\nfrom late_phase_cli import "
        "advice_runs\nadvice_runs.render('docs/results/enwik8-128-units-1e-3')\n"
        "print([name for name in ('matplotlib', 'tensorflow', 'jinja2', 'late_phase') if name in "
        "sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert run.stdout == "[]\n", run.stderr
