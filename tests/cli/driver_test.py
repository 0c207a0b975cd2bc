"""The driver around a stand-in for the C++ program: what reaches the program, what it is answered,
what becomes of what it tells.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from late_phase_cli import errors, interrupt, main, program, results

# What the program has of the protocol (tools/program/driver.h).
STAND_IN = """\
#!/usr/bin/env python3
import json, os, signal, socket, sys, time
driver = socket.socket(fileno=int(os.environ["LATE_PHASE_DRIVER"]))
terminal = int(os.environ.get("LATE_PHASE_STDERR", 2))
def tell(**message):
    driver.sendall(json.dumps(message).encode() + b"\\n")
def ask(**need):
    tell(**need)
    return json.loads(driver.makefile().readline())
"""


@pytest.fixture
def drive(tmp_path):
    """drive(script, *arguments): the finished driver, whose program is the script."""

    def run(script, *arguments, **environment):
        path = tmp_path / "program"
        path.write_text(STAND_IN + textwrap.dedent(script))
        path.chmod(0o755)
        variables = {
            **os.environ,
            "LATE_PHASE_PROGRAM": str(path),
            "LATE_PHASE_PRESETS": str(tmp_path),
            "LATE_PHASE_COMMAND": "tools/latephase",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return subprocess.run(
            [sys.executable, "-P", "-m", "late_phase_cli", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**variables, **environment},
        )

    return run


def test_the_program_has_its_arguments_and_its_status_comes_back(drive):
    run = drive(
        """
        print("noise of libraries", file=sys.stderr)
        os.write(terminal, b"said\\n")
        print(*sys.argv[1:], sep="|")
        sys.exit(3)""",
        "train",
        "enwik8",
        "--some",
        "flag with spaces",
        "--",
        "-x",
        "--help",
    )
    assert (run.returncode, run.stdout, run.stderr) == (
        3,
        "train|enwik8|--some|flag with spaces|--|-x|--help\n",
        "said\n",
    )


@pytest.mark.parametrize("command", ["eval", "sample", "nqp"])
def test_flags_belong_to_the_program(drive, command):
    run = drive("print(*sys.argv[1:], sep='|')", command, "--flag", "RUN", "--out=x")
    assert (run.returncode, run.stdout) == (0, f"{command}|--flag|RUN|--out=x\n")


@pytest.mark.parametrize(
    "command, flag, text",
    [
        ("train enwik8", "--help", "--units N         units of the LSTM"),
        ("train cifar --members 5", "-h", "--dataset {cifar10,cifar100}"),
        ("eval RUN", "--help", "eval [FLAG]... RUN_DIR...\n"),
        ("sample", "-h", "--temperature"),
        ("nqp", "--help", "default: quick"),
    ],
)
def test_help_needs_no_program(drive, command, flag, text):
    run = drive("sys.exit(3)", *command.split(), flag)
    assert (run.returncode, run.stderr) == (0, "") and text in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 100


def test_the_environment_says_what_the_program_cannot_know(drive, tmp_path):
    show = (
        "print(*(os.environ[name] for name in ('LATE_PHASE_PRESETS', 'LATE_PHASE_COMMAND', "
        "'LATE_PHASE_DATA')), sep='|')"
    )
    assert (
        drive(show, "sample").stdout
        == f"{tmp_path}|tools/latephase|{tmp_path}/cache/late_phase/data\n"
    )
    assert drive(show, "sample", LATE_PHASE_DATA="/data").stdout.endswith("|/data\n")


def test_a_program_that_cannot_start_says_why(drive, tmp_path):
    run = drive("print('cannot load a library', file=sys.stderr); sys.exit(127)", "sample", "RUN")
    assert run.returncode == 127 and "cannot load a library" in run.stderr
    killed = drive(
        "print('out of luck', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
        "sample",
        "RUN",
    )
    assert killed.returncode == 128 + 11 and "out of luck" in killed.stderr
    missing = drive("", "sample", "RUN", LATE_PHASE_PROGRAM=str(tmp_path / "nowhere"))
    assert (
        missing.returncode == 2
        and "nowhere" in missing.stderr
        and "Traceback" not in missing.stderr
    )


def test_a_need_is_answered_with_a_path_or_a_complaint(drive, tmp_path):
    run = drive("print(ask(needs='enwik8', data='/nowhere'))", "train", "enwik8")
    answer = eval(run.stdout)
    assert (
        answer.keys() == {"error"}
        and "Received: data=/nowhere (No such file or directory" in answer["error"]
    )
    run = drive(
        "print(ask(needs='corruptions', run='gone', data=None, images=1))",
        "eval",
        "gone",
        "--corrupt",
    )
    assert "gone/config.toml" in eval(run.stdout)["error"]


def test_what_several_programs_need_is_looked_for_once(monkeypatch):
    asked = []
    monkeypatch.setattr(program, "_found", {})
    monkeypatch.setattr(program, "_FINDERS", {"enwik8": lambda need: asked.append(need) or "/text"})
    need = {"needs": "enwik8", "data": None}
    assert [program.find(need) for _ in range(3)] == [{"path": "/text"}] * 3 and asked == [need]
    assert program.find({**need, "data": "other"}) == {"path": "/text"} and len(asked) == 2


def tell_finished(kind, folder):
    return f"tell(finished={kind!r}, folder={str(folder)!r})"


def test_a_finished_run_has_its_table_and_its_curves(drive, tmp_path):
    shutil.copytree("docs/results/enwik8-96-units/seed-0", tmp_path / "run" / "seed-0")
    for name in ("config.toml", "results.json"):
        shutil.copy(f"docs/results/enwik8-96-units/{name}", tmp_path / "run")
    run = drive(tell_finished("enwik8", "run"), "train", "enwik8")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("| bits per character | train | test |") and lines[-2:] == [
        "run/results.json",
        "run/curves.png",
    ]
    assert (tmp_path / "run" / "curves.png").exists() and (
        tmp_path / "run" / "seed-0" / "base" / "curves.png"
    ).exists()


def test_a_plot_that_fails_is_a_warning(drive, tmp_path):
    shutil.copytree("docs/results/nqp", tmp_path / "run")
    os.remove(tmp_path / "run" / "nqp.png")
    (tmp_path / "run" / "nqp.png").mkdir()
    run = drive(tell_finished("nqp", "run"), "nqp")
    assert (
        run.returncode == 0
        and "could not draw the plots of run: " in run.stderr
        and "`tools/latephase plot run`" in run.stderr
    )
    os.rmdir(tmp_path / "run" / "nqp.png")
    again = drive("", "plot", "run")
    assert (again.returncode, again.stdout) == (0, "run/nqp.png\n") and (
        tmp_path / "run" / "nqp.png"
    ).is_file()


def test_an_evaluation_is_named_and_drawn(drive, tmp_path):
    shutil.copytree(
        "docs/results/methods-convnet-short/evaluations/late-phase", tmp_path / "evaluation"
    )
    run = drive(tell_finished("eval", "evaluation"), "eval", "RUN")
    assert run.stdout.splitlines()[:3] == [
        "",
        "evaluation/evaluation.json",
        "evaluation/reliability.png",
    ], run.stderr
    assert drive("", "plot", "evaluation").stdout.startswith("evaluation/reliability.png\n")


def test_help_is_quick_and_complete():
    """Nothing is imported for it that takes time."""
    heavy = ("numpy", "matplotlib", "tensorflow", "scipy", "jinja2")
    script = (
        "import sys; from late_phase_cli import main; main.make_parser(); print([name for name "
        f"in {heavy} if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert shown.stdout == "[]\n", shown.stderr
    text = main.make_parser().format_help()
    for command in (
        "train",
        "eval",
        "sample",
        "nqp",
        "plot",
        "sweep",
        "report",
        "advise",
        "completion",
        "version",
        "gpu-check",
        "bench",
        "cuda-report",
        "python",
        "wheel",
    ):
        assert f"\n    {command}" in text


@pytest.mark.parametrize("command", ["bench lstm", "cuda-report", "python", "wheel --out x"])
def test_commands_of_the_repository_say_so_elsewhere(monkeypatch, command):
    monkeypatch.delenv("LATE_PHASE_PROJECT", raising=False)
    options = main.parse(command.split())
    with pytest.raises(
        errors.UserError, match=f"{command.split()[0]} works only in the late_phase repository"
    ):
        options.function(options)


# --- Several runs at a time.

PLAN = """
    if sys.argv[1:3] == ["train", "enwik8"]:
        run = lambda name, after, ready=True: dict(
            name=name, model=name, seed=0, folder="out/" + name, fork_from=after and "out/" + after,
            finished=name == "done", ready=ready, arguments=["one", name])
        runs = [run("done", None), run("trunk", None), run("fork", "trunk", False),
                run("other", None)]
        os.makedirs("out", exist_ok=True)
        tell(plan=dict(folder="out", parallel=PARALLEL, threads=1, runs=runs, collect=["collect"],
                       resume="tools/latephase train --resume"))
        sys.exit()
    if sys.argv[1] == "collect":
        open("out/collected", "w").close()
        sys.exit()
    name = sys.argv[2]
    open("begun-" + name, "w").close()
    def wait_for(*others):
        begin = time.monotonic()
        while not all(os.path.exists("begun-" + other) for other in others):
            assert time.monotonic() - begin < 60, "alone"
            time.sleep(0.01)
    def finish():
        tell(finished="enwik8", folder="out/" + name)
        sys.exit()
