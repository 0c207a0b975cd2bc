"""What tools/latephase prepares and builds before a command runs. Bazel is a stand-in here."""

import pytest

from tests.support.terminal import Project


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    project.write("bin/bazel", f'#!/bin/sh\necho "bazel $*" >>{tmp_path}/log\n')
    with open(tmp_path / "tools/setup", "a") as setup:
        setup.write(
            f'\nset_up() {{ python=true; echo "set up ${{1:-pinned}}" >>{tmp_path}/log; }}\n'
        )
    return project


def steps(project, *arguments):
    with project.terminal(*arguments) as terminal:
        assert terminal.end() == 0, terminal.said
    return (project.folder / "log").read_text().splitlines()


def test_a_command_without_targets_builds_nothing(project):
    assert steps(project, "plot", "RUN") == ["set up pinned"]


@pytest.mark.parametrize(
    "command, target",
    [
        ("nqp", "//tools/program:latephase_program"),
        ("gpu-check", "//:_late_phase_ops.so"),
        ("version", "@cuda//:runtime"),  # a target of another repository
    ],
)
def test_a_command_builds_what_it_needs_for_the_pinned_release(project, command, target):
    prepared, build = steps(project, command)
    assert prepared == "set up pinned"
    assert build.startswith("bazel ") and " build " in build and f" {target}" in build


def test_a_wheel_is_built_for_each_of_its_releases(project):
    lines = steps(project, "wheel", "--out", "wheels", "--tensorflow", "2.20,2.21")
    prepared = [line for line in lines if line.startswith("set up")]
    assert prepared == ["set up 2.20", "set up pinned", "set up pinned"]
    assert sum(" build " in line for line in lines) == 2
