"""Draws nqp.png from the results.json of nqp."""

import os

from late_phase_cli import files, plot_style
from matplotlib import ticker  # isort: skip (plot_style says what to do if there is no matplotlib)


def column(rows, name):
    return [row[name] for row in rows]


def errors(rows, name):
    return [row[name] or 0 for row in rows]


def draw_steady_state(axes, results):
    rows = results["rows"]
    members = column(rows, "members")
    axes.plot(
        members,
        [rows[0]["late_phase_theory"] / k * members[0] for k in members],
        ":",
        color=plot_style.GREY,
        label="1/K line, late-phase formula",
    )
    axes.plot(
        members,
        column(rows, "closed_form"),
        "-",
        color=plot_style.ORANGE,
        linewidth=1.2,
        label="K models, closed form",
    )
    axes.errorbar(
        members,
        column(rows, "full_ensemble"),
        yerr=errors(rows, "closed_form_error"),
        fmt="s",
        color=plot_style.ORANGE,
        markersize=9,
        markerfacecolor="white",
        elinewidth=1,
        capsize=3,
        label="K models, simulated",
    )
    axes.errorbar(
        members,
        column(rows, "late_phase"),
        yerr=errors(rows, "late_phase_error"),
        fmt="o",
        color=plot_style.BLUE,
        markersize=4,
        elinewidth=1,
        capsize=2,
        label="late-phase weights, simulated",
    )
    axes.set_title(
        f"Steady state: learning rate {results['lr']:g}, {results['iterations']:,} updates",
        fontsize=10,
    )
    if results["late_phase_slope"] is not None:
        axes.text(
            0.04,
            0.06,
            f"slopes of log loss over log K\nlate-phase {results['late_phase_slope']:.2f}, K models "
            f"{results['full_ensemble_slope']:.2f}",
            transform=axes.transAxes,
            fontsize=8.5,
            color="#333333",
        )


def draw_drift(axes, results):
    rows = results["drift"]
    members = column(rows, "members")
    axes.plot(
        members,
        [rows[0]["long_run_theory"] / k * members[0] for k in members],
        ":",
        color=plot_style.GREY,
        label="1/K line",
    )
    axes.plot(
        members,
        column(rows, "long_run_theory"),
        "-",
        color=plot_style.BLUE,
        linewidth=1.2,
        label="long-run formula",
    )
    axes.errorbar(
        members,
        column(rows, "late_phase"),
        yerr=errors(rows, "late_phase_error"),
        fmt="o",
        color=plot_style.BLUE,
        markersize=5,
        elinewidth=1,
        capsize=2,
        label="late-phase weights, simulated",
    )
    axes.set_title(
        f"Drifted: learning rate {results['drift_lr']:g}, {results['drift_iterations']:,} updates",
        fontsize=10,
    )
    if results["drift_slope"] is not None:
        axes.text(
            0.04,
            0.06,
            f"slope {results['drift_slope']:.2f}",
            transform=axes.transAxes,
            fontsize=8.5,
            color="#333333",
        )


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
