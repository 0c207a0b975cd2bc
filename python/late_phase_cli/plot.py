"""Draws curves.png of a training run, or of a folder of several.

One run (config.toml, metrics.jsonl): training and validation, or test where there is no validation
part, over the epochs, with the start of the late phase and of SWA. Several (RUN/MODEL or
RUN/seed-N/MODEL): the evaluations of all models, the mean over the seeds with its spread, in
RUN/curves.png; and each run's own.

Lines of kind "members" make a second panel below a run's curves; a run without them has none. They
have `step`, `epoch`, and
- member_spread: the members' root-mean-square distance from their mean, relative to the mean's root
  mean square, over all late-phase weights;
- gradient_agreement: the mean cosine between the base gradients of two members of a cycle; 1 if
  they all agree.
A line may have either or both; further keys, such as "member_spread/NAME" of a single weight, are
not drawn.
"""

import collections
import dataclasses
import math
import os

import numpy

from late_phase_cli import plot_style, run_files
from late_phase_cli.errors import UserError
from late_phase_cli.run_files import METRICS, Series, series

# Keys of lines of kind "members", and their names in the second panel.
MEMBERS = {
    "member_spread": "spread of the members",
    "gradient_agreement": "agreement of their gradients",
}
COLOURS = {"base": plot_style.GREY, "rank1": plot_style.ORANGE, "late-phase": plot_style.BLUE}
OTHER_COLOURS = ["#2e8b57", "#8b4f9f", "#b03a48", "#8a7a1f"]


@dataclasses.dataclass
class Run:
    folder: str
    program: str
    model: str
    seed: int
    starts: dict  # the name of a phase -> the epoch in which it starts
    training: Series
    split: str  # of the evaluations: validation, or test for a run without
    evaluations: dict  # "collapsed", "swa" -> Series; those that have values
    members: dict = dataclasses.field(default_factory=dict)  # key of MEMBERS -> Series, likewise


class PlotError(UserError):
    """What is wrong with the given folder."""


def load_run(folder):
    config = run_files.read_config(folder)
    path = os.path.join(folder, "metrics.jsonl")
    rows = run_files.read_metrics(path)
    key = METRICS[config["program"]].name
    try:
        training = series([row for row in rows if row["kind"] == "train"], key)
        evaluations = [row for row in rows if row["kind"] == "evaluation"]
        split = (
            "validation"
            if not evaluations or any(row["split"] == "validation" for row in evaluations)
            else "test"
        )
        evaluations = {
            weights: series(
                [row for row in evaluations if row["weights"] == weights and row["split"] == split],
                key,
            )
            for weights in ("collapsed", "swa")
        }
        of_members = [row for row in rows if row["kind"] == "members"]
        members = {name: series(of_members, name) for name in MEMBERS}
    except KeyError as error:
        raise PlotError(
            f"every line of metrics.jsonl must have {error}. Received: {path}"
        ) from error
    evaluations = {weights: one for weights, one in evaluations.items() if one.values}

    starts = {"late phase": config["t0"]} if config["model"] == "late-phase" else {}
    if config["swa_start"] >= 0:
        starts["SWA"] = config["swa_start"]
    # A phase that the run has not reached yet would stretch the axis.
    reached = max(
        (epoch for one in (training, *evaluations.values()) for epoch in one.epochs), default=0
    )
    starts = {name: epoch for name, epoch in starts.items() if epoch < reached}
    return Run(
        folder,
        config["program"],
        config["model"],
        config["seed"],
        starts,
        training,
        split,
        evaluations,
        {name: one for name, one in members.items() if one.values},
    )


def mean_over_seeds(all_series):
    """The mean at the epochs that every seed has reached; the spread is the sample standard
    deviation.
    """
    by_epoch = collections.defaultdict(list)
    for one in all_series:
        for epoch, value in zip(one.epochs, one.values):
            by_epoch[round(epoch, 6)].append(value)
    epochs = [epoch for epoch in sorted(by_epoch) if len(by_epoch[epoch]) == len(all_series)]
    values = numpy.array([by_epoch[epoch] for epoch in epochs]).reshape(
        len(epochs), len(all_series)
    )
    spread = values.std(axis=1, ddof=1).tolist() if len(all_series) > 1 else []
    return Series(epochs, values.mean(axis=1).tolist(), spread)


def compare(runs):
    """{model: {"collapsed", "swa": mean over the seeds}}, base first."""
    by_model = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in runs:
        for weights, one in run.evaluations.items():
            by_model[run.model][weights].append(one)
    order = {model: place for place, model in enumerate(COLOURS)}
    return {
        model: {weights: mean_over_seeds(found) for weights, found in by_model[model].items()}
        for model in sorted(by_model, key=lambda model: (order.get(model, len(order)), model))
    }


