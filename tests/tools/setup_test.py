"""tools/setup and tools/latephase when something is wrong: the message names the step and the
remedy. Nothing is installed here.
"""

import os
import subprocess

import pytest


def bash(script, cache, **environment):
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(cache),
            "XDG_CACHE_HOME": str(cache),
            **environment,
        },
    )


@pytest.mark.parametrize(
    "output, advice",
    [
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("Could not resolve host", "check the network"),
        ("ERROR: No matching distribution found for tensorflow", "check the network"),
        ("E: Could not open lock file - open (13: Permission denied)", "run it as root"),
    ],
)
def test_failed_step_shows_its_log_and_the_remedy(tmp_path, output, advice):
    run = bash(
        f"source tools/setup; run_step 'Installing things' 'a while' bash -c 'echo \"{output}\"; "
        "exit 1'; echo not reached",
        tmp_path,
    )
    assert run.returncode == 1 and "not reached" not in run.stdout
    assert "this step failed: Installing things" in run.stderr
    assert output in run.stderr and advice in run.stderr
    assert str(tmp_path / "late_phase" / "log") in run.stderr


def test_missing_packages_without_root_name_the_command(tmp_path):
    # EUID cannot be set, so the condition is replaced; sudo is hidden.
    script = r"""
        source <(sed 's/((EUID != 0))/true/' tools/setup)
        apt_packages=(libgtest-dev surely-not-a-package)
        command() { [[ $2 != sudo ]] && builtin command "$@"; }
        install_packages"""
    run = bash(script, tmp_path)
    assert run.returncode == 1
    assert "apt-get install --no-install-recommends surely-not-a-package" in run.stderr


def test_too_little_space_is_found_before_anything_is_installed(tmp_path):
    run = bash("source tools/setup; require_space 1000000000", tmp_path)
    assert (
        run.returncode == 1
        and "needs 1000000000 GB" in run.stderr
        and "XDG_CACHE_HOME" in run.stderr
    )


def test_cuda_toolkit_must_be_one(tmp_path):
    run = bash("source tools/setup; find_cuda", tmp_path, LATE_PHASE_CUDA="/nowhere")
    assert run.returncode == 1
    assert "`LATE_PHASE_CUDA`" in run.stderr or "LATE_PHASE_CUDA must be" in run.stderr
    assert "Received: LATE_PHASE_CUDA=/nowhere" in run.stderr


def test_folders_with_spaces_are_refused(tmp_path):
    run = bash("tools/setup", tmp_path / "with space")
    assert run.returncode == 1 and "a space in their name" in run.stderr


@pytest.mark.parametrize(
    "arguments, complaint, listed",
    [
        ("", "a command is missing", "version"),
        ("fly", 'there is no command "fly"', "version"),
        ("trian", "did you mean train?", "version"),
        ("bench", "needs the name of a benchmark", "lstm"),
        ("bench rockets", 'there is no benchmark "rockets"', "lstm"),
        ("train", "train needs the name of a training program", "cifar"),
        ("train --preset quick", "train needs the name of a training program", "cifar"),
        ("train rockets", 'there is no training program "rockets"', "cifar"),
        ("sweep", "sweep needs the name of a training program", "--over"),
        ("sweep --over members=1", "sweep needs the name of a training program", "--over"),
        ("sweep rockets", 'there is no training program "rockets"', "--over"),
        ("plot", "the following arguments are required: RUN", "usage"),
        ("report", "the following arguments are required: RUN", "--title"),
        ("report RUN --colour red", "report does not take --colour red", "--title"),
        ("wheel", "wheel needs --out", "--out DIR"),
        ("wheel --out d --tensorflow 1.9", "must be a list of 2.20, 2.21, 2.22", "--out DIR"),
    ],
)
def test_wrong_use_is_told_before_anything_is_prepared(tmp_path, arguments, complaint, listed):
    run = bash(f"tools/latephase {arguments}", tmp_path)
    assert run.returncode == 2 and run.stdout == "" and not list(tmp_path.iterdir())
    assert complaint in run.stderr and listed in run.stderr


@pytest.mark.parametrize("given", ["2.19", ""])
def test_a_release_that_is_not_supported_is_told_before_anything_is_prepared(tmp_path, given):
    run = bash(f"tools/test --tensorflow {given}", tmp_path)
    assert run.returncode == 2 and run.stdout == "" and not list(tmp_path.iterdir())
    assert "must be one of 2.21 (pinned), 2.20, 2.22" in run.stderr
    assert f"Received: {given or 'nothing'}" in run.stderr


def test_a_release_changes_only_the_packages_that_it_names(tmp_path):
    """In what is installed: replaced, or added."""

    def packages(release):
        lines = bash(f"source tools/setup; requirements {release}", tmp_path).stdout.splitlines()
        wanted = [line.split()[0] for line in lines if line and not line.startswith("#")]
        assert len({one.split("==")[0].lower() for one in wanted}) == len(wanted)
        return set(wanted)

    pinned = packages("")
    assert pinned - packages("2.20") == {"tensorflow==2.21.0"}
    assert {"tensorflow==2.20.0", "tensorboard==2.20.0"} <= packages("2.20") - pinned
    assert pinned - packages("2.22") == {"tensorflow==2.21.0"}


@pytest.mark.parametrize("tool", ["latephase", "setup", "test"])
def test_help_needs_no_set_up(tmp_path, tool):
    run = bash(f"tools/{tool} --help", tmp_path)
    assert (
        run.returncode == 0
        and "usage: tools/" + tool in run.stdout.replace("Usage", "usage")
        and not list(tmp_path.iterdir())
    )


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "train enwik8",
        "train cifar",
        "eval",
        "sample",
        "nqp",
        "plot",
        "sweep",
        "report",
        "bench",
        "completion",
        "cuda-report",
        "wheel",
        "version",
    ],
)
def test_every_command_has_its_help(tmp_path, command):
    run = bash(f"tools/latephase {command} --help", tmp_path)
    assert (
        run.returncode == 0
        and f"usage: tools/latephase {command}" in run.stdout
        and not list(tmp_path.iterdir())
    )
    assert command.split()[0] in bash("tools/latephase --help", tmp_path).stdout
