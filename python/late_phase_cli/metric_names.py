"""What the metrics and weight sets of a results.json are called in tables, how many digits they
have, and which way is better.

For the metrics, this is declared in metrics.json beside this file, which is built into the C++
program.
"""

import dataclasses
import json
import pathlib
import statistics


@dataclasses.dataclass(frozen=True)
class Metric:
    name: str  # in results.json
    head: str  # in tables
    label: str = ""  # in plots
    unit: str = ""  # after a number in a sentence
    digits: int = 4  # after the decimal point
    scale: float = 1  # 100 for percentages
    lower_is_better: bool = True

    def number(self, value):
        """The number as tables show it; a metric that is not finite is null in results.json."""
        return "–" if value is None else f"{self.scale * value:.{self.digits}f}"


# By name, in the order of columns. The first one that a run has is plotted.
METRICS = {
    one["name"]: Metric(**one)
    for one in json.loads(pathlib.Path(__file__).with_name("metrics.json").read_text())
}
# Metrics that say how good a model is; the others say how confident it is, or repeat these.
MAIN_METRICS = ("bpc", "accuracy", "nll")
# By the name in results.json, in the order of columns.
WEIGHTS = {"collapsed": "collapsed", "swa": "SWA", "current": "one member", "ensemble": "ensemble"}


def metric_of(name):
    return METRICS.get(name) or Metric(name, name.replace("_", " "))


def weights_name(name):
    return WEIGHTS.get(name, name)


def in_order(names, known):
    """Distinct names: the known ones first, in their order."""
    names = set(names)
    return [name for name in known if name in names] + sorted(names - set(known))


def columns_of(tests):
    """[(weights, metric)] that the given parts "test" of results have. The list "members" is not a
    weight set.
    """
    sets = in_order(
        (
            weights
            for test in tests
            for weights, metrics in test.items()
            if isinstance(metrics, dict)
        ),
        WEIGHTS,
    )
    return [
        (weights, metric)
        for weights in sets
        for metric in in_order((name for test in tests for name in test.get(weights, {})), METRICS)
    ]


def without_loss(columns):
    """The columns without a loss whose metric is also there: BPC is loss / ln 2."""
    return [
        (weights, metric)
        for weights, metric in columns
        if metric != "loss" or (weights, "bpc") not in columns
    ]


def mean_and_error(values):
    """The mean and its standard error; a single value has no error, and without finite values there
    is neither.
    """
    values = [value for value in values if value is not None]
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5 if len(
        values
    ) > 1 else None


def mean_text(metric, mean, error):
    """ "70.73 ± 0.12" """
    return metric.number(mean) + ("" if error is None else f" ± {metric.number(error)}")


def best_of(values, metric):
    """The best of the values, None if there is nothing to choose."""
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return None
    return min(known) if metric_of(metric).lower_is_better else max(known)


def value_text(value):
    """A setting as in config.toml, with no more digits than it needs."""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
