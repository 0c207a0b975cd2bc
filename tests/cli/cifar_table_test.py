"""The tables of CIFAR on made-up results of several seeds, against NumPy and SciPy."""

import numpy
import pytest
import scipy.stats
from late_phase_cli import cifar_table, model_differences

CONFIG = {"network": "convnet", "dataset": "cifar10", "train_images": 0, "t0": 50.0, "gamma": 1.0,
          "learning_rate": 0.1, "final_learning_rate": 0.1}  # fmt: skip
MODELS = ("base", "lower-rate", "accumulation", "late-phase")
COLUMNS = model_differences.QUESTIONS["cifar"].columns


def results_of(models, seeds, swa=True):
    """As train leaves them: {"runs": …}, every value of its own."""
    generator = numpy.random.default_rng(0)
    metrics = lambda: {
        "accuracy": 0.7 + 0.01 * generator.standard_normal(),
        "nll": 0.9 + 0.1 * generator.standard_normal(),
        "ece": 0.01,
    }
    sets = ("collapsed", "swa") if swa else ("collapsed",)
    runs = [
        {"model": model, "seed": seed, "test": {weights: metrics() for weights in sets}}
        for seed in seeds
        for model in models
    ]
    return {"program": "cifar", "runs": runs}


def of(results, model, weights, metric):
    mine = [run for run in results["runs"] if run["model"] == model]
    return numpy.array([run["test"][weights][metric] for run in mine])


def rows(lines):
    """{first cell: the others}"""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {first: rest for first, *rest in cells}


def test_models_have_their_mean_and_deviation():
    results = results_of(MODELS, range(5))
    table = rows(cifar_table.render(CONFIG, results))
    for model in MODELS:
        for weights, name in (("collapsed", ""), ("swa", ", SWA")):
            accuracy = 100 * of(results, model, weights, "accuracy")
            nll = of(results, model, weights, "nll")
            assert table[model.capitalize() + name][:2] == [
                f"{accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}",
                f"{nll.mean():.4f} ± {nll.std(ddof=1):.4f}",
            ]


def test_differences_are_those_of_a_paired_t_test():
    results = results_of(MODELS, range(5))
    lines = cifar_table.render(CONFIG, results)
    table = rows(lines)
    assert table["difference"] == [
        cell for column in COLUMNS for cell in (column.head, "better in")
    ]
    pairs = model_differences.QUESTIONS["cifar"].pairs
    assert [(model, other) for _, model, other in pairs] == [
        ("late-phase", "base"),
        ("late-phase", "accumulation"),
    ]
    for name, model, other in pairs:
        for place, column in enumerate(COLUMNS):
            scale, digits = (100, 2) if column.metric == "accuracy" else (1, 4)
            ours, theirs = (
                scale * of(results, one, column.weights, column.metric) for one in (model, other)
            )
            interval = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
            mean, half_width = map(float, table[name][2 * place].split(" ± "))
            near = 0.6 * 10**-digits
            assert mean == pytest.approx((ours - theirs).mean(), abs=near)
            expected = (interval.high - interval.low) / 2  # the quantile has four digits
            assert half_width == pytest.approx(expected, abs=near + 3e-4 * expected)
            won = (ours > theirs if column.metric == "accuracy" else ours < theirs).sum()
            assert table[name][2 * place + 1] == f"{won} of 5 seeds"
    assert lines[-1].endswith("higher accuracy and lower NLL are better.")


def test_seeds_are_paired_with_themselves_in_any_order():
    results = results_of(("base", "late-phase"), range(5))
    base, late = (
        [run for run in results["runs"] if run["model"] == model]
        for model in ("base", "late-phase")
    )
    shuffled = {"runs": [*base[::-1], *late]}
    name = "Late-phase against Base"
    expected = rows(cifar_table.render(CONFIG, results))[name]
    assert rows(cifar_table.render(CONFIG, shuffled))[name] == expected


def test_one_seed_is_no_evidence_and_says_so():
    lines = cifar_table.render(CONFIG, results_of(("base", "late-phase"), [3], swa=False))
    assert rows(lines)["difference"] == ["test accuracy, points", "test NLL"]
    assert lines[-1].startswith("Higher accuracy") and "One seed is no evidence" in lines[-1]
    assert not any("±" in line for line in lines[3:])


@pytest.mark.parametrize("model", MODELS)
def test_one_model_has_nothing_to_be_compared_with(model):
    lines = cifar_table.render(CONFIG, results_of([model], range(2)))
    assert not any("difference" in line for line in lines)
