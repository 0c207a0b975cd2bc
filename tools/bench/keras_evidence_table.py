"""What a record of tools/bench/keras_evidence.py shows: which settings validation chooses, and
the tables of docs/comparison.md.

Needs no TensorFlow: a record is what JSON holds.
"""

import dataclasses
import statistics

from late_phase_cli import metric_names, paired, text_table

METHODS = ("plain", "accumulation", "rate/10", "cosine", "late-phase")
# What is judged, in the order of the tables; the averages are of a method's trajectory.
ROWS = (
    "plain",
    "rate/10",
    "cosine",
    "EMA",
    "SWA",
    "accumulation",
    "accumulation + SWA",
    "late-phase",
    "late-phase + SWA",
)
# What the late phase is held against: text of the difference, ours, theirs.
COMPARED = (
    ("late-phase − plain", "late-phase", "plain"),
    ("late-phase − accumulation: what the members add", "late-phase", "accumulation"),
    (
        "late-phase + SWA − accumulation + SWA: what they add with SWA",
        "late-phase + SWA",
        "accumulation + SWA",
    ),
    ("late-phase + SWA − SWA", "late-phase + SWA", "SWA"),
    ("late-phase + SWA − EMA", "late-phase + SWA", "EMA"),
    ("late-phase + SWA − cosine", "late-phase + SWA", "cosine"),
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One choice: a method is trained with each candidate, and the lowest mean loss of `judge`
    wins.
    """

    text: str
    method: str
    judge: str
    candidates: object  # (task, what was chosen before) -> [settings]
    names: tuple  # the settings that it chooses


STAGES = (
    Stage(
        "rate",
        "plain",
        "SWA",
        lambda task, _: [
            {"rate": rate, "ema_momentum": task["ema_momenta"][0]} for rate in task["rates"]
        ],
        ("rate",),
    ),
    Stage(
        "momentum of EMA",
        "plain",
        "EMA",
        lambda task, chosen: [
            {"rate": chosen["rate"], "ema_momentum": momentum} for momentum in task["ema_momenta"]
        ],
        ("ema_momentum",),
    ),
    Stage(
        "late phase",
        "late-phase",
        "late-phase",
        lambda task, chosen: [
            {"rate": chosen["rate"], "members": members, "sigma": sigma, "gamma": gamma}
            for members, sigma, gamma in task["late_phases"]
        ],
        ("members", "sigma", "gamma"),
    ),
)
_SETTINGS = {
    "plain": ("rate", "ema_momentum"),
    "rate/10": ("rate",),
    "cosine": ("rate",),
    "accumulation": ("rate", "members", "gamma"),
    "late-phase": ("rate", "members", "sigma", "gamma"),
}


def settings_of(method, chosen):
    return {name: chosen[name] for name in _SETTINGS[method]}


def loss_name(runs):
    """What settings are chosen by: "bpc", or "nll" of images."""
    return "bpc" if any("bpc" in metrics for metrics in runs[0]["figures"].values()) else "nll"


def values(runs, split, name, metric, settings=None):
    """{seed: value} of one thing that is judged."""
    return {
        run["seed"]: run["figures"][name][metric]
        for run in runs
        if run["split"] == split
        and name in run["figures"]
        and (settings is None or run["settings"] == settings)
    }


def tried(task, runs, stage, before):
    """[(settings, mean loss of the choosing seeds)] of a stage; `before` is what was chosen before
    it.
    """
    return [
        (
            settings,
            statistics.fmean(
                values(runs, "validation", stage.judge, loss_name(runs), settings).values()
            ),
        )
        for settings in stage.candidates(task, before)
    ]


def chosen(task, runs, until=None):
    """The settings that the validation runs choose, up to the stage `until`."""
    found = {}
    for stage in STAGES:
        if stage is until:
            break
        best, _ = min(tried(task, runs, stage, found), key=lambda pair: pair[1])
        found |= {name: best[name] for name in stage.names}
    return found


def candidates(task, runs, stage):
    return stage.candidates(task, chosen(task, runs, until=stage))


def _mean(found, digits):
    return f"{statistics.fmean(found.values()):.{digits}f}"


def _shown(record):
    """The metrics that the record has, as metric_names declares them."""
    plain = next(run for run in record["runs"] if run["split"] == "test")["figures"]["plain"]
    return [metric_names.METRICS[name] for name in plain]


def render(record):
    """The results on the test data: means over seeds, and each seed's difference from plain."""
    runs, shown = record["runs"], _shown(record)
    heads = ["test"]
    for metric in shown:
        heads += [metric.head, "minus plain"]
    rows = []
    for name in ROWS:
        row = [name]
        for metric in shown:
            ours, plain = (values(runs, "test", one, metric.name) for one in (name, "plain"))
            gain = paired.difference(ours, plain, metric.lower_is_better)
            row += [_mean(ours, metric.digits), "" if name == "plain" else gain.text(metric.digits)]
        rows.append(row)
    return text_table.render(heads, rows)


def render_differences(record):
    """What the late phase is compared with, each seed against itself."""
    rows, shown = [], _shown(record)
    for text, ours, theirs in COMPARED:
        row = [text]
        for metric in shown:
            pair = [values(record["runs"], "test", name, metric.name) for name in (ours, theirs)]
            row.append(paired.difference(*pair, metric.lower_is_better).text(metric.digits))
        rows.append(row)
    return text_table.render(["paired", *(metric.head for metric in shown)], rows)


def render_choice(record):
    """Which settings were tried on validation, and which were chosen."""
    task, runs, rows, found = record["task"], record["runs"], [], {}
    for stage in STAGES:
        losses = tried(task, runs, stage, found)
        best = min(losses, key=lambda pair: pair[1])[0]
        for settings, loss in losses:
            text = ", ".join(f"{_TEXT[name]} {settings[name]:g}" for name in stage.names)
            mark = "**" if settings == best else ""
            rows.append([stage.text, f"{mark}{text}{mark}", stage.judge, f"{loss:.4f}"])
        found |= {name: best[name] for name in stage.names}
    heads = [
        "choice",
        "tried",
        "judged by",
        f"validation {metric_names.METRICS[loss_name(runs)].head}",
    ]
    return text_table.render(heads, rows)


_TEXT = {"rate": "rate", "ema_momentum": "momentum", "members": "K", "sigma": "σ0", "gamma": "γ"}