"""


def plan(parallel, script):
    return textwrap.dedent(PLAN).replace("PARALLEL", str(parallel)) + textwrap.dedent(script)


def test_a_fork_starts_while_its_trunk_is_trained(drive, tmp_path):
    """Each waits for the others: they end only if all three are at work at the same time."""
    run = drive(
        plan(
            3,
            """
        if name == "trunk":
            wait_for("other")
            assert not os.path.exists("begun-fork")
            tell(forked="out/trunk")
        wait_for("trunk", "fork", "other")
        tell(progress=dict(done=0.5, text="2.3 bpc, 3 min left"))
        finish()""",
        ),
        "train",
        "enwik8",
    )
    assert run.returncode == 0 and (tmp_path / "out" / "collected").exists(), run.stderr
    assert (
        "4 runs, 1 of them finished; 3 at a time, 1 thread each" in run.stderr
        and not (tmp_path / "begun-done").exists()
    )
    assert "4 of 4 runs finished" in run.stderr and "2.3 bpc, 3 min left" in run.stderr
    assert (tmp_path / "out" / "trunk.log").read_text() == ""


def test_no_more_are_trained_at_a_time_than_may_be(drive, tmp_path):
    run = drive(
        plan(
            1,
            """
        assert not os.path.exists("at-work")
        open("at-work", "w").close()
        time.sleep(0.2)
        os.remove("at-work")
        finish()""",
        ),
        "train",
        "enwik8",
    )
    assert run.returncode == 0 and run.stderr.count(": started;") == 3, run.stderr
    # A fork that was never told of can begin once its trunk has finished.
    order = [line.split(":")[0] for line in run.stderr.splitlines() if ": started;" in line]
    assert order == ["trunk", "fork", "other"]


def test_a_run_that_fails_is_named_and_the_others_go_on(drive, tmp_path):
    run = drive(
        plan(
            2,
            """
        if name == "trunk":
            sys.exit("the loss must be finite")
        finish()""",
        ),
        "train",
        "enwik8",
    )
    assert run.returncode == 1 and not (tmp_path / "out" / "collected").exists()
    assert "trunk: failed with status 1: the loss must be finite" in run.stderr
    assert "fork: not trained, because the run it forks from, out/trunk, failed" in run.stderr
    assert "other: 2 of 4 runs finished" in run.stderr and not (tmp_path / "begun-fork").exists()
    assert (
        "trunk; fork failed; the states of all runs are kept. To try again: tools/latephase train "
        "--resume" in run.stderr
    )


def test_a_trunk_that_fails_after_its_fork_takes_nothing_along(drive, tmp_path):
    run = drive(
        plan(
            2,
            """
        if name == "trunk":
            tell(forked="out/trunk")
            wait_for("fork")
            sys.exit(1)
        finish()""",
        ),
        "train",
        "enwik8",
    )
    assert run.returncode == 1 and "fork: " in run.stderr and "fork: not trained" not in run.stderr
    assert "train: trunk failed;" in run.stderr


def test_a_run_that_others_stop_has_not_finished(drive):
    run = drive(
        plan(
            3,
            """
        if name == "other":
            print("stopped at step 3; the state is saved")
            sys.exit(0)
        finish()""",
        ),
        "train",
        "enwik8",
    )
    assert (
        run.returncode == 1
        and "other: stopped early: stopped at step 3; the state is saved" in run.stderr
    )


def test_a_folder_at_work_is_left_alone(drive, tmp_path):
    from late_phase_cli import scheduler

    with scheduler.locked(tmp_path / "out"):
        run = drive(plan(2, "finish()"), "train", "enwik8")
    assert (
        run.returncode == 2
        and "`out` must not be in use by another process" in run.stderr
        and not (tmp_path / "begun-other").exists()
    )


def test_without_matplotlib_a_sweep_has_all_but_its_plots(drive, tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ModuleNotFoundError(name='matplotlib')")
    run = drive(
        """
        if "--dry-run" in sys.argv:
            print("sigma = 1")
        else:
            folder = sys.argv[sys.argv.index("--out") + 1]
            os.makedirs(folder)
            with open(folder + "/results.json", "w") as file:
                json.dump({"seconds": 60, "test": {"collapsed": {"bpc": 2.5}}}, file)
            tell(finished="enwik8", folder=folder)
        """,
        "sweep",
        "enwik8",
        "--over",
        "sigma=1,2",
        "--out",
        "out",
        PYTHONPATH=os.pathsep.join([str(hidden), *filter(None, sys.path)]),
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "",
        "| σ0 | seeds | test BPC |",
        "|---|---|---|",
        "| 1 | 1 | 2.5000 |",
        "| 2 | 1 | 2.5000 |",
        "",
        "out/results.json",
    ]
    assert run.stderr.count("late_phase[plots]") == 1 and "Traceback" not in run.stderr
    assert (tmp_path / "out" / "results.json").exists()


def test_progress_is_one_line_on_a_terminal_and_a_few_in_a_log():
    import io
    import pty

    from late_phase_cli import display

    log = io.StringIO()
    shown = display.Display(log)
    for i in range(101):
        shown.show(f"{i} of 100", i / 100)
    shown.say("done")
    assert log.getvalue().splitlines() == [f"{i} of 100" for i in range(10, 101, 10)] + ["done"]
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        shown = display.Display(terminal)
        shown.show("1 of 2", 0.5)
        shown.show("too soon", 0.6)
        shown.say("a line")
        shown.clear()
        said = ""
        while not said.endswith("\r\033[K"):
            said += os.read(ours, 1000).decode()
    os.close(ours)
    assert said == "\r1 of 2\033[K\r\033[Ka line\r\n1 of 2\r\033[K"


def test_tables_are_markdown():
    from late_phase_cli import text_table

    assert text_table.render(["a", "b"], [["1", "2"], ["3", "–"]]) == [
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "| 3 | – |",
    ]


def test_metrics_are_declared_once():
    """Driver and program share one file; a metric that is not in it is called by its name."""
    from late_phase_cli import metric_names

    assert (
        metric_names.METRICS["accuracy"].number(0.7) == "70.00"
        and not metric_names.METRICS["accuracy"].lower_is_better
    )
    assert (
        json.load(open(os.path.join(os.path.dirname(metric_names.__file__), "metrics.json")))[0][
            "name"
        ]
        == "bpc"
    )
    assert metric_names.metric_of("some_score").head == "some score"


def test_a_plot_that_an_interrupt_broke_is_not_a_warning(monkeypatch, capsys):
    """Whatever the library that draws makes of a KeyboardInterrupt, the driver must end."""

    def draw(folder):
        raise RuntimeError("cannot release un-acquired lock")

    monkeypatch.setattr(results, "draw", draw)
    results.draw_or_warn("RUN")
    assert "could not draw the plots of RUN" in capsys.readouterr().err
    monkeypatch.setattr(interrupt, "came", [signal.SIGTERM])
    with pytest.raises(RuntimeError):
        results.draw_or_warn("RUN")
    assert capsys.readouterr().err == ""
