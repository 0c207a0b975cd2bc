"""Ctrl-C and SIGTERM in every command of tools/latephase, on a terminal. The program's own part:
tests/program/program_process_test.py.

Here the tools are real, and what they start is a stand-in that takes long: Bazel, programs, and
Python programs.
"""

import json
import os
import signal
import time

import pytest

from tests.support.terminal import Project

# A stand-in says so when it runs, and how it ends. What it starts must not outlive it, nor the file
# it is writing.
SLOW = """\
#!/usr/bin/env python3
import os, signal, sys, time
def end(number, frame):
    os.write(2, b"stand-in ends\\n")
    os._exit(128 + number)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
os.write(int(os.environ.get("LATE_PHASE_STDERR", 2)), b"stand-in runs\\n")
time.sleep(1000)
"""
SLOW_TOOL = """\
import concurrent.futures, os, subprocess
part = os.path.join(os.environ["HOME"], "part")
open(part, "w").close()
try:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        script = "echo stand-in runs >&2; exec sleep 1000"
        list(pool.map(lambda _: subprocess.run(["sh", "-c", script]), range(2)))
finally:
    os.remove(part)
"""
# A program that waits for an answer of the driver's, or tells it something and ends.
CONVERSATION = """\
#!/usr/bin/env python3
import os, signal, socket
signal.signal(signal.SIGINT, signal.SIG_DFL)
driver = socket.socket(fileno=int(os.environ["LATE_PHASE_DRIVER"]))
driver.sendall(b'%s\\n')
%s
"""
STUBBORN = """\
#!/usr/bin/env python3
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(os.environ.get("LATE_PHASE_STDERR", 2)), b"stand-in runs\\n")
time.sleep(1000)
"""

COMMANDS = {
    "train": "train cifar",
    "eval": "eval RUN",
    "sample": "sample RUN",
    "plot": "plot RUN",
    "sweep": "sweep cifar --over sigma=1",
    "report": "report RUN --out page.html",
    "bench": "bench lstm",
    "bench keras": "bench keras",
    "cuda-report": "cuda-report",
    "nqp": "nqp",
    "python": "python",
    "version": "version",
    "wheel": "wheel --out wheels",
}
# What they start after the build.
PROGRAM = "bazel-bin/tools/program/latephase_program"
CLI = "python/late_phase_cli"
TOOLS = {
    "plot": f"{CLI}/plot",
    "sweep": f"{CLI}/sweep",
    "report": f"{CLI}/report",
    "bench": "tools/bench/bench_lstm",
    "bench keras": "tools/bench/bench_keras",
    "cuda-report": "tools/develop/cuda_report",
    "wheel": "tools/develop/build_wheel",
}


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def assert_ends(project, terminal, number):
    """Sends the signal: it is acknowledged, the status is the shell's, and nothing is left."""
    if number == signal.SIGINT:
        terminal.press()
    else:
        os.kill(terminal.pid, number)  # the script's process alone
    terminal.wait_for("tools/latephase: interrupted")
    assert terminal.end() == 128 + number, terminal.said
    terminal.assert_alone()
    assert "Traceback" not in terminal.said and "line " not in terminal.said, terminal.said
    assert not os.listdir(project.folder / "tmp") and not (project.folder / "part").exists()


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"plot", "report"}))
def test_while_building(project, command, number):
    project.write("bin/bazel", SLOW)
    with project.terminal(*COMMANDS[command].split()) as terminal:
        terminal.wait_for(project.logs)
        assert_ends(project, terminal, number)


@SIGNALS
def test_while_setting_up(project, number):
    with open(project.folder / "tools/setup", "a") as setup:
        setup.write("\nset_up() { run_step 'Installing things' 'a while' slow; }\n")
    project.write("bin/slow", SLOW)
    with project.terminal("version") as terminal:
        log = project.folder / ".cache/late_phase/log/Installing-things.log"
        terminal.wait_for(lambda: log.exists() and "stand-in runs" in log.read_text())
        assert_ends(project, terminal, number)
        assert "this step failed" not in terminal.said


@SIGNALS
@pytest.mark.parametrize("command", ["train", "eval", "sample", "nqp"])
def test_while_a_program_runs(project, command, number):
    project.write(PROGRAM, SLOW)
    with project.terminal(*COMMANDS[command].split()) as terminal:
        terminal.wait_for("stand-in runs")
        assert_ends(project, terminal, number)


@SIGNALS
@pytest.mark.parametrize("command", TOOLS)
def test_while_a_python_program_runs(project, command, number):
    project.write(f"{TOOLS[command]}.py", SLOW_TOOL)
    with project.terminal(*COMMANDS[command].split()) as terminal:
        terminal.wait_for("stand-in runs")
        assert_ends(project, terminal, number)


@SIGNALS
@pytest.mark.parametrize(
    "command, need, tool",
    [
        ("train enwik8", {"needs": "enwik8", "data": None}, "enwik8_data"),
        (
            "eval RUN --corrupt",
            {"needs": "corruptions", "run": "RUN", "data": None, "images": 1},
            "corruptions",
        ),
    ],
)
def test_while_data_is_made_ready(project, command, need, tool, number):
    project.write(f"{CLI}/{tool}.py", SLOW_TOOL)
    project.write(PROGRAM, CONVERSATION % (json.dumps(need), "driver.recv(1)"))
    with project.terminal(*command.split()) as terminal:
        terminal.wait_for("stand-in runs")
        assert_ends(project, terminal, number)


