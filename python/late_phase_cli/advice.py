"""What to do about the noise at the end of a training: from a loss, the same with SWA, and the course of the loss.

`latephase advise` has the numbers of runs (advice_runs.py), `late_phase.keras.advise` those of its caller: hence no TensorFlow
here. The law is noise_law.py's; what was seen in recorded runs is in outcomes.json, which
`python -m tools.develop.outcomes --write` makes from docs/results.
"""

import dataclasses
import json
import math
import pathlib
import statistics

from late_phase_cli import noise_law, paired

# Fewer samples than this leave a good part of the noise in their average.
FEW_SAMPLES = 5
# A fall by a smaller share of the loss, in a whole late phase, is none worth waiting for.
WORTH = 0.002
# Noise that is a smaller share of the loss is not told from none by a single seed.
TOLD = 0.0005


@dataclasses.dataclass(frozen=True)
class Measured:
    """A network trained at a constant rate, without members; a value for each seed."""

    losses: list
    swa_losses: list
    members: int  # K of the treatment in question
    late_epochs: float = None  # its length
    end: float = None  # epochs of the training
    trends: list = ()  # noise_law.Trend of each seed, or None
    swa_samples: int = None
    optimizer: str = "adam"  # or "sgd"


@dataclasses.dataclass(frozen=True)
class Advice:
    """What the numbers say; str() of it is all sentences, a line each."""

    excess: float  # noise: loss less loss with SWA
    excess_error: float  # half of its 95 % interval; NaN for one seed
    fall: float  # of the loss in a further late phase, at the trend; None: not known
    on_plateau: bool  # None: not known
    accumulated: float  # loss by the law; None for SGD
    progress_lost: float  # what slower steps would cost; None: not known
    choice: str  # "train longer", "SWA", "SWA and a late phase" or "nothing"
    findings: tuple = ()  # sentences about the run
    evidence: tuple = ()  # sentences about recorded runs
    recommendation: str = ""

    def __str__(self):
        last = f"Recommendation: {self.recommendation}"
        return "\n".join([*self.findings, *self.evidence, last])


def outcomes():
    """What was seen in recorded runs: a list of dictionaries."""
    return json.loads(pathlib.Path(__file__).with_name("outcomes.json").read_text("utf-8"))


def is_plateau(excess, fall):
    """Where there is more noise to remove than progress to lose."""
    return excess > 0 and fall < excess


def fall_ahead(trends, end, late_epochs):
    """Mean over the seeds of how far the loss would fall in `late_epochs` more epochs."""
    return max(0.0, statistics.fmean(one.fall(end, end + late_epochs) for one in trends))


def advise(measured, recorded=None):
    """The advice on a network. `recorded`: outcomes(), unless others are given."""
    recorded = outcomes() if recorded is None else recorded
    sgd = measured.optimizer == "sgd"
    loss, swa = statistics.fmean(measured.losses), statistics.fmean(measured.swa_losses)
    noise = paired.difference(
        dict(enumerate(measured.losses)), dict(enumerate(measured.swa_losses))
    )
    fall = lost = plateau = None
    if measured.trends and None not in measured.trends and not sgd:
        fall = fall_ahead(measured.trends, measured.end, measured.late_epochs)
        start = measured.end - measured.late_epochs
        lost = max(
            0.0,
            statistics.fmean(
                noise_law.progress_lost(
                    one, start, measured.late_epochs, math.sqrt(measured.members)
                )
                for one in measured.trends
            ),
        )
        plateau = is_plateau(noise.mean, fall)
    # Several seeds say how certain the noise is, one does not.
    clear = noise.mean > (TOLD * abs(loss) if math.isnan(noise.half_width) else noise.half_width)
    floor = swa if clear else loss
    accumulated = None if sgd else noise_law.accumulated(loss, floor, measured.members)
    if plateau is False and fall > WORTH * abs(loss):
        choice = "train longer"
    elif not clear:
        choice = "nothing"
    elif not sgd and plateau is not None and members_help(recorded):
        choice = "SWA and a late phase"
    else:
        choice = "SWA"
    advice = Advice(noise.mean, noise.half_width, fall, plateau, accumulated, lost, choice)
    findings = [
        *_noise_sentences(measured, advice, loss, swa, clear),
        *([_PLATEAU_OF_SGD] if sgd else _plateau_sentences(measured, advice)),
        *([_LAW_OF_SGD.format(K=measured.members)] if sgd else [_law(measured, advice, clear)]),
    ]
    return dataclasses.replace(
        advice,
        findings=tuple(findings),
        evidence=tuple(evidence_sentences(recorded, "cifar" if sgd else "enwik8", plateau)),
        recommendation=_recommendation(advice, swa, measured),
    )


def _noise_sentences(measured, advice, loss, swa, clear):
    interval = "" if math.isnan(advice.excess_error) else f" ± {advice.excess_error:.4f}"
    seeds = len(measured.losses)
    change = (
        f"takes {advice.excess:.4f}{interval} off"
        if advice.excess >= 0
        else f"adds {-advice.excess:.4f}{interval}"
    )
    yield (
        f"Noise: the loss is {loss:.4f}, with SWA {swa:.4f}, which {change}"
        + (f" (mean of {seeds} seeds, 95 % interval)." if seeds > 1 else " (one seed).")
    )
    if not clear:
        yield "There is no noise in it that averaging could be seen to remove."
    if measured.swa_samples is not None and measured.swa_samples < FEW_SAMPLES:
        yield (
            f"SWA has averaged {measured.swa_samples:g} samples only, which leaves noise in the average: "
            "take samples several times an epoch (--swa-every 0.25) to see all of it."
        )


