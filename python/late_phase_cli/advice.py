"""What to do about the noise at the end of a training: from its loss, the loss with SWA, and the
course of the loss.

`latephase advise` uses the numbers of runs (advice_runs.py), `late_phase.keras.advise` those of its
caller, so there is no TensorFlow here. The law is noise_law.py's; what recorded runs have shown is
in outcomes.json, which `python -m tools.develop.outcomes --write` makes from docs/results.
"""

import dataclasses
import json
import math
import pathlib
import statistics

from late_phase_cli import noise_law, paired

# Fewer samples than this leave a good part of the noise in their average.
FEW_SAMPLES = 5
# A smaller fall of the loss, as a share of it, over a whole late phase is not worth waiting for.
WORTH = 0.002
# With a seed or two, noise that is a smaller share of the loss cannot be told from none.
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
    """What the numbers say; str() gives all sentences, one per line."""

    excess: float  # noise: loss minus loss with SWA
    excess_error: float  # half of its 95 % interval; NaN for one seed
    fall: float  # of the loss in another late phase, at the trend; None: not known
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
    """What recorded runs have shown: a list of dictionaries."""
    return json.loads(pathlib.Path(__file__).with_name("outcomes.json").read_text("utf-8"))


# The stages of a run, by its noise and by the fall still ahead of it.
QUIET, FALLING, PLATEAU = "quiet", "falling", "plateau"
_STAGES = {
    QUIET: "without noise",
    FALLING: "with noise, but not on a plateau",
    PLATEAU: "on a plateau",
}
# This many recorded runs are needed before they decide.
_SEEDS = 3


def is_told(noises, loss):
    """Whether there is noise at all, by the noise of each seed: three or more say how certain it
    is.
    """
    noise = paired.difference(dict(enumerate(noises)), dict.fromkeys(range(len(noises)), 0.0))
    if len(noises) < 3:
        return min(noises) > TOLD * abs(loss)
    return noise.mean > noise.half_width


def stage_of(excess, fall, told):
    """On a plateau there is more noise to remove than progress to lose."""
    if not told:
        return QUIET
    return PLATEAU if fall < excess else FALLING


def fall_ahead(trends, end, late_epochs):
    """How far the loss would fall in `late_epochs` more epochs: the mean over the seeds."""
    return max(0.0, statistics.fmean(one.fall(end, end + late_epochs) for one in trends))


def advise(measured, recorded=None):
    """The advice for a network. `recorded`: outcomes(), unless others are given."""
    recorded = outcomes() if recorded is None else recorded
    sgd = measured.optimizer == "sgd"
    loss, swa = statistics.fmean(measured.losses), statistics.fmean(measured.swa_losses)
    noise = paired.difference(
        dict(enumerate(measured.losses)), dict(enumerate(measured.swa_losses))
    )
    told = is_told([x - y for x, y in zip(measured.losses, measured.swa_losses)], loss)
    fall = lost = None
    stage = None if told else QUIET
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
        stage = stage_of(noise.mean, fall, told)
    accumulated = (
        None if sgd else noise_law.accumulated(loss, swa if told else loss, measured.members)
    )
    if not sgd and stage in (FALLING, PLATEAU) and members_help(recorded, stage):
        choice = "SWA and a late phase"
    elif fall is not None and stage != PLATEAU and fall > WORTH * abs(loss):
        choice = "train longer"
    else:
        choice = "SWA" if told else "nothing"
    plateau = None
    if fall is not None:
        plateau = stage == PLATEAU or (stage == QUIET and fall <= WORTH * abs(loss))
    advice = Advice(noise.mean, noise.half_width, fall, plateau, accumulated, lost, choice)
    findings = [
        *_noise_sentences(measured, advice, loss, swa, told),
        _PLATEAU_OF_SGD if sgd else _plateau(measured, advice, told),
        _LAW_OF_SGD.format(K=measured.members) if sgd else _law(measured, advice, told),
    ]
    return dataclasses.replace(
        advice,
        findings=tuple(findings),
        evidence=tuple(evidence_sentences(recorded, "cifar" if sgd else "enwik8", stage)),
        recommendation=_recommendation(advice, swa, measured),
    )


def _noise_sentences(measured, advice, loss, swa, told):
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
    if not told:
        yield "Averaging removes no noise that could be told from chance."
    if measured.swa_samples is not None and measured.swa_samples < FEW_SAMPLES:
        yield (
            f"SWA has averaged only {measured.swa_samples:g} samples, which leaves noise in the "
            "average; more samples, several per epoch, would show all of it."
        )


_PLATEAU_OF_SGD = (
    "Plateau: not judged, because the rate of SGD usually falls, and the loss with it."
)
_LAW_OF_SGD = (
    "Law: it is Adam's, whose steps do not grow with the gradient. For SGD, to leading order, "
    "accumulation over {K} minibatches with their sum (γ = 1) leaves the noise as it is; with "
    "their mean (γ = 1/{K}), or at a rate divided by {K}, it leaves 1/{K} of the noise at 1/{K} "
    "of the speed."
)


