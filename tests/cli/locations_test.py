"""Where the driver finds the C++ program, its presets and TensorFlow's libraries."""

import importlib.machinery
import importlib.util
import os
import shutil
from importlib import metadata

import pytest

from late_phase_cli import locations


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A site-packages in which the wheel has been installed, and TensorFlow beside it."""
    for name in (
        "LATE_PHASE_PROJECT",
        "LATE_PHASE_PROGRAM",
        "LATE_PHASE_PRESETS",
        "LD_LIBRARY_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    packages = tmp_path / "site-packages"
    programs = [f"late_phase_cli/bin/tensorflow_{release}" for release in ("2_9", "2_20", "2_21")]
    for folder in (*programs, "late_phase_cli/presets", "tensorflow"):
        (packages / folder).mkdir(parents=True)
    for folder in programs:
        (packages / folder / "latephase_program").touch()
    monkeypatch.setattr(locations, "_PACKAGE", str(packages / "late_phase_cli"))
    set_tensorflow(monkeypatch, packages / "tensorflow", "2.21.0")
    return packages


def set_tensorflow(monkeypatch, folder, version, package="tensorflow"):
    """Where Python would find it; None: nowhere. Its version None: it is unknown to pip."""
    spec = importlib.machinery.ModuleSpec("tensorflow", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if folder else None)

    def version_of(name):
        if version is None or name != package:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", version_of)
    listed = {} if version is None else {"tensorflow": [package]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: listed)


@pytest.mark.parametrize("version, folder", [("2.21.0", "2_21"), ("2.20.0rc1", "2_20")])
@pytest.mark.parametrize("package", ["tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-x"])
def test_the_wheel_has_them_in_the_package(installed, monkeypatch, version, folder, package):
    set_tensorflow(monkeypatch, installed / "tensorflow", version, package)
    program = f"{installed}/late_phase_cli/bin/tensorflow_{folder}/latephase_program"
    assert locations.program() == program
    assert locations.presets() == f"{installed}/late_phase_cli/presets"
    assert locations.libraries() == {}


def test_the_repository_has_them_where_bazel_puts_them(tmp_path, monkeypatch):
    built = tmp_path / "output" / "tools" / "program"
    built.mkdir(parents=True)
    (built / "latephase_program").touch()
    (tmp_path / "repository" / "models" / "presets").mkdir(parents=True)
    os.symlink(tmp_path / "output", tmp_path / "repository" / "bazel-bin")
    monkeypatch.setenv("LATE_PHASE_PROJECT", str(tmp_path / "repository"))
    assert locations.program() == str(built / "latephase_program")
    assert locations.presets() == f"{tmp_path}/repository/models/presets"
    set_tensorflow(monkeypatch, None, None)  # the program knows where it is
    assert locations.libraries() == {}


@pytest.mark.parametrize(
    "variable, find",
    [("LATE_PHASE_PROGRAM", locations.program), ("LATE_PHASE_PRESETS", locations.presets)],
)
def test_the_environment_comes_first(tmp_path, monkeypatch, variable, find):
    monkeypatch.setenv("LATE_PHASE_PROJECT", "/nowhere")
    monkeypatch.setenv(variable, str(tmp_path))
    assert find() == str(tmp_path)
    monkeypatch.setenv(variable, f"{tmp_path}/gone")
    with pytest.raises(locations.Missing) as error:
        find()
    assert (
        str(error.value)
        == f"`{variable}` must be an existing path. Received: {variable}={tmp_path}/gone"
    )


@pytest.mark.parametrize("what, find", [("bin", locations.program), ("presets", locations.presets)])
def test_a_package_without_them_says_how_to_get_them(installed, what, find):
    path = installed / "late_phase_cli" / what
    shutil.rmtree(path)
    with pytest.raises(locations.Missing) as error:
        find()
    assert str(error.value).startswith(f"{path} is missing.")
    assert "tools/latephase" in str(error.value) and "pip install late_phase-*.whl" in str(
        error.value
    )


@pytest.mark.parametrize("others", [None, "/opt/lib"])
@pytest.mark.parametrize("is_beside", [True, False])
def test_a_tensorflow_elsewhere_is_named_to_the_loader(
    installed, tmp_path, monkeypatch, is_beside, others
):
    """Also if one that Python would not import is beside the package."""
    if not is_beside:
        (installed / "tensorflow").rmdir()
    if others:
        monkeypatch.setenv("LD_LIBRARY_PATH", others)
    elsewhere = tmp_path / "elsewhere" / "tensorflow"
    elsewhere.mkdir(parents=True)
    set_tensorflow(monkeypatch, elsewhere, "2.21.3")
    path = f"{elsewhere}:{others}" if others else str(elsewhere)
    assert locations.libraries() == {"LD_LIBRARY_PATH": path}


INSTALL = "pip install 'tensorflow>=2.9,<2.22' (or tensorflow-cpu, which is smaller)"


@pytest.mark.parametrize(
    "is_there, version, message",
    [
        (False, None, f"TensorFlow is not installed: {INSTALL}"),
        (
            True,
            None,
            "the release of the TensorFlow in {} is unknown, because pip did not install it. "
            f"To install one: {INSTALL}",
        ),
        (
            True,
            "2.22.1",
            "the installed late_phase is built for TensorFlow 2.9, 2.20, 2.21. "
            f"Received: TensorFlow 2.22.1. To replace it: {INSTALL}",
        ),
    ],
)
@pytest.mark.parametrize("find", [locations.program, locations.libraries])
def test_no_or_another_tensorflow_is_told(installed, monkeypatch, is_there, version, message, find):
    folder = installed / "tensorflow"
    set_tensorflow(monkeypatch, folder if is_there else None, version)
    with pytest.raises(locations.Missing) as error:
        find()
    assert str(error.value) == message.format(folder)
