"""The tables of the noise law on made-up runs."""

import math
import os

import pytest

from late_phase_cli import law_table, model_names, sweep_plan
from tests.support.made_up_runs import END, make_run


def settings_folder(tmp_path):
    """Accumulation at several K exactly as the law has it, a late phase 0.01 better."""
    for seed in (0, 1):
        loss, noise = END + seed / 10, 0.08
        make_run(tmp_path / f"plain-{seed}", "rank1", seed, loss, loss - noise, slope=0)
        for members in (2, 5, 10, 20, 50):
            value = loss - noise + noise / math.sqrt(members)
            folder = tmp_path / f"members-{members}" / f"seed-{seed}"
            make_run(folder, "rank1-accumulation", seed, value, value, members=members)
        make_run(tmp_path / f"late-{seed}", "late-phase", seed, value - 0.01, value, members=50)
    return law_table.comparisons(law_table.read_all(f"{tmp_path}/*"))


def test_predictions_beside_measurements(tmp_path):
    lines = law_table.render(settings_folder(tmp_path))
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| rank1")]
    assert [(row[1], row[2], row[3]) for row in rows] == [
        *(("accumulation", str(members), "2") for members in (2, 5, 10, 20, 50)),
        ("late phase", "50", "2"),
    ] and len(rows) == 6
    late = rows[-1]
    predicted = (
        END + 0.05 + 0.05 - 0.08 + 0.08 / math.sqrt(50)
    )  # test is 0.05 higher, the seeds' mean too
    assert late[4] == "2.500 (2.420)" and late[6] == f"{predicted:.3f}"
    assert late[5] == f"{predicted - 0.01:.3f}" and late[7] == "-0.010"
    assert {row[7] for row in rows[:-1]} <= {"+0.000", "-0.000"}
    assert "Root-mean-square difference, accumulation, 5 settings: law 0.000" in "\n".join(lines)
    assert "late phase, 1 setting: law 0.010; with lost progress 0.010." in lines[-1]


def test_lost_progress_is_that_of_the_plain_network(tmp_path):
    make_run(tmp_path / "rank1", swa=END - 0.08, slope=0.2)
    make_run(tmp_path / "late-phase", "late-phase", loss=END, swa=END)
    (one,) = law_table.comparisons(law_table.read_all(str(tmp_path)))
    assert one.progress_lost() == pytest.approx(
        0.2 * (math.log(12 / 7) - math.log((7 + 5 / math.sqrt(10)) / 7))
    )
    assert one.difference() == pytest.approx(0) and one.difference("swa") == pytest.approx(0.08)


def test_partners_have_the_same_training_and_seed(tmp_path):
    make_run(tmp_path / "rank1", swa=END - 0.08, t0=3.0, sigma=0.5)  # which it does not look at
    make_run(tmp_path / "late-phase", "late-phase", swa=END)
    make_run(tmp_path / "other seed", "late-phase", seed=1, swa=END)
    make_run(tmp_path / "other rate", "late-phase", swa=END, learning_rate=0.001)
    make_run(tmp_path / "other network", "accumulation", swa=END)
    make_run(tmp_path / "without swa", "rank1-accumulation")
    (one,) = law_table.comparisons(law_table.read_all(str(tmp_path)))
    assert [os.path.basename(run.folder) for run in one.pairs[0]] == ["rank1", "late-phase"]
    # A base network has no factors, whose rate is none of its settings.
    make_run(tmp_path / "base", "base", swa=END - 0.08, member_learning_rate=0.0)
    found = law_table.comparisons(law_table.read_all(str(tmp_path)))
    assert [one.treated.model for one in found] == ["accumulation", "late-phase"]


def test_runs_of_an_older_version_are_of_the_same_setting(tmp_path):
    """They do not know `restart_cycle`, which a network without members does not look at, nor the
    choice of an optimizer or of what factors scale.
    """
    now = {"factors": "recurrent", "optimizer": "adam", "momentum": 0.9}
    for seed, options in enumerate(({}, {"restart_cycle": False, **now}, {"restart_cycle": True})):
        make_run(tmp_path / f"rank1-{seed}", seed=seed, swa=END - 0.08, **options)
        make_run(tmp_path / f"late-{seed}", "late-phase", seed=seed, swa=END, **options)
    lines = law_table.render(law_table.comparisons(law_table.read_all(f"{tmp_path}/*")))
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| rank1")]
    assert [(row[1], row[3]) for row in rows] == [("late phase", "2"), ("late phase", "1")]