def _plateau(measured, advice, told):
    if advice.fall is None:
        return (
            "Plateau: not known; a trend needs at least three epochs in the second half of the "
            "training."
        )
    size = ("less" if advice.on_plateau else "more") + " than the noise"
    if not told:
        size = "which is next to nothing" if advice.on_plateau else "which is worth waiting for"
    verdict = "is" if advice.on_plateau else "is not"
    return (
        f"Plateau: at its own trend the loss would fall by another {advice.fall:.4f} in "
        f"{measured.late_epochs:g} more epochs, {size}: it {verdict} on a plateau."
    )


def _law(measured, advice, told):
    K, when = measured.members, ""
    if measured.late_epochs is not None:
        when = f" in the last {measured.late_epochs:g} epochs"
    what = f"Law: one step per K = {K} minibatches, or a rate divided by √{K},{when} "
    lost = advice.progress_lost
    if not told:
        cost = "" if lost is None else f"; slower steps may have cost up to {lost:.4f}"
        return f"{what}would have removed nothing{cost}."
    text = f"{what}would have left 1/√{K} of the noise: {advice.accumulated:.4f}"
    if lost is not None and f"{lost:.4f}" != "0.0000":
        text += (
            f"; or up to {advice.accumulated + lost:.4f}, "
            f"if slower steps had cost all of the {lost:.4f} that the trend predicts"
        )
    return (
        f"{text}. A rate that falls to zero leaves no noise. A late phase takes one step per {K} "
        "minibatches, too; the law does not say what its members add."
    )


def _range(values, digits=3):
    low, high = (f"{value:+.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def members_help(recorded, stage):
    """Whether recorded late phases of this stage, with SWA, beat their networks with SWA: on
    average, and in most cases.
    """
    found = [
        one
        for one in recorded
        if one["program"] == "enwik8" and one["stage"] == stage and "late_phase" in one
    ]
    changes = [one["late_phase"]["swa"] for one in found]
    return (
        sum(one["seeds"] for one in found) >= _SEEDS
        and statistics.fmean(changes) < 0
        and 3 * sum(change < 0 for change in changes) >= 2 * len(changes)
    )


def evidence_sentences(recorded, program, stage):
    """What recorded runs of the same stage show; of all stages if it is not known."""
    mine = [one for one in recorded if one["program"] == program]
    if program == "cifar":
        accuracies = [one["late_phase"]["collapsed"] for one in mine]
        if mine:
            yield (
                f"Recorded: on {len(mine)} image networks trained by SGD, a late phase changed "
                f"the test accuracy by {_range(accuracies, 2)} points."
            )
        return
    for one_stage in _STAGES if stage is None else (stage,):
        of_stage = [one for one in mine if one["stage"] == one_stage]
        if not of_stage:
            yield f"Recorded: no network {_STAGES[one_stage]} yet."
        for name, text in (
            ("late_phase", "a late phase changed the test loss by"),
            ("accumulation", "accumulation changed it by"),
            ("members_add", "members added to accumulation"),
        ):
            found = [one for one in of_stage if name in one]
            if found:
                seeds = sum(one["seeds"] for one in found)
                yield (
                    f"Recorded: {_STAGES[one_stage]}, {text} "
                    f"{_range([one[name]['collapsed'] for one in found])}, with SWA by "
                    f"{_range([one[name]['swa'] for one in found])} bits per character "
                    f"({len(found)} setting{'s' * (len(found) > 1)}, {seeds} "
                    f"seed{'s' * (seeds > 1)} in all)."
                )


def _recommendation(advice, swa, measured):
    if advice.choice == "train longer":
        if advice.excess > 0:
            return (
                "train longer before trying a late phase, accumulation or a lower rate; the SWA "
                f"average ({swa:.4f}) costs nothing, and can be used in the meantime."
            )
        return (
            "train longer: there is no noise to average away yet, and slower steps would cost "
            "progress."
        )
    if advice.choice == "nothing":
        return "leave it as it is: there is no noise to average away."
    if advice.choice == "SWA and a late phase":
        return (
            f"a late phase with {measured.members} members, and SWA on top: recorded runs like "
            "this one were better with both than with SWA alone. Without training again, use the "
            f"SWA average ({swa:.4f})."
        )
    if measured.optimizer == "sgd":
        return (
            f"use the SWA average ({swa:.4f}), or let the rate fall to almost zero: both remove "
            "the noise. Only a trial can tell whether a late phase helps."
        )
    return (
        f"use the SWA average ({swa:.4f}): it removes more of the noise than accumulation, a late "
        f"phase or a lower rate would by the law ({advice.accumulated:.4f}), and it does not slow "
        "down training."
    )
