"""Packages that only some commands need: not required by the wheel itself, but by its extras."""

import importlib

from late_phase_cli.errors import UserError


class MissingExtra(UserError):
    """A package is not installed; the message names the command that installs it."""


def need(package, extra, purpose):
    """The imported package; raises MissingExtra, which says what it is needed for, if it is
    missing.
    """
    name = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise  # the package is installed, but something it requires is not
        raise MissingExtra(
            f"{purpose} needs {name}, which is not installed: pip install 'late_phase[{extra}]'"
        ) from None
