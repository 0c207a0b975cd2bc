"""The noise law compared with measurements, over many settings: tables, and a fit over K.

A setting is a network with its training; what was done to it from T0 on (accumulation, a lower
rate, a late phase) is compared with the same network, seed by seed. It does not matter which folder
a run is in, so that records of `train --model all`, of single runs and of sweeps, `sweep enwik8
--over members=1,2,5,10,20,50 --model rank1-accumulation --seeds 3`, serve alike.
"""

import collections
import dataclasses
import glob
import math
import os
import statistics

from late_phase_cli import finished_runs, noise_law, run_table, text_table

# Settings that a network without a treatment ignores, or that change no number.
_OF_TREATMENTS = (
    "members",
    "t0",
    "sigma",
    "gamma",
    "base_decay_scale",
    "freeze_base",
    "late_rate",
    "restart_cycle",
)
_OF_NO_NUMBER = ("model", "seed", "seeds", "log_every", "evaluate_every", "checkpoint_every")
# Settings that older runs do not know, with what they did.
_SINCE = {"factors": "recurrent", "optimizer": "adam"}
NAMES = {
    "accumulation": "accumulation",
    "lower-rate": "lower rate",
    "late-phase": "late phase",
    "decay": "falling rate",
}
# What the law, which is Adam's, covers: of a late phase, the rarer steps but not the members.
_LAWFUL = ("accumulation", "lower-rate", "late-phase")


def read_all(*patterns):
    """The finished runs with SWA in the folders that match the patterns."""
    folders = sorted({folder for pattern in patterns for folder in glob.glob(pattern)})
    found = []
    for folder in folders:
        for path in sorted(
            glob.glob(os.path.join(glob.escape(folder), "**", "metrics.jsonl"), recursive=True)
        ):
            run = finished_runs.read(os.path.dirname(path))
            tests = [run.loss(weights, "test") for weights in ("collapsed", "swa")]
            if run.program == "enwik8" and None not in tests:
                found.append(run)
    return found


def network_key(run):
    """What all runs of a setting have in common."""
    left_out = {*_OF_TREATMENTS, *_OF_NO_NUMBER}
    if run.network == "base":
        left_out |= {"member_learning_rate", "factors"}  # which has no factors
    if _is_adam(run):
        left_out.add("momentum")
    settings = {**_SINCE, **run.config}
    settings = {name: value for name, value in settings.items() if name not in left_out}
    return run.network, repr(sorted(settings.items()))


def _is_adam(run):
    return run.config.get("optimizer", "adam") == "adam"


