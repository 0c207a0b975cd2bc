"""Packages that are not installed: one line names the extra that brings them."""

import pytest

from late_phase_cli import extras


def test_an_installed_package_is_returned():
    assert extras.need("json.decoder", "plots", "a test").JSONDecoder


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(extras.MissingExtra) as error:
        extras.need("no_such_package.part", "plots", "drawing plots")
    assert str(error.value) == (
        "drawing plots needs no_such_package, which is not installed: "
        "pip install 'late_phase[plots]'"
    )


def test_what_an_installed_package_lacks_is_not_blamed_on_the_extra(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        extras.need("half_installed", "plots", "a test")
