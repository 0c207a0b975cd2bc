"""What the metrics and weight sets of a results.json are called in tables, how many digits they have, and which way is better."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Metric:
    head: str
    digits: int = 4
    scale: float = 1  # 100 for shares in percent
    lower_is_better: bool = True

    def number(self, value):
        """As a table shows it; a metric that is not finite is null in results.json."""
        return "–" if value is None else f"{self.scale * value:.{self.digits}f}"


# By the name in results.json, in the order of columns. The first that a run has is drawn.
METRICS = {
    "bpc": Metric("BPC"),
    "accuracy": Metric("accuracy %", 2, 100, lower_is_better=False),
    "nll": Metric("NLL"),
    "ece": Metric("ECE"),
    "brier": Metric("Brier"),
    "auroc": Metric("AUROC", lower_is_better=False),
    "mean_auroc": Metric("mean AUROC", lower_is_better=False),  # over sets of other images
    "mean_error": Metric("mean corruption error %", 2, 100),
    "loss": Metric("loss"),
}
# Metrics that say how good a model is; the others say how sure it is of it, or the same again.
MAIN_METRICS = ("bpc", "accuracy", "nll")
# By the name in results.json, in the order of columns.
WEIGHTS = {"collapsed": "collapsed", "swa": "SWA", "current": "one member", "ensemble": "ensemble"}


def metric_of(name):
    return METRICS.get(name) or Metric(name.replace("_", " "))


def weights_name(name):
    return WEIGHTS.get(name, name)


def in_order(names, known):
    """Distinct names, the known ones first in their order."""
    names = set(names)
    return [name for name in known if name in names] + sorted(names - set(known))


def columns_of(tests):
    """[(weights, metric)] that the given parts "test" of results have. The list "members" is no weight set of its own."""
    sets = in_order((weights for test in tests for weights, metrics in test.items() if isinstance(metrics, dict)), WEIGHTS)
    return [(weights, metric) for weights in sets
            for metric in in_order((name for test in tests for name in test.get(weights, {})), METRICS)]


def without_loss(columns):
    """The columns but for a loss beside the metric that is made from it: BPC is loss / ln 2."""
    return [(weights, metric) for weights, metric in columns if metric != "loss" or (weights, "bpc") not in columns]


def mean_and_error(values):
    """Mean and its standard error; of a single value there is no error, and without a finite one there is neither."""
    values = [value for value in values if value is not None]
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


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
    """A setting as config.toml has it, with no more digits than it needs."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