def test_the_law_is_not_asked_about_sgd(tmp_path):
    make_run(tmp_path / "rank1", swa=END - 0.08, optimizer="sgd")
    make_run(tmp_path / "late-phase", "late-phase", swa=END, optimizer="sgd")
    make_run(tmp_path / "adam", "rank1", swa=END - 0.08)
    found = law_table.comparisons(law_table.read_all(str(tmp_path)))
    assert len(found) == 1 and "SGD, rate" in law_table.setting_text(found[0].treated)
    assert not any(line.startswith("| rank1") for line in law_table.render(found))


def test_a_lower_rate_has_the_k_that_it_corresponds_to(tmp_path):
    make_run(tmp_path / "base", "base", swa=END - 0.08)
    make_run(tmp_path / "as K", "lower-rate", swa=END)
    make_run(tmp_path / "a fifth", "lower-rate", swa=END, late_rate=0.2)
    make_run(tmp_path / "decay", "decay", swa=END)  # of which the law says nothing
    found = law_table.comparisons(law_table.read_all(str(tmp_path)))
    lower = [one.members for one in found if one.treated.treatment == "lower-rate"]
    assert sorted(lower) == [10, pytest.approx(25)]
    assert not any("falling rate" in line for line in law_table.render(found))


def test_fit_over_k(tmp_path):
    (sweep,) = law_table.k_sweeps(settings_folder(tmp_path))
    assert sweep.fit.exponent == pytest.approx(0.5, abs=1e-3) and len(sweep.points) == 12
    lines = law_table.render_fit(sweep)
    assert [line.split(" | ")[0] for line in lines[2:8]] == [
        f"| {k}" for k in (1, 2, 5, 10, 20, 50)
    ]
    k10 = 2.42 + 0.08 / math.sqrt(10)
    assert lines[5] == f"| 10 | {k10:.3f} ± 0.071 | {k10:.3f} | {k10:.3f} |"
    assert (
        "Fitted: 2.420 + 0.080 · K^−p, p = 0.50 ± 0.00 (standard error; the law: 0.5)" in lines[-1]
    )


def test_a_loss_that_rises_with_k_has_no_exponent(tmp_path):
    make_run(tmp_path / "rank1", swa=END - 0.08)
    for members, loss in ((2, 2.41), (5, 2.40), (10, 2.43), (20, 2.44)):
        folder = tmp_path / f"members-{members}"
        make_run(folder, "rank1-accumulation", loss=loss, swa=loss, members=members)
    (sweep,) = law_table.k_sweeps(law_table.comparisons(law_table.read_all(str(tmp_path))))
    last = law_table.render_fit(sweep)[-1]
    assert "Fitted: no fall with K that a power of it describes. SWA" in last


def test_a_fit_needs_several_k(tmp_path):
    make_run(tmp_path / "rank1", swa=END - 0.08)
    make_run(tmp_path / "accumulation", "rank1-accumulation", loss=END - 0.05, swa=END - 0.08)
    assert law_table.k_sweeps(law_table.comparisons(law_table.read_all(str(tmp_path)))) == []


@pytest.mark.parametrize(
    "model, network",
    [
        ("late-phase", "rank1"),
        ("rank1-accumulation", "rank1"),
        ("accumulation", "base"),
        ("lower-rate", "base"),
        ("rank1-decay", "rank1"),
    ],
)
def test_one_member_is_the_network_itself(model, network):
    """So that a sweep over K begins with what the others are compared with."""
    assert model_names.parts_of("enwik8", model)[0] == network
    assert model_names.parts_of("enwik8", network) == (network, "")
    one, two = sweep_plan.plan_points("enwik8", model, {"members": ["1", "2"]}, grid=False)
    assert one.flags == [f"--model={network}"] and f"--model={model}" in two.flags
