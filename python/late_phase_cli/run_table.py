"""What the tables of training runs have in common."""

import json
import pathlib
import statistics
import sys
import tomllib


def runs_of(results):
    """The results of the runs in a results.json: of one run, or of several."""
    return results.get("runs", [results])


def number(values, digits=3):
    """Mean, and standard deviation if there are several: "1.234 ± 0.005"."""
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def read_run(folder):
    """config.toml and results.json of a run, or of a folder of runs."""
    folder = pathlib.Path(folder)
    return tomllib.loads((folder / "config.toml").read_text()), json.loads((folder / "results.json").read_text())


def main(module, render):
    """Prints render(config, results) of the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m late_phase_cli.{module} RUN")
    try:
        config, results = read_run(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"late_phase_cli.{module}: {sys.argv[1]} must hold the results of a run. Received: {error}")
    print("\n".join(render(config, results)))
