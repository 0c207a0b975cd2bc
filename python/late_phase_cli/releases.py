"""Minor releases of TensorFlow, such as "2.21", and the folders of the wheel for them."""

import glob
import os

_PREFIX = "tensorflow_"


def release_of(version):
    """2.21.0 -> 2.21"""
    return ".".join(version.split(".")[:2])


def folder_name(release):
    """2.21 -> tensorflow_2_21"""
    return _PREFIX + release.replace(".", "_")


def folders(parent):
    """The folders inside `parent` that belong to a release, oldest first: {"2.21": path}."""
    paths = glob.glob(os.path.join(glob.escape(parent), _PREFIX + "*"))
    found = {os.path.basename(path).removeprefix(_PREFIX).replace("_", "."): path for path in paths}
    return {release: found[release] for release in sorted(found, key=order)}


def order(release):
    """For sorting: 2.9 comes before 2.20."""
    return [int(part) for part in release.split(".")]


def requirement(supported):
    """What pip is to install for a wheel with these releases, oldest first."""
    major, minor = order(supported[-1])
    return f"tensorflow>={supported[0]},<{major}.{minor + 1}"