def value_range(all_series, lower_is_better):
    """Limits of the axis. The worst tenth of each curve, the start of training, is left out,
    because everything later would look alike beside it; the end of a curve never is.
    """
    sign = 1 if lower_is_better else -1
    best, worst = [], []
    for one in all_series:
        values = sorted(sign * value for value in one.values if math.isfinite(value))
        if values:
            last = next(sign * value for value in reversed(one.values) if math.isfinite(value))
            best.append(values[0])
            worst.append(max(values[len(values) - 1 - len(values) // 10], last))
    if not best:
        return None
    low, high = sorted([sign * min(best), sign * max(worst)])
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1
    return low - margin, high + margin


def draw_starts(axes, starts):
    names = collections.defaultdict(list)
    for name, epoch in sorted(starts):
        names[epoch].append(name)
    for epoch in names:
        axes.axvline(epoch, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
        axes.text(
            epoch,
            0.02,
            " " + ", ".join(names[epoch]),
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="left",
            va="bottom",
            fontsize=8,
            color="#666666",
        )


def new_figure(title, metric, panels=1):
    """The axes of the metric, and those of the second panel if there are two."""
    figure, axes = plot_style.pyplot.subplots(
        panels,
        figsize=(6.4, 4.2 if panels == 1 else 5.8),
        height_ratios=[3, 1.2][:panels],
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    axes = list(axes[:, 0])
    axes[0].set_title(title, fontsize=10)
    axes[-1].set_xlabel("epoch")
    axes[0].set_ylabel(metric.label)
    return figure, *axes


def finish(axes, drawn, metric, starts):
    limits = value_range(drawn, metric.lower_is_better)
    if limits:
        axes.set_ylim(*limits)
    axes.set_xlim(left=0)
    draw_starts(axes, starts)
    plot_style.finish_axes(axes)
    # Below: no place inside is free in every run.
    axes.figure.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=3)


def draw_members(axes, members):
    """Spread on the left axis; agreement, which is between -1 and 1, on the right one."""
    sides = {name: axes.twinx() if name == "gradient_agreement" else axes for name in members}
    if "member_spread" not in members:
        axes.set_yticks([])
    for name, colour in zip(MEMBERS, (plot_style.BLUE, plot_style.ORANGE)):
        if name in members:
            one = members[name]
            sides[name].plot(
                one.epochs, one.values, color=colour, linewidth=1.5, marker=".", markersize=4
            )
            sides[name].set_ylabel(MEMBERS[name], color=colour, fontsize=8)
            sides[name].tick_params(axis="y", colors=colour, labelsize=8)
            sides[name].spines["top"].set_visible(False)
    plot_style.finish_axes(axes)


def draw_evaluations(axes, series, line, colour, label):
    style = dict(color=colour, linewidth=1.5, marker=".", markersize=4)
    axes.plot(series.epochs, series.values, line, label=label, **style)


def draw_run(run):
    if not run.training.values and not run.evaluations:
        raise PlotError(
            "metrics.jsonl must have a line to draw. "
            f"Received: {os.path.join(run.folder, 'metrics.jsonl')}"
        )
    metric, colour = METRICS[run.program], COLOURS.get(run.model, OTHER_COLOURS[0])
    title = f"{run.program}, {run.model}, seed {run.seed}"
    figure, axes, *below = new_figure(title, metric, 2 if run.members else 1)
    for panel in below:
        draw_members(panel, run.members)
    if run.training.values:
        axes.plot(
            run.training.epochs,
            run.training.values,
            color=colour,
            alpha=0.35,
            linewidth=0.8,
            label="training",
        )
    for weights, label, line in (("collapsed", run.split, "-"), ("swa", f"{run.split}, SWA", "--")):
        if weights in run.evaluations:
            draw_evaluations(axes, run.evaluations[weights], line, colour, label)
    finish(axes, [run.training, *run.evaluations.values()], metric, run.starts.items())
    return figure


def draw_comparison(runs, folder):
    programs = sorted({run.program for run in runs})
    if len(programs) != 1:
        raise PlotError(
            f"the runs of a folder must be of one program. Received: {', '.join(programs)} in "
            f"{folder}"
        )
    models = compare(runs)
    if not models:
        raise PlotError(
            "every run must have been evaluated once before they can be compared. "
            f"Received: {folder}"
        )
    metric = METRICS[programs[0]]
    seeds = len({run.seed for run in runs})
    title = f"{programs[0]}, {runs[0].split}" + (
        f", mean and standard deviation of {seeds} seeds" if seeds > 1 else f", seed {runs[0].seed}"
    )
    figure, axes = new_figure(title, metric)
    others = iter(OTHER_COLOURS * len(models))
    for model, by_weights in models.items():
        colour = COLOURS.get(model) or next(others)
        for weights, one in by_weights.items():
            label, line = (model, "-") if weights == "collapsed" else (f"{model}, SWA", "--")
            draw_evaluations(axes, one, line, colour, label)
            if one.spread:
                axes.fill_between(
                    one.epochs,
                    [value - by for value, by in zip(one.values, one.spread)],
                    [value + by for value, by in zip(one.values, one.spread)],
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
    drawn = [one for by_weights in models.values() for one in by_weights.values()]
    finish(axes, drawn, metric, {start for run in runs for start in run.starts.items()})
    return figure


def main(folder):
    """Returns the name of the plot; in a folder of several runs, each run has its own as well."""
    runs = [load_run(one) for one in run_files.find_runs(folder)]
    single = run_files.is_run(folder)
    for run in runs:
        # Among several, one may have just begun.
        if single or run.training.values or run.evaluations:
            plot_style.save(draw_run(run), os.path.join(run.folder, "curves.png"))
    if not single:
        plot_style.save(draw_comparison(runs, folder), os.path.join(folder, "curves.png"))
    return [f"{folder}/curves.png"]
