"""The tables of enwik8 on made-up results, against NumPy and SciPy."""

import numpy
import pytest
import scipy.stats
from late_phase_cli import enwik8_table, model_differences, results
from late_phase_cli.errors import UserError

LEVELS = {"base": 2.43, "rank1": 2.41, "late-phase": 2.35, "rank1-accumulation": 2.36}


def results_of(models, seeds, random_state=0):
    """As train leaves them: {"runs": …}, every value of its own."""
    generator = numpy.random.default_rng(random_state)
    runs = []
    for seed in seeds:
        for model in models:
            value = lambda: LEVELS.get(model, 2.4) + 0.01 * generator.standard_normal()
            run = {
                "model": model,
                "seed": seed,
                "train": {"bpc": value()},
                "test": {"collapsed": {"bpc": value()}, "swa": {"bpc": value() - 0.05}},
            }
            if model == "late-phase":
                run["test"]["members"] = [{"bpc": value()} for _ in range(10)]
                run["test"]["ensemble"] = {"bpc": value()}
            runs.append(run)
    return {"program": "enwik8", "runs": runs}


def of(results, model, weights):
    return numpy.array(
        [run["test"][weights]["bpc"] for run in results["runs"] if run["model"] == model]
    )


def rows(lines):
    """{first cell: the others}"""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {first: rest for first, *rest in cells}


MODELS = [*enwik8_table.NAMES, *enwik8_table.CONTROLS]
DIFFERENCES = model_differences.QUESTIONS["enwik8"].pairs
PAIRS = [(model, other) for _, model, other in DIFFERENCES]


def test_rows_are_the_papers_and_then_the_controls():
    results = results_of(MODELS, range(5))
    lines = enwik8_table.render(results)
    names = [line.split("|")[1].strip() for line in lines[2 : 2 + len(MODELS)]]
    assert names == [*enwik8_table.NAMES.values(), *enwik8_table.CONTROLS.values()]
    table = rows(lines)
    for model, name in {**enwik8_table.NAMES, **enwik8_table.CONTROLS}.items():
        for column, weights in ((1, "collapsed"), (2, "swa")):
            values = of(results, model, weights)
            assert table[name][column] == f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"
    assert table["Late-phase Rank1"][3:] == ["1.522", "1.633", "1.615"]
    assert table["Base, accumulation"][3:] == ["–"] * 3


def test_differences_are_those_of_a_paired_t_test():
    results = results_of(MODELS, range(5))
    table = rows(enwik8_table.render(results))
    assert table["difference in bits per character"] == [
        "test",
        "better in",
        "test with SWA",
        "better in",
    ]
    for name, model, other in DIFFERENCES:
        for column, weights in ((0, "collapsed"), (2, "swa")):
            ours, theirs = of(results, model, weights), of(results, other, weights)
            interval = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
            mean, half_width = (ours - theirs).mean(), (interval.high - interval.low) / 2
            shown_mean, shown_half_width = map(float, table[name][column].split(" ± "))
            assert shown_mean == pytest.approx(mean, abs=6e-4)
            assert shown_half_width == pytest.approx(half_width, abs=6e-4)
            assert table[name][column + 1] == f"{(ours < theirs).sum()} of 5 seeds"
    assert ("late-phase", "rank1-accumulation") in PAIRS and ("late-phase", "base") in PAIRS


def test_seeds_are_paired_with_themselves():
    results = results_of(["base", "late-phase"], [3, 7, 5])
    # Another order of the runs, and a seed that only one model has.
    shuffled = {"runs": results["runs"][::-1] + results_of(["base"], [11], 1)["runs"]}
    name = "Late-phase against Base"
    assert rows(enwik8_table.render(shuffled))[name] == rows(enwik8_table.render(results))[name]


def test_one_seed_is_no_evidence_and_says_so():
    results = results_of(MODELS, [0])
    lines = enwik8_table.render(results)
    table = rows(lines)
    difference = of(results, "late-phase", "swa") - of(results, "base", "swa")
    assert table["difference in bits per character"] == ["test", "test with SWA"]
    assert table["Late-phase against Base"][1] == f"{difference[0]:+.3f}"
    assert any("One seed is no evidence" in line for line in lines) and "±" not in "".join(lines)
    several = enwik8_table.render(results_of(MODELS, [0, 1]))
    assert not any("no evidence" in line for line in several)
    assert any("95 % interval" in line for line in several)


def test_members_take_one_line():
    results = results_of(MODELS, range(3))
    late_phase = [run["test"] for run in results["runs"] if run["model"] == "late-phase"]
    late_phase[1]["members"][4]["bpc"] = 3.308
    late_phase[2]["members"][0]["bpc"] = None  # not finite
    (line,) = [line for line in enwik8_table.render(results) if "members of" in line]
    ensembles = [test["ensemble"]["bpc"] for test in late_phase]
    assert line.startswith("Late-phase members of 3 seeds, test: 2.3") and "to 3.308 each" in line
    assert line.endswith(f"{numpy.mean(ensembles):.3f} ± {numpy.std(ensembles, ddof=1):.3f}")


@pytest.mark.parametrize("models", [["base"], ["rank1"], ["late-phase"], ["lower-rate"]])
def test_one_model_has_nothing_to_be_compared_with(models):
    lines = enwik8_table.render(results_of(models, range(2)))
    assert not any("difference" in line or "evidence" in line for line in lines)


def test_records_without_controls_or_swa():
    results = results_of(["base", "rank1", "late-phase"], range(2))
    for run in results["runs"]:
        del run["test"]["swa"]
    table = rows(enwik8_table.render(results))
    assert table["difference in bits per character"] == ["test", "better in"]
    assert [name for name in table if "against" in name] == [
        name for name, _, other in DIFFERENCES if "accumulation" not in other
    ]
    assert table["Base"][2] == "–"


def test_results_without_their_parts_are_named(tmp_path):
    (tmp_path / "config.toml").write_text('program = "enwik8"\n')
    (tmp_path / "results.json").write_text('{"model": "base", "test": {}}')
    message = f"must hold the results of a run. Received: {tmp_path}/results.json .KeyError"
    with pytest.raises(UserError, match=message):
        results.table(str(tmp_path))
