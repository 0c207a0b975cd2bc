"""tools/setup and tools/latephase when something is wrong: the message names the step and the remedy. Nothing is installed here."""

import os
import subprocess
import textwrap

import pytest


def bash(script, cache, **environment):
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(cache), "XDG_CACHE_HOME": str(cache), **environment})


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
    run = bash(f"source tools/setup; run_step 'Installing things' 'a while' bash -c 'echo \"{output}\"; exit 1'; echo not reached", tmp_path)
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
    assert run.returncode == 1 and "needs 1000000000 GB" in run.stderr and "XDG_CACHE_HOME" in run.stderr


def test_cuda_toolkit_must_be_one(tmp_path):
    run = bash("source tools/setup; find_cuda", tmp_path, LATE_PHASE_CUDA="/nowhere")
    assert run.returncode == 1
    assert "`LATE_PHASE_CUDA`" in run.stderr or "LATE_PHASE_CUDA must be" in run.stderr
    assert "Received: LATE_PHASE_CUDA=/nowhere" in run.stderr


def test_folders_with_spaces_are_refused(tmp_path):
    run = bash("tools/setup", tmp_path / "with space")
    assert run.returncode == 1 and "a space in their name" in run.stderr


@pytest.mark.parametrize(
    "arguments, complaint",
    [("", "a command is missing"), ("fly", 'there is no command "fly"'), ("bench", "needs the name of a benchmark"),
     ("bench rockets", 'there is no benchmark "rockets"'), ("train", "train needs to know what"),
     ("train rockets", 'there is no training program "rockets"'), ("sweep", "sweep needs to know what"),
     ("sweep --over members=1", "sweep needs to know what"), ("sweep rockets", 'there is no training program "rockets"'),
     ("report", "report needs the folder of a run"), ("wheel", "wheel needs --out")],
)
def test_unknown_commands_list_what_exists(tmp_path, arguments, complaint):
    run = bash(f"tools/latephase {arguments}", tmp_path)
    assert run.returncode == 2
    assert complaint in run.stderr and "bench lstm" in run.stderr and "version" in run.stderr


@pytest.mark.parametrize("tool", ["latephase", "setup", "test"])
def test_help_needs_no_set_up(tmp_path, tool):
    run = bash(f"tools/{tool} --help", tmp_path)
    assert run.returncode == 0 and "Usage: tools/" + tool in run.stdout and not list(tmp_path.iterdir())


# The functions of tools/latephase, with a stand-in for the program; what they set up is left out.
PROGRAM = r"""
    set -euo pipefail
    source tools/setup
    source <(sed '/^# shellcheck source/,$d' tools/latephase)
    project=. bin=%s
    run_program train enwik8 --some "flag with spaces"
"""


def stand_in(folder, script):
    (folder / "tools/program").mkdir(parents=True)
    path = folder / "tools/program/train"
    path.write_text("#!/usr/bin/env python3\nimport os, signal, sys, time\n" + textwrap.dedent(script))
    path.chmod(0o755)
    return PROGRAM % folder


def test_the_program_has_its_arguments_and_its_status_comes_back(tmp_path):
    script = stand_in(tmp_path, """
        print("noise of libraries", file=sys.stderr)
        os.write(9, b"said\\n")
        print(*sys.argv[1:], sep="|")
        sys.exit(3)""")
    run = bash(script, tmp_path)
    assert run.returncode == 3 and run.stdout == "train|enwik8|--some|flag with spaces\n" and run.stderr == "said\n"


def test_the_text_is_looked_for_only_for_runs_that_read_it(tmp_path):
    functions = stand_in(tmp_path, "").replace('run_program train enwik8 --some "flag with spaces"', "")
    for program in ("enwik8", "cifar"):
        (tmp_path / program).mkdir()
        (tmp_path / program / "config.toml").write_text(f'# Every value used.\nprogram = "{program}"\nmodel = "base"\n')
    evaluate = """
        run_with_enwik8() { echo "with the text: $*"; }
        run_program() { echo "as it is, data in ${LATE_PHASE_DATA:-}: $*"; }
        cache=/cache
        for run in enwik8 cifar nowhere; do run_with_data "$(program_of --split test %s/$run)" eval; done"""
    run = bash(functions + evaluate % tmp_path, tmp_path)
    assert run.stdout == "with the text: eval\nas it is, data in /cache/data: eval\nas it is, data in : eval\n", run.stderr


@pytest.mark.parametrize(
    "program, arguments, expected",
    [
        ("cifar", "RUN --corrupt", "RUN --corrupt=-P -m late_phase_cli.run_tool late_phase_cli.corruptions RUN --data /cache/data --cache /cache/corruptions --images 1000"),
        ("cifar", "--corrupt RUN --data D --corrupt-images 7",
         "--corrupt=-P -m late_phase_cli.run_tool late_phase_cli.corruptions RUN --data D --cache /cache/corruptions --images 7 RUN --data D --corrupt-images 7"),
        ("cifar", "--data=D RUN --corrupt --weights swa",
         "--data=D RUN --corrupt=-P -m late_phase_cli.run_tool late_phase_cli.corruptions RUN --data D --cache /cache/corruptions --images 1000 --weights swa"),
        ("cifar", "RUN --corrupt C --weights swa", "RUN --corrupt C --weights swa"),
        ("cifar", "RUN --corrupt=C", "RUN --corrupt=C"),
        ("enwik8", "RUN --corrupt", "RUN --corrupt=generated"),
    ],
)
def test_corrupted_images_are_generated_where_none_are_named(tmp_path, program, arguments, expected):
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "config.toml").write_text("")
    functions = stand_in(tmp_path, "").replace('run_program train enwik8 --some "flag with spaces"', "")
    script = functions + f"""
        cd {tmp_path}
        python=echo cache=/cache
        with_corrupted_images {program} RUN {arguments}
        echo "${{arguments[*]}}"
    """
    run = bash(script, tmp_path)
    assert run.stdout == expected + "\n", run.stderr


def test_a_program_that_cannot_start_says_why(tmp_path):
    run = bash(stand_in(tmp_path, "print('cannot load a library', file=sys.stderr); sys.exit(127)"), tmp_path)
    assert run.returncode == 127 and "cannot load a library" in run.stderr
