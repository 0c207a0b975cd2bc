"""Draws nqp.png from the results.json of nqp."""

import os

from late_phase_cli import files, plot_style
from matplotlib import ticker  # isort: skip (plot_style says what to do if there is no matplotlib)


def column(rows, name):
    return [row[name] for row in rows]


def errors(rows, name):
    return [row[name] or 0 for row in rows]


def draw_formula(axes, rows, name, colour, label):
    """A line through what theory says of each K."""
    values = column(rows, name)
    axes.plot(column(rows, "members"), values, "-", color=colour, linewidth=1.2, label=label)


def draw_one_over_k(axes, rows, name, label):
    """Where 1/K would lead from the first value on."""
    members = column(rows, "members")
    values = [rows[0][name] * members[0] / k for k in members]
    axes.plot(members, values, ":", color=plot_style.GREY, label=label)


def draw_simulated(axes, rows, name, error, label, **style):
    """Points with their standard errors."""
    axes.errorbar(
        column(rows, "members"),
        column(rows, name),
        yerr=errors(rows, error),
        elinewidth=1,
        label=label,
        **style,
    )


def draw_late_phase(axes, rows, markersize):
    draw_simulated(
        axes,
        rows,
        "late_phase",
        "late_phase_error",
        "late-phase weights, simulated",
        fmt="o",
        color=plot_style.BLUE,
        markersize=markersize,
        capsize=2,
    )


def draw_note(axes, text):
    axes.text(0.04, 0.06, text, transform=axes.transAxes, fontsize=8.5, color="#333333")


def draw_steady_state(axes, results):
    rows = results["rows"]
    draw_one_over_k(axes, rows, "late_phase_theory", "1/K line, late-phase formula")
    draw_formula(axes, rows, "closed_form", plot_style.ORANGE, "K models, closed form")
    draw_simulated(
        axes,
        rows,
        "full_ensemble",
        "closed_form_error",
        "K models, simulated",
        fmt="s",
        color=plot_style.ORANGE,
        markersize=9,
        markerfacecolor="white",
        capsize=3,
    )
    draw_late_phase(axes, rows, markersize=4)
    axes.set_title(
        f"Steady state: learning rate {results['lr']:g}, {results['iterations']:,} updates",
        fontsize=10,
    )
    if results["late_phase_slope"] is not None:
        draw_note(
            axes,
            f"slopes of log loss over log K\nlate-phase {results['late_phase_slope']:.2f}, K "
            f"models {results['full_ensemble_slope']:.2f}",
        )


def draw_drift(axes, results):
    rows = results["drift"]
    draw_one_over_k(axes, rows, "long_run_theory", "1/K line")
    draw_formula(axes, rows, "long_run_theory", plot_style.BLUE, "long-run formula")
    draw_late_phase(axes, rows, markersize=5)
    axes.set_title(
        f"Drifted: learning rate {results['drift_lr']:g}, {results['drift_iterations']:,} updates",
        fontsize=10,
    )
    if results["drift_slope"] is not None:
        draw_note(axes, f"slope {results['drift_slope']:.2f}")


def draw(results):
    panels = [draw_steady_state] + ([draw_drift] if results["drift"] else [])
    figure, all_axes = plot_style.pyplot.subplots(
        1, len(panels), figsize=(5.4 * len(panels), 4.2), squeeze=False, layout="constrained"
    )
    members = column(results["rows"], "members")
    for axes, panel in zip(all_axes[0], panels):
        axes.set_xscale("log")
        axes.set_yscale("log")
        panel(axes, results)
        axes.set_xticks(members, [str(k) for k in members])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel("members K")
        plot_style.finish_axes(axes)
        axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    all_axes[0][0].set_ylabel("loss of the mean model")
    return figure


def main(folder):
    plot_style.save(
        draw(files.read_json(os.path.join(folder, "results.json"))), os.path.join(folder, "nqp.png")
    )
    return [f"{folder}/nqp.png"]
