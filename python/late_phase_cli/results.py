"""What the driver makes from results: tables on standard output, plots in the folder."""

import os
import sys

from late_phase_cli import files, interrupt, locations
from late_phase_cli.errors import UserError
from late_phase_cli.extras import MissingExtra


def show(kind, folder):
    """A command has finished: `kind` is "sweep", or what the program reports
    (tools/program/driver.h).
    """
    if kind in ("enwik8", "cifar", "sweep"):
        print("\n".join(table(folder)))
        print(f"\n{folder}/results.json")
    elif kind == "eval":
        print(f"\n{folder}/evaluation.json")
    sys.stdout.flush()
    draw_or_warn(folder)


def draw_or_warn(folder):
    """Prints the names of the plots; a plot that fails is only a warning, because the results
    exist.
    """
    again = f"`{locations.command()} plot {folder}` draws the plots once this is fixed."
    try:
        for line in draw(folder):
            print(line)
    except MissingExtra as error:
        print(f"No plots: {error}", file=sys.stderr)
    except Exception as error:  # any error
        if interrupt.came:  # what failed had been told to end
            raise
        print(
            f"{locations.command()}: could not draw the plots of {folder}: {error}. {again}",
            file=sys.stderr,
        )


def is_sweep(folder):
    return os.path.exists(os.path.join(folder, "sweep.json"))


def table(folder):
    """The table of a run, of a folder of runs or of a sweep, as lines."""
    from late_phase_cli import cifar_table, enwik8_table, run_table, sweep_table

    if is_sweep(folder):
        return sweep_table.render(sweep_table.summarize(folder))
    config, results = run_table.read_run(folder)
    try:
        if config["program"] == "enwik8":
            return enwik8_table.render(results)
        return cifar_table.render(config, results)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"results.json must hold the results of a run. Received: {folder}/results.json "
            f"({error!r})"
        ) from error


def draw(folder):
    """Draws the plots that belong to the folder; returns their names."""
    has = lambda name: os.path.exists(os.path.join(folder, name))  # noqa: E731
    if is_sweep(folder):
        from late_phase_cli import sweep_plot

        return sweep_plot.main(folder)
    if has("evaluation.json"):
        from late_phase_cli import evaluation_plot

        return evaluation_plot.main(folder)
    if has("results.json") and not has("metrics.jsonl") and read(folder).get("program") == "nqp":
        from late_phase_cli import nqp_plot

        return nqp_plot.main(folder)
    from late_phase_cli import plot

    return plot.main(folder)


def read(folder):
    try:
        return files.read_json(os.path.join(folder, "results.json"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"results.json must be readable. Received: {folder}/results.json ({error})"
        ) from error
