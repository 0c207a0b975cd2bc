"""Where things are: the C++ program, its presets, TensorFlow's libraries, cache and repository.

tools/latephase says where the repository is (LATE_PHASE_PROJECT). Otherwise the wheel is installed,
which has the program and the presets in this package. LATE_PHASE_PROGRAM and LATE_PHASE_PRESETS
override these.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
from importlib import metadata

from late_phase_cli import releases
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


def repository_releases():
    """The releases of TensorFlow that the repository builds for, the pinned one among them."""
    tools = os.path.join(repository(), "tools")
    with open(os.path.join(tools, "requirements.txt")) as file:
        pinned = re.search(r"^tensorflow==(\d+\.\d+)", file.read(), re.M)[1]
    others = [name.removesuffix(".txt") for name in os.listdir(os.path.join(tools, "tensorflow"))]
    return sorted([pinned, *others], key=releases.order)


def built_releases():
    """What tools/latephase has built for several releases: "2.21" -> folder of Bazel's output."""
    return dict(pair.split("=", 1) for pair in os.environ["LATE_PHASE_BUILT"].split())


def program():
    """The C++ program."""
    if repository():
        return _find("LATE_PHASE_PROGRAM", built("tools/program/latephase_program"))
    if "LATE_PHASE_PROGRAM" in os.environ:
        return _find("LATE_PHASE_PROGRAM", "")
    return _installed().program


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
    raise _missing(path)


def _missing(path):
    return Missing(
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
    folder = _installed().tensorflow
    beside = os.path.join(os.path.dirname(_PACKAGE), "tensorflow")
    if os.path.exists(beside) and os.path.samefile(folder, beside):
        return {}
    others = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{others}" if others else folder}


@dataclasses.dataclass(frozen=True)
class _Installed:
    """What belongs together: a TensorFlow, and the wheel's program for its release."""

    tensorflow: str  # its folder
    program: str


def tensorflow_version():
    """The version of the installed TensorFlow, without importing it; None if there is none.

    It comes in packages of several names: tensorflow, tensorflow-cpu, tf-nightly and others.
    """
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    others = metadata.packages_distributions().get("tensorflow", [])  # reads them all: 0.2 s
    return metadata.version(others[0]) if others else None


def _installed():
    """The TensorFlow that Python would import, and the program for its release."""
    folders = releases.folders(os.path.join(_PACKAGE, "bin"))
    if not folders:
        raise _missing(os.path.join(_PACKAGE, "bin"))
    spec, version = importlib.util.find_spec("tensorflow"), tensorflow_version()
    required = releases.requirement(list(folders))
    install = f"pip install '{required}' (or tensorflow-cpu, which is smaller)"
    if spec is None:
        raise Missing(f"TensorFlow is not installed: {install}")
    tensorflow = spec.submodule_search_locations[0]
    if version is None:
        raise Missing(
            f"the release of the TensorFlow in {tensorflow} is unknown, because pip did not "
            f"install it. To install one: {install}"
        )
    folder = folders.get(releases.release_of(version))
    if folder is None:
        raise Missing(
            f"the installed late_phase is built for TensorFlow {', '.join(folders)}. "
            f"Received: TensorFlow {version}. To replace it: {install}"
        )
    return _Installed(tensorflow, os.path.join(folder, "latephase_program"))
