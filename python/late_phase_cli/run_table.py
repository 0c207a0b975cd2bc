"""What the tables of training runs have in common."""

import pathlib
import statistics
import tomllib

from late_phase_cli import files
from late_phase_cli.errors import UserError


def runs_of(results):
    """The results in a results.json, of one run or of several."""
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
    try:
        return tomllib.loads((folder / "config.toml").read_text()), files.read_json(
            folder / "results.json"
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} must hold the results of a run. Received: {error}") from error
