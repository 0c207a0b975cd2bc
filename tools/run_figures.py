"""What the figures and weight sets of a results.json are called in tables, how many digits they have, and which way is better."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Figure:
    head: str
    digits: int = 4
    scale: float = 1  # 100 for shares in percent
    lower_is_better: bool = True

    def number(self, value):
        """As a table shows it; a figure that is not finite is null in results.json."""
        return "–" if value is None else f"{self.scale * value:.{self.digits}f}"


# By the name in results.json, in the order of columns. Of the first that a run has, its figures are drawn.
FIGURES = {
    "bpc": Figure("BPC"),
    "accuracy": Figure("accuracy %", 2, 100, lower_is_better=False),
    "nll": Figure("NLL"),
    "ece": Figure("ECE"),
    "brier": Figure("Brier"),
    "auroc": Figure("AUROC", lower_is_better=False),
    "mean_auroc": Figure("mean AUROC", lower_is_better=False),  # over sets of other images
    "mean_error": Figure("mean corruption error %", 2, 100),
    "loss": Figure("loss"),
}
# Figures that say how good a model is; the others say how sure it is of it, or the same again.
MAIN_FIGURES = ("bpc", "accuracy", "nll")
# By the name in results.json, in the order of columns.
WEIGHTS = {"collapsed": "collapsed", "swa": "SWA", "current": "one member", "ensemble": "ensemble"}


def figure_of(name):
    return FIGURES.get(name) or Figure(name.replace("_", " "))


def weights_name(name):
    return WEIGHTS.get(name, name)


def in_order(names, known):
    """Distinct names, the known ones first in their order."""
    names = set(names)
    return [name for name in known if name in names] + sorted(names - set(known))


def columns_of(tests):
    """[(weights, figure)] that the given parts "test" of results have. The list "members" is no weight set of its own."""
    sets = in_order((weights for test in tests for weights, figures in test.items() if isinstance(figures, dict)), WEIGHTS)
    return [(weights, figure) for weights in sets
            for figure in in_order((name for test in tests for name in test.get(weights, {})), FIGURES)]


def without_loss(columns):
    """The columns but for a loss beside the figure that is made from it: BPC is loss / ln 2."""
    return [(weights, figure) for weights, figure in columns if figure != "loss" or (weights, "bpc") not in columns]


def mean_and_error(values):
    """Mean and its standard error; of a single value there is no error, and without a finite one there is neither."""
    values = [value for value in values if value is not None]
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def mean_text(figure, mean, error):
    """ "70.73 ± 0.12" """
    return figure.number(mean) + ("" if error is None else f" ± {figure.number(error)}")


def best_of(values, figure):
    """The best of the values, None if there is nothing to choose."""
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return None
    return min(known) if figure_of(figure).lower_is_better else max(known)


def value_text(value):
    """A setting as config.toml has it, with no more digits than it needs."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
