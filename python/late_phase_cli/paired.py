"""Differences between models trained from the same seeds: mean, 95 % interval, seeds won."""

import dataclasses
import math
import statistics

# Student's t: the 97.5 % quantile by degrees of freedom.
# fmt: off
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
      2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
      2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
# fmt: on


def t_quantile(freedom):
    """The 97.5 % quantile of Student's t distribution; beyond the table, from its expansion around
    the normal one.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One model's metric minus another's, over the seeds that both have."""

    mean: float
    half_width: float  # of the 95 % interval; NaN for one seed, which has none
    won: int  # seeds in which the first model is better
    seeds: int

    def number(self, digits=3):
        """ "-0.031 ± 0.004"; without an interval for one seed"""
        interval = "" if math.isnan(self.half_width) else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:+.{digits}f}{interval}"

    def text(self, digits=3):
        """ "-0.031 ± 0.004, better in 5 of 5 seeds"; one seed is no evidence, and says so."""
        won = f"better in {self.won} of {self.seeds} seeds" if self.seeds > 1 else "one seed"
        return f"{self.number(digits)}, {won}"


def difference(ours, theirs, lower_is_better=True):
    """The difference of {seed: value} and {seed: value}; None if they have no seed in common."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    half_width = math.nan
    if len(seeds) > 1:
        half_width = (
            t_quantile(len(seeds) - 1) * statistics.stdev(differences) / math.sqrt(len(seeds))
        )
    won = sum((one < 0) == lower_is_better and one != 0 for one in differences)
    return Difference(statistics.fmean(differences), half_width, won, len(seeds))
