"""The noise law and paired differences, against simulation and SciPy."""

import math

import numpy
import pytest
import scipy.stats
from late_phase_cli import noise_law, paired


def simulated_excess(members, rate=0.02, steps=400_000):
    """Excess loss of 200 weights under Adam's normalised steps around a minimum, one update per
    `members` minibatches.
    """
    generator = numpy.random.default_rng(members)
    curvature = numpy.geomspace(0.1, 1, 200)
    # Dominated by noise of size 1, the second moment is the noise's variance: 1 / members for the
    # mean of a cycle.
    normalised = rate * math.sqrt(members)
    x, total, counted = numpy.zeros(200), 0.0, 0
    for step in range(steps // members // 20):
        x = x - normalised * (curvature * x + generator.standard_normal(200) / math.sqrt(members))
        if step * members > steps / 40:
            total, counted = total + 0.5 * (curvature * x * x).sum(), counted + 1
    return total / counted


def test_accumulation_leaves_one_over_root_k_of_the_excess():
    one, ten = simulated_excess(1), simulated_excess(10)
    assert ten / one == pytest.approx(10**-0.5, rel=0.15)
    assert noise_law.accumulated(3 + one, 3, 10) == pytest.approx(3 + ten, rel=0.15 * one / 3)


def test_the_papers_row():
    # Rank1: 1.663, with SWA 1.616; late-phase, 1.633.
    assert noise_law.accumulated(1.663, 1.616, 10) == pytest.approx(1.631, abs=5e-4)
    assert noise_law.accumulated(1.663, 1.616, 1) == 1.663


def test_a_fit_finds_floor_and_exponent():
    generator = numpy.random.default_rng(0)
    points = {
        (seed, members): 2.6
        + 0.01 * seed
        + 0.05 * members**-0.5
        + 1e-4 * generator.standard_normal()
        for seed in range(3)
        for members in (1, 2, 5, 10, 20, 50)
    }
    fit = noise_law.fit(points)
    assert (
        fit.exponent == pytest.approx(0.5, abs=3 * fit.exponent_error)
        and 1e-4 < fit.exponent_error < 0.02
    )
    assert (
        fit.excess == pytest.approx(0.05, abs=1e-3)
        and fit.floors[2] == pytest.approx(2.62, abs=1e-3)
        and fit.rms < 2e-4
    )
    with pytest.raises(
        ValueError, match="at least 5 points at three values of members or more. Received: 2 points"
    ):
        noise_law.fit({(0, 1): 1.0, (0, 2): 0.9})


def test_the_error_of_the_exponent_is_what_repetitions_show():
    generator = numpy.random.default_rng(1)

    def once():
        return noise_law.fit(
            {
                (0, members): 1 + 0.1 * members**-0.5 + 1e-3 * generator.standard_normal()
                for members in (1, 2, 3, 5, 10, 20, 50)
            }
        )

    fits = [once() for _ in range(200)]
    spread = numpy.std([fit.exponent for fit in fits])
    assert numpy.median([fit.exponent_error for fit in fits]) == pytest.approx(spread, rel=0.35)


def test_progress_that_slower_steps_lose():
    trend = noise_law.trend({epoch: 3 - 0.2 * math.log(epoch) for epoch in range(1, 13)})
    assert trend.slope == pytest.approx(0.2) and trend.level == pytest.approx(3)
    assert trend.fall(10, 20) == pytest.approx(0.2 * math.log(2))
    assert noise_law.progress_lost(trend, 10, 5, 10) == pytest.approx(
        0.2 * (math.log(1.5) - math.log(1.05))
    )
    assert noise_law.progress_lost(trend, 10, 5, 1) == 0
    assert noise_law.trend({1: 3.0, 2: 2.9, 3: 2.8}) is None


def test_intervals_are_students():
    for freedom in (1, 2, 4, 10, 30, 31, 60, 500):
        assert paired.t_quantile(freedom) == pytest.approx(
            scipy.stats.t.ppf(0.975, freedom), rel=2e-3
        )
    ours, theirs = {0: 1.0, 1: 1.1, 2: 1.3, 7: 9.0}, {0: 1.2, 1: 1.2, 2: 1.6, 5: 0.0}
    found = paired.difference(ours, theirs)
    interval = scipy.stats.ttest_rel([1.0, 1.1, 1.3], [1.2, 1.2, 1.6]).confidence_interval()
    assert found.mean == pytest.approx(-0.2) and found.half_width == pytest.approx(
        (interval.high - interval.low) / 2, rel=1e-3
    )
    assert (found.won, found.seeds, found.text(2)) == (3, 3, "-0.20 ± 0.25, better in 3 of 3 seeds")
    assert paired.difference(ours, theirs, lower_is_better=False).won == 0
    assert paired.difference({0: 1.0}, {0: 1.5}).text() == "-0.500, one seed"
    assert paired.difference({0: 1.0}, {1: 1.5}) is None
