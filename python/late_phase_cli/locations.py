"""Where things are: the C++ program, its presets, TensorFlow's libraries, cache and repository.

tools/latephase says where the repository is (LATE_PHASE_PROJECT). Otherwise the wheel is installed,
which has the program and the presets in this package. LATE_PHASE_PROGRAM and LATE_PHASE_PRESETS
override these.
"""

import contextlib
import importlib.util
import os
from importlib import metadata

from late_phase_cli.errors import UserError

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


class Missing(UserError):
    """What cannot be found, and what to do about it."""


def command():
    """The driver's name as the user types it."""
    return os.environ.get("LATE_PHASE_COMMAND", "latephase")


def cache_folder():
    """The same folder as in tools/setup."""
    parent = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(parent, "late_phase")


def repository():
    """The folder of the repository, as given by tools/latephase; None outside of it."""
    return os.environ.get("LATE_PHASE_PROJECT")


def built(path):
    """What Bazel has built for the target with that path."""
    return os.path.join(os.path.realpath(os.path.join(repository(), "bazel-bin")), path)


def program():
    """The C++ program."""
    if repository():
        return _find("LATE_PHASE_PROGRAM", built("tools/program/latephase_program"))
    return _find("LATE_PHASE_PROGRAM", os.path.join(_PACKAGE, "bin", "latephase_program"))


def presets():
    """The folder of the presets, PROGRAM-NAME.toml."""
    if repository():
        return _find("LATE_PHASE_PRESETS", os.path.join(repository(), "models", "presets"))
    return _find("LATE_PHASE_PRESETS", os.path.join(_PACKAGE, "presets"))


def _find(variable, path):
    """The path in the environment variable, or else the given one."""
    named = os.environ.get(variable)
    if os.path.exists(named or path):
        return named or path
    if named:
        raise Missing(f"`{variable}` must be an existing path. Received: {variable}={named}")
    raise Missing(
        f"{path} is missing. In the repository, tools/latephase builds what it needs; elsewhere, "
        "install the wheel: pip install late_phase-*.whl"
    )


def libraries():
    """What the program needs in its environment to find TensorFlow's libraries.

    The program of the wheel looks for them in the folder `tensorflow` beside this package, where
    pip puts it. The two are apart if one was installed for one user and the other for all users.
    """
    if repository() or "LATE_PHASE_PROGRAM" in os.environ:
        return {}  # Bazel has written their location into the program.
    folder = _tensorflow()
    beside = os.path.join(os.path.dirname(_PACKAGE), "tensorflow")
    if os.path.exists(beside) and os.path.samefile(folder, beside):
        return {}
    others = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{others}" if others else folder}


def _tensorflow():
    """The folder of the TensorFlow that Python would import, without importing it."""
    (required,) = (
        text for text in metadata.requires("late-phase") if text.startswith("tensorflow")
    )
    spec = importlib.util.find_spec("tensorflow")
    if spec is None:
        raise Missing(f"TensorFlow is not installed: pip install '{required}'")
    with contextlib.suppress(metadata.PackageNotFoundError):  # a build of another name
        version = metadata.version("tensorflow")
        from packaging.requirements import Requirement  # comes with TensorFlow

        if version not in Requirement(required).specifier:
            raise Missing(
                f"the installed late_phase requires {required}. Received: tensorflow {version}. "
                f"To replace it: pip install '{required}'"
            )
    return spec.submodule_search_locations[0]
