"""All Python of the repository under ruff, linter and formatter, with the rules of pyproject.toml.

Looks at the repository itself, past Bazel: a file that no target lists is linted too.
"""

import os
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.realpath("pyproject.toml"))


def ruff(*arguments):
    command = [os.path.join(os.path.dirname(sys.executable), "ruff"), *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_ruff_finds_nothing():
    found = ruff("check", "--no-cache", "--output-format=concise")
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_file_is_formatted():
    found = ruff("format", "--check", "--no-cache")
    assert found.returncode == 0, (
        f"run `tools/latephase python -m ruff format`:\n{found.stdout}{found.stderr}"
    )


def test_ruff_reads_every_folder_with_python():
    files = ruff("check", "--show-files").stdout.split()
    folders = {os.path.relpath(file, REPOSITORY).split(os.sep)[0] for file in files}
    assert {"docs", "python", "tests", "tools", "setup.py"} <= folders
    assert os.path.realpath(__file__) in files


def test_the_rules_are_those_of_the_repository(tmp_path):
    """An unused import, a mutable default and an old idiom."""
    (tmp_path / "bad.py").write_text("import os\n\n\ndef f(x=[]):\n    return super(f, x)\n")
    found = ruff("check", "--no-cache", "--config", "pyproject.toml", str(tmp_path))
    assert found.returncode == 1 and "F401" in found.stdout and "B006" in found.stdout
