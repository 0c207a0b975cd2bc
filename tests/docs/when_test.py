"""What docs/when.md says in words is what the tables beside it say, and those of the pages that it
links to.
"""

import json
import re

import pytest

from late_phase_cli import advice, law_table, members_table, noise_law
from tools.develop import outcomes


def words():
    with open("docs/when.md") as file:
        return " ".join(file.read().split())


@pytest.fixture(scope="module")
def first_records():
    """The late phases of the first records: {(units, learning rate): comparison}."""
    found = law_table.comparisons(law_table.read_all(*outcomes.TEXT))
    return {
        (one.treated.config["units"], one.treated.config["learning_rate"]): one
        for one in found
        if one.treated.treatment == "late-phase" and one.treated.config["sigma"] == 0.35
    }


def test_law_and_records(first_records):
    text = words()
    fast = [first_records[96, 0.001], first_records[64, 0.001]]
    for one in fast:
        assert abs(one.measured() - one.predicted() - one.progress_lost()) < 0.0055
    assert "off by 0.005 or less" in text
    worse = [f"{one.difference():.3f}" for one in fast]
    assert f"worse than its network by {worse[0]} and {worse[1]}" in text
    assert f"lost {worse[1]} and {worse[0]} bits per character to their own networks" in text
    others = [first_records[128, 0.001], first_records[64, 0.004]]
    better = [f"{one.predicted() - one.measured():.3f}" for one in others]
    assert f"better than the law by {better[0]} and {better[1]}, and by more" in text
    assert all(one.progress_lost() > 0 for one in others)
    gained = [f"{-one.difference():.3f}" for one in others]
    assert f"gained {gained[0]} and {gained[1]} on their own networks" in text


def test_law_and_quick():
    found = {
        (one.treated.network, one.treated.treatment): one
        for one in law_table.comparisons(law_table.read_all(*outcomes.TEXT))
        if one.treated.config["units"] == 64
        and one.treated.config.get("sigma") == 0.1
        and one.members == 10
    }
    text = words()
    rank1 = [found["rank1", name] for name in ("accumulation", "lower-rate", "late-phase")]
    assert "all end within 0.003 of the law" in text
    assert all(abs(one.measured() - one.predicted()) < 0.0035 for one in rank1)
    late, plain = (found["rank1", name].measured() for name in ("late-phase", "accumulation"))
    assert abs(late - plain) < 0.0015 and "within 0.001 of accumulation" in text
    base = [found["base", name] for name in ("accumulation", "lower-rate")]
    better = [f"{one.predicted() - one.measured():.3f}" for one in base]
    assert f"do better than the law by {better[0]} and {better[1]}" in text


def test_law_over_k():
    folder = "docs/results/sweep-enwik8-quick-members"
    found = law_table.comparisons(law_table.read_all(folder))
    (sweep,) = law_table.k_sweeps(found)
    text = words()
    assert (
        f"falls as K^−{sweep.fit.exponent:.2f}, with a standard error of "
        f"{sweep.fit.exponent_error:.2f}; the law says 0.5" in text
    )
    accumulated = [one for one in found if one.treated.treatment == "accumulation"]
    assert [one.members for one in accumulated] == [2, 5, 10, 20, 50]
    assert max(abs(one.measured() - one.predicted()) for one in accumulated) < 0.0025
    assert "off by 0.002 at most" in text


def test_what_members_add():
    found = members_table.added(law_table.read_all(*outcomes.TEXT))
    by_members = {one.late.config["members"]: one.differences for one in found}
    assert sorted(by_members) == [2, 5, 10, 20, 50]
    few, many = by_members[2]["collapsed"], by_members[50]
    assert abs(few.mean) < few.half_width
    assert (
        f"two members add nothing that could be told from chance, and fifty cost "
        f"{many['collapsed'].number()[1:]}, with SWA {many['swa'].number()[1:]}." in words()
    )


def test_stages_of_the_first_records(first_records):
    text = words()
    assert "None of the four settings without a lower rate for u and v stands on a plateau" in text
    stages = {one["setting"]: one.get("stage") for one in advice.outcomes()}
    for (units, rate), stage in {
        (96, 0.001): "quiet",
        (64, 0.001): "quiet",
        (128, 0.001): "falling",
        (64, 0.004): "falling",
    }.items():
        network = first_records[units, rate].pairs[0][0]
        assert stages[f"rank1: {law_table.setting_text(network)}"] == stage


def test_the_papers_row():
    assert "1.663 and with SWA 1.616; for K = 10 the law gives 1.631" in words()
    assert f"{noise_law.accumulated(1.663, 1.616, 10):.3f}" == "1.631"


def test_progress_as_written():
    """The formula of the page is noise_law's."""
    assert "b ln(1 + n/T0) − b ln(1 + n/(√K T0)) less." in words()
    trend = noise_law.Trend(3, 0.2)
    written = 0.2 * (noise_law.math.log(1 + 5 / 9) - noise_law.math.log(1 + 5 / (10**0.5 * 9)))
    assert noise_law.progress_lost(trend, 9, 5, 10**0.5) == pytest.approx(written)


def mean(record, model, metric):
    with open(f"docs/results/{record}/results.json") as file:
        runs = [run for run in json.load(file)["runs"] if run["model"] == model]
    return sum(run["test"]["collapsed"][metric] for run in runs) / len(runs)


def test_where_it_did_not_help():
    text = words()
    late, plain = (mean("enwik8-96-units", model, "bpc") for model in ("late-phase", "rank1"))
    assert f"{late:.3f} against {plain:.3f} bits per character in ten short epochs" in text
    wrn = [mean("cifar-wrn-16-2-small", model, "accuracy") for model in ("base", "late-phase")]
    (points,) = re.findall(r"the late-phase network ended (\S+) points below the plain one", text)
    assert points == f"{100 * (wrn[0] - wrn[1]):.1f}"