@SIGNALS
def test_while_figures_are_drawn(project, number):
    project.write(PROGRAM, CONVERSATION % (json.dumps({"finished": "nqp", "folder": "RUN"}), ""))
    project.write("RUN/results.json", '{"program": "nqp"}')
    project.write(f"{CLI}/nqp_plot.py", SLOW_TOOL)
    with project.terminal("nqp") as terminal:
        terminal.wait_for("stand-in runs")
        assert_ends(project, terminal, number)
        assert "could not draw" not in terminal.said


def test_python_has_its_own_way(project):
    project.write(
        "own.py",
        "import time\ntry:\n    print('runs', flush=True)\n    time.sleep(1000)\nexcept "
        "KeyboardInterrupt:\n    exit(3)\n",
    )
    with project.terminal("python", "own.py") as terminal:
        terminal.wait_for("runs")
        terminal.press()
        assert terminal.end() == 3
    with project.terminal("python", "own.py") as terminal:
        terminal.wait_for("runs")
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.end() == 143
        terminal.assert_alone()


def test_what_has_done_its_work_ends_with_status_0_and_nothing_follows(project):
    told = (
        'os.write(int(os.environ["LATE_PHASE_DRIVER"]), '
        """b'{"finished": "cifar", "folder": "RUN"}\\n'); os._exit(0)"""
    )
    project.write(PROGRAM, SLOW.replace("os._exit(128 + number)", told))
    project.write(f"{CLI}/results.py", "def show(*_):\n    print('drawn')")
    with project.terminal("train", "cifar") as terminal:
        terminal.wait_for("stand-in runs")
        terminal.press()
        assert terminal.end() == 0 and "drawn" not in terminal.said, terminal.said


@SIGNALS
def test_a_command_that_has_done_nothing_does_not_end_with_status_0(project, number):
    project.write("bin/bazel", SLOW.replace("os._exit(128 + number)", "os._exit(0)"))
    with project.terminal("train", "cifar") as terminal:
        terminal.wait_for(project.logs)
        assert_ends(project, terminal, number)


@pytest.mark.parametrize("stage", ["bin/bazel", PROGRAM])
def test_a_second_ctrl_c_ends_at_once_what_does_not_listen(project, stage):
    project.write(stage, STUBBORN)
    with project.terminal("sample", "RUN") as terminal:
        terminal.wait_for(lambda: "stand-in runs" in terminal.said or project.logs())
        terminal.press()
        terminal.wait_for("interrupted")
        time.sleep(0.3)
        assert terminal.processes()
        terminal.press()
        assert terminal.end() == 130  # long before the stand-ins would end
        terminal.assert_alone()


def test_a_second_ctrl_c_ends_all_runs_of_a_plan(project):
    """The first start gives a plan, the others do not listen."""
    run = {"seed": 0, "fork_from": None, "finished": False, "ready": True}
    runs = [
        {**run, "name": name, "model": name, "folder": f"out/{name}", "arguments": ["one"]}
        for name in ("a", "b")
    ]
    plan = {
        "plan": {
            "folder": "out",
            "parallel": 2,
            "threads": 1,
            "runs": runs,
            "collect": [],
            "resume": "",
        }
    }
    begins = (
        "import os, sys\nif sys.argv[1] == 'train':\n    "
        "os.write(int(os.environ['LATE_PHASE_DRIVER']), "
        f"{(json.dumps(plan) + chr(10)).encode()!r})\n    sys.exit()\n"
    )
    project.write(
        PROGRAM, STUBBORN.replace("import os, signal, time\n", begins + "import signal, time\n")
    )
    with project.terminal("train", "cifar") as terminal:
        logs = [project.folder / "out" / f"{name}.log" for name in ("a", "b")]
        terminal.wait_for(
            lambda: all(log.exists() and "stand-in runs" in log.read_text() for log in logs)
        )
        terminal.press()
        terminal.wait_for(
            "interrupted; the runs will save their states and stop; press Ctrl-C again to end "
            "them at once"
        )
        time.sleep(0.3)
        assert len(terminal.processes()) == 3
        terminal.press()
        assert terminal.end() == 130  # long before the stand-ins would end
        terminal.assert_alone()


def test_sigterm_of_the_whole_group_is_one_request(project):
    """As timeout(1) does: to the script, then to its group."""
    project.write(
        PROGRAM,
        SLOW.replace(
            "os._exit(128 + number)", "time.sleep(0.5); os.write(2, b'saved\\n'); os._exit(0)"
        ),
    )
    with project.terminal("train", "cifar") as terminal:
        terminal.wait_for("stand-in runs")
        os.kill(terminal.pid, signal.SIGTERM)
        os.killpg(terminal.pid, signal.SIGTERM)
        assert terminal.end() == 0
        terminal.assert_alone()