_PLATEAU_OF_SGD = (
    "Plateau: not judged, because the rate of SGD usually falls, and the loss with it."
)
_LAW_OF_SGD = (
    "Law: it is Adam's, whose steps do not grow with the gradient. For SGD, to leading order, "
    "accumulation over {K} minibatches with their sum (γ = 1) leaves the noise as it is; with their mean "
    "(γ = 1/{K}), or at a rate divided by {K}, it leaves 1/{K} of the noise at a {K}th of the speed."
)


def _plateau_sentences(measured, advice):
    if advice.fall is None:
        yield "Plateau: not known; a trend takes at least three epochs in the second half of the training."
        return
    verdict = {
        True: "less than the noise: it stands on a plateau.",
        False: "more than the noise: it does not stand on a plateau.",
    }[advice.on_plateau]
    yield (
        f"Plateau: at its own trend the loss would fall by another {advice.fall:.4f} in "
        f"{measured.late_epochs:g} more epochs, {verdict}"
    )


def _law(measured, advice, clear):
    K, when = measured.members, ""
    if measured.late_epochs is not None:
        when = f" in the last {measured.late_epochs:g} epochs"
    what = f"Law: one step per K = {K} minibatches, or a rate divided by √{K},{when} "
    lost = advice.progress_lost
    if not clear:
        cost = "" if lost is None else f"; slower steps may have cost up to {lost:.4f}"
        return f"{what}would have removed nothing{cost}."
    text = f"{what}would have left 1/√{K} of the noise: {advice.accumulated:.4f}"
    if lost is not None:
        text += (
            f"; or up to {advice.accumulated + lost:.4f}, "
            f"if slower steps had cost all of the {lost:.4f} that the trend says"
        )
    return (
        f"{text}. A rate that falls to zero leaves no noise. A late phase takes one step per {K} "
        "minibatches, too; what its members add, the law does not say."
    )


def _range(values, digits=3):
    low, high = (f"{value:+.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def members_help(recorded):
    """Whether recorded late phases on a plateau were better with SWA than their networks with SWA: on the mean, and mostly."""
    found = [
        one["late_phase"]["swa"]
        for one in recorded
        if one["program"] == "enwik8" and one["plateau"] and "late_phase" in one
    ]
    return (
        bool(found)
        and statistics.fmean(found) < 0
        and 3 * sum(value < 0 for value in found) >= 2 * len(found)
    )


def evidence_sentences(recorded, program, plateau):
    """What recorded runs of the same kind show."""
    mine = [one for one in recorded if one["program"] == program]
    if program == "cifar":
        accuracies = [one["late_phase"]["collapsed"] for one in mine]
        if not mine:
            return
        yield (
            f"Recorded: on {len(mine)} image networks trained by SGD, a late phase changed the test accuracy by "
            f"{_range(accuracies, 2)} points."
        )
        return
    for kind in (True, False) if plateau is None else (plateau,):
        of_kind = [one for one in mine if one["plateau"] == kind]
        where = "on a plateau" if kind else "not on a plateau"
        if not of_kind:
            yield f"Recorded: no network {where} yet."
        for name, text in (
            ("late_phase", "a late phase changed the loss by"),
            ("accumulation", "accumulation changed it by"),
            ("members_add", "members added to accumulation"),
        ):
            found = [one[name] for one in of_kind if name in one]
            if found:
                yield (
                    f"Recorded: {where}, {text} {_range([one['collapsed'] for one in found])}, with SWA by "
                    f"{_range([one['swa'] for one in found])} bits per character "
                    f"({len(found)} setting{'s' * (len(found) > 1)})."
                )


def _recommendation(advice, swa, measured):
    if advice.choice == "train longer":
        if advice.excess > 0:
            return (
                f"train longer before a late phase, accumulation or a lower rate; what SWA has averaged ({swa:.4f}) "
                "costs nothing and may be used meanwhile."
            )
        return "train longer: there is no noise to average away yet, and slower steps would cost progress."
    if advice.choice == "nothing":
        return "leave it as it is: there is no noise to average away."
    if advice.choice == "SWA and a late phase":
        return (
            f"a late phase with {measured.members} members, and SWA on top: recorded runs on a plateau were better with "
            f"both than with SWA alone. Without another training, use what SWA has averaged ({swa:.4f})."
        )
    if measured.optimizer == "sgd":
        return (
            f"use what SWA has averaged ({swa:.4f}), or let the rate fall to almost nothing: both remove the noise. "
            "A late phase must be tried."
        )
    return (
        f"use what SWA has averaged ({swa:.4f}): it takes more of the noise away than accumulation, a late phase or a "
        f"lower rate would by the law ({advice.accumulated:.4f}), and no training is slowed down."
    )