def _treatment_key(run):
    names = ["t0", "members", "gamma"] + {"late-phase": ["sigma"], "lower-rate": ["late_rate"]}.get(
        run.treatment, []
    )
    restarts = run.config.get("restart_cycle", False)  # which older runs do not know
    return run.treatment, repr([run.config.get(name) for name in names]), restarts


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a treatment did to a network: pairs of runs of the same seed."""

    pairs: list  # [(run of the network, run with the treatment)]

    @property
    def treated(self):
        return self.pairs[0][1]

    @property
    def members(self):
        """K: the number of minibatches over which noise is averaged, or the K whose root a lower
        rate corresponds to.
        """
        config = self.treated.config
        if self.treated.treatment == "lower-rate" and config.get("late_rate"):
            return config["late_rate"] ** -2
        return config["members"]

    def mean(self, value):
        """The mean of value(plain, treated) over the seeds."""
        return statistics.fmean(value(*pair) for pair in self.pairs)

    def predicted(self):
        """Test loss by the law."""
        return self.mean(
            lambda plain, _: noise_law.accumulated(
                plain.loss("collapsed", "test"), plain.loss("swa", "test"), self.members
            )
        )

    def progress_lost(self):
        """What slower steps from T0 on cost, by the plain network's trend; None if that is too
        short.
        """
        trends = [plain.trend() for plain, _ in self.pairs]
        if None in trends:
            return None
        t0, end = self.treated.config["t0"], self.treated.epochs
        return statistics.fmean(
            noise_law.progress_lost(trend, t0, end - t0, math.sqrt(self.members))
            for trend in trends
        )

    def measured(self):
        return self.mean(lambda _, treated: treated.loss("collapsed", "test"))

    def difference(self, weights="collapsed"):
        """Test loss with the treatment minus that without."""
        return self.mean(
            lambda plain, treated: treated.loss(weights, "test") - plain.loss(weights, "test")
        )


def _order(one):
    """Sorts by network, small ones first, then by treatment, then by K."""
    run, names = one.treated, ("units", "train_characters", "learning_rate", "member_learning_rate")
    settings = [run.config.get(name) or 0 for name in names]
    return run.network, settings, run.treatment, run.config["t0"], one.members, run.config["sigma"]


def comparisons(runs):
    """The comparisons of all runs that have a partner."""
    plain, treated = {}, collections.defaultdict(dict)
    for run in runs:
        if not run.treatment:
            plain.setdefault((network_key(run), run.seed), run)
    for run in runs:
        partner = plain.get((network_key(run), run.seed))
        if run.treatment and partner:
            treated[network_key(run), _treatment_key(run)].setdefault(run.seed, (partner, run))
    found = [Comparison(list(pairs.values())) for pairs in treated.values()]
    return sorted(found, key=_order)


def setting_text(run):
    """ "64 units, 4M characters, 15 epochs, T0 9, rate 0.004, of u and v 0.0004" """
    config = run.config
    texts = [
        f"{config['units']} units",
        f"{(config['train_characters'] or 90_000_000) / 1e6:g}M characters",
        f"{run.epochs:g} epochs",
        f"T0 {config['t0']:g}",
        f"{'' if _is_adam(run) else 'SGD, '}rate {config['learning_rate']:g}",
    ]
    if run.network == "rank1" and config.get("member_learning_rate"):
        texts.append(f"of u and v {config['member_learning_rate']:g}")
    if run.network == "rank1" and config.get("factors") == "whole":
        texts.append("of the whole kernel")
    if run.treatment == "late-phase":
        texts.append(f"σ0 {config['sigma']:g}")
    return ", ".join(texts)


def _rms(values):
    return math.sqrt(statistics.fmean(value * value for value in values))


def render(found):
    """The law's prediction beside each comparison, as lines of Markdown; the root-mean-square
    difference by treatment.
    """
    found = [one for one in found if one.treated.treatment in _LAWFUL and _is_adam(one.treated)]
    rows, differences = [], collections.defaultdict(list)
    for one in found:
        predicted, lost, measured = one.predicted(), one.progress_lost(), one.measured()
        alone = measured - predicted
        with_progress = None if lost is None else alone - lost
        differences[one.treated.treatment].append((alone, with_progress))
        plain = [
            run_table.number([statistics.fmean(run.loss(weights, "test") for run, _ in one.pairs)])
            for weights in ("collapsed", "swa")
        ]
        rows.append(
            [
                f"{one.treated.network}: {setting_text(one.treated)}",
                NAMES[one.treated.treatment],
                f"{one.members:g}",
                str(len(one.pairs)),
                f"{plain[0]} ({plain[1]})",
                f"{measured:.3f}",
                f"{predicted:.3f}",
                f"{alone:+.3f}",
                "–" if lost is None else f"{predicted + lost:.3f}",
                "–" if lost is None else f"{with_progress:+.3f}",
            ]
        )
    heads = ["network and training", "from T0 on", "K", "seeds", "test (with SWA)", "measured"]
    heads += ["law", "off by", "law and lost progress", "off by"]
    lines = text_table.render(heads, rows)
    for treatment, its in differences.items():
        progress = [with_progress for _, with_progress in its if with_progress is not None]
        more = f"; with lost progress {_rms(progress):.3f}" if progress else ""
        lines += [
            "",
            f"Root-mean-square difference, {NAMES[treatment]}, {len(its)} "
            f"setting{'s' * (len(its) > 1)}: law {_rms([alone for alone, _ in its]):.3f}{more}.",
        ]
    return lines


@dataclasses.dataclass(frozen=True)
class KSweep:
    """Accumulation over several K on one network."""

    run: finished_runs.FinishedRun  # one of them
    points: dict  # (seed, K) -> test loss
    swa: dict  # seed -> test loss with SWA of the network without accumulation
    fit: noise_law.Fit


def k_sweeps(found):
    """Those settings among the comparisons that have enough values of K for a fit."""
    groups = collections.defaultdict(list)
    for one in found:
        if one.treated.treatment == "accumulation":
            config = one.treated.config
            key = network_key(one.treated), config["t0"], config["gamma"]
            groups[key].append(one)
    sweeps = []
    for _, mine in sorted(groups.items()):
        points, swa = {}, {}
        for one in mine:
            for plain, treated in one.pairs:
                points[plain.seed, 1] = plain.loss("collapsed", "test")
                points[plain.seed, one.members] = treated.loss("collapsed", "test")
                swa[plain.seed] = plain.loss("swa", "test")
        try:
            fit = noise_law.fit(points)
        except ValueError:  # too few
            continue
        sweeps.append(KSweep(mine[0].treated, points, swa, fit))
    return sweeps


def render_fit(sweep):
    """Test loss over K, measured, fitted and by the law, and the fitted floor and exponent."""
    seeds = sorted({seed for seed, _ in sweep.points})
    plain = statistics.fmean(sweep.points[seed, 1] for seed in seeds)
    swa = statistics.fmean(sweep.swa.values())
    rows = []
    for members in sorted({members for _, members in sweep.points}):
        mine = {seed: value for (seed, k), value in sweep.points.items() if k == members}
        floor = statistics.fmean(sweep.fit.floors[seed] for seed in mine)
        rows.append(
            [
                f"{members:g}",
                run_table.number(list(mine.values())),
                f"{floor + sweep.fit.excess * members**-sweep.fit.exponent:.3f}",
                f"{noise_law.accumulated(plain, swa, members):.3f}",
            ]
        )
    lines = text_table.render(["K", "measured", "fitted", "law"], rows)
    fit, floor = sweep.fit, statistics.fmean(sweep.fit.floors.values())
    fitted = (
        f"{floor:.3f} + {fit.excess:.3f} · K^−p, p = {fit.exponent:.2f} ± {fit.exponent_error:.2f} "
        f"(standard error; the law: 0.5), residuals {fit.rms:.4f}"
        if fit.excess > 0 and 0.05 < fit.exponent < 4
        else "no fall with K that a power of it describes"
    )
    return lines + [
        "",
        f"{sweep.run.network}: {setting_text(sweep.run)}; {len(seeds)} "
        f"seed{'s' * (len(seeds) > 1)}. Fitted: {fitted}. SWA without accumulation: {swa:.3f}.",
    ]
