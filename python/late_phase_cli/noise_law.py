"""The noise law: what rarer steps, or smaller ones, take off the loss of a network that Adam trains
at a constant rate.

Around a minimum with curvature h, Adam at the rate η turns the noise s of a minibatch's gradient
into a stationary variance η s / (2 h) of the weight, and so into an excess loss of η s / 4 per
weight. One update for K minibatches sees their mean, whose noise is s / √K: the excess falls by a
factor of √K. A rate of η / √K does the same. SWA removes nearly all of the excess, so it can be
read off a run: loss − loss with SWA.

The law is about noise alone. It holds on a plateau; where the loss still falls, rarer steps also
make it fall more slowly (`progress_lost`). It says nothing about members, whose own noise their
mean divides by K, nor about SGD, whose steps grow with the sum of gradients.
"""

import dataclasses
import math

import numpy

EXPONENT = 0.5


def accumulated(loss, with_swa, members, exponent=EXPONENT):
    """The loss after accumulation over `members` minibatches, or with the rate divided by their
    root.
    """
    return loss - (1 - members**-exponent) * (loss - with_swa)


@dataclasses.dataclass(frozen=True)
class Trend:
    """loss = level − slope · ln(epoch): the training loss in the second half of the epochs."""

    level: float
    slope: float

    def fall(self, start, end):
        """By how much the loss falls between two epochs at the network's own speed."""
        return self.slope * math.log(end / start)


def trend(epoch_losses):
    """The trend of {epoch: mean training loss of that epoch}, epochs counted from 1; None with
    fewer than three in the second half.
    """
    last = max(epoch_losses, default=0)
    points = [(math.log(epoch), loss) for epoch, loss in epoch_losses.items() if epoch > last / 2]
    if len(points) < 3:
        return None
    slope, level = numpy.polyfit(*zip(*points), 1)
    return Trend(level, -slope)


def progress_lost(of, now, epochs, slowdown):
    """How much less `epochs` more epochs from epoch `now` on bring if weights move `slowdown` times
    as slowly.
    """
    return of.fall(now, now + epochs) - of.fall(now, now + epochs / slowdown)


@dataclasses.dataclass(frozen=True)
class Fit:
    """loss = floor of the seed + excess · members**−exponent."""

    exponent: float
    exponent_error: float  # standard error
    excess: float
    floors: dict  # by seed
    rms: float  # of the residuals


def fit(points):
    """The fit of {(seed, members): loss}; every seed has its own floor. Needs at least two more
    points than parameters.
    """
    seeds = sorted({seed for seed, _ in points})
    members = numpy.array([members for _, members in points], float)
    losses = numpy.array(list(points.values()), float)
    if len(points) < len(seeds) + 4 or len(set(members)) < 3:
        raise ValueError(
            f"a fit needs at least {len(seeds) + 4} points at three values of members or more. "
            f"Received: {len(points)} points"
        )
    of_seed = numpy.array([[seed == other for other in seeds] for seed, _ in points], float)

    def linear(exponent):
        """Floors and excess for a given exponent, and the residuals."""
        design = numpy.column_stack([of_seed, members**-exponent])
        solution = numpy.linalg.lstsq(design, losses, rcond=None)[0]
        return solution, losses - design @ solution

    # The sum of squares has one minimum over the exponent: a scan, then smaller and smaller steps
    # around it.
    low, high = 0.01, 5.0
    for _ in range(6):
        grid = numpy.linspace(low, high, 41)
        best = grid[numpy.argmin([numpy.square(linear(exponent)[1]).sum() for exponent in grid])]
        step = grid[1] - grid[0]
        low, high = max(best - step, 1e-4), best + step
    solution, residuals = linear(best)
    jacobian = numpy.column_stack(
        [of_seed, members**-best, -solution[-1] * members**-best * numpy.log(members)]
    )
    variance = numpy.square(residuals).sum() / (len(points) - jacobian.shape[1])
    covariance = variance * numpy.linalg.pinv(jacobian.T @ jacobian)
    return Fit(
        float(best),
        math.sqrt(covariance[-1, -1]),
        float(solution[-1]),
        dict(zip(seeds, solution[:-1].tolist())),
        float(numpy.sqrt(numpy.square(residuals).mean())),
    )
