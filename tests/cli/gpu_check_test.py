"""gpu-check with the CPU as the device under test: its parts as they are, and as processes that
crash, hang or find something.
"""

import json
import os
import sys
import textwrap

import pytest

from late_phase_cli import check_worker, errors, gpu_check, gpu_summary, program_steps
from tests.support import program_runs

SMALL_LSTM = (
    "enwik8 --preset quick --units 12 --embedding 6 --batch 8 --sequence 10 --members 3 "
    "--train-characters 900 --validation-characters 100 --test-characters 100 --threads 1"
).split()
SMALL_CONVNET = "cifar --preset convnet --batch 32 --members 3 --threads 1".split()
FACTS = {
    "late_phase": "1",
    "TensorFlow": "2",
    "Keras": "3",
    "Python": "3.11",
    "CUDA of TensorFlow": "12.5",
    "cuDNN of TensorFlow": "9",
    "devices": ["CPU:0", "GPU:0"],
    "GPUs": [{"name": "NVIDIA A100", "compute capability": "8.0"}],
    "nvidia-smi": [{"driver_version": "580.65", "memory.total": "40960 MiB"}],
    "environment": {},
}
ABOUT = {"ops": ["Foo"], "cases": 3, "tolerance": {"float": 1e-5}}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("LATE_PHASE_PRESETS", program_runs.PRESETS)
    monkeypatch.setenv("LATE_PHASE_PROGRAM", program_runs.PROGRAM)
    monkeypatch.delenv("LATE_PHASE_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)


def stand_in(ops, **facts):
    """The commands of a worker that says the given facts, and whose part `ops` is the given
    program; `say` and `first` are there for it.
    """
    script = f"""
import json, os, sys, time
def say(**message): print(json.dumps(message), flush=True)
if sys.argv[1] == "facts":
    say(**{ {**FACTS, **facts}!r})
    sys.exit()
device, first = sys.argv[2], int(sys.argv[3])
say(**{ABOUT!r})
def begin(number, by="kernels"): say(begins="case-%d" % number, number=number, by=by)
def result(number, by="kernels", **what):
    begin(number, by)
    say(**{{"case": "case-%d" % number, "type": "float", "by": by, "ops": ["Foo"], "output": "y",
           "problem": None, "size": 1e-7, "tolerance": 1e-5, **what}})
""" + textwrap.dedent(ops)
    return lambda *arguments: [sys.executable, "-c", script, *map(str, arguments)]


def check(ops, **options):
    """Status and report of a check of a GPU that only these processes know."""
    status = gpu_check.check("report.json", programs={}, worker=stand_in(ops), **options)
    with open("report.json") as file:
        return status, json.load(file)


ALL_WELL = "for by in ('kernels', 'XLA'): result(0, by); result(1, by, size=3e-6); result(2, by)"


def test_all_is_well(capsys):
    status, report = check(ALL_WELL)
    assert (status, report["problems"], report["device"]) == (0, [], "GPU:0")
    assert report["facts"] == FACTS
    assert report["ops"]["by"]["kernels"]["ops"]["Foo"]["float"] == {
        "cases": 3,
        "wrong": 0,
        "size": 3e-6,
        "tolerance": 1e-5,
        "case": "case-1",
        "output": "y",
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "late_phase 1, TensorFlow 2 (CUDA 12.5, cuDNN 9), Keras 3, Python 3.11",
        "GPU:0: NVIDIA A100, compute capability 8.0, driver 580.65, 40960 MiB",
    ]
    assert (
        "| kernels | 1 | 3 | 0 | 3.0e-06 |" in lines and "| allowed |  |  |  | 1.0e-05 |" in lines
    )
    assert "| XLA | 1 | 3 | 0 | 3.0e-06 |" in lines
    assert lines[-2:] == ["GPU:0 agrees with the CPU.", "The report: report.json"]
    assert os.listdir(".") == ["report.json"]


def test_what_differs_is_said_and_the_status_is_1(capsys):
    wrong = "`y` differs by 1.0e-02; allowed: 1.0e-05"
    status, report = check(f"{ALL_WELL}\nresult(2, size=1e-2, problem={wrong!r})")
    assert status == 1
    assert report["problems"] == [{"where": "Foo: case-2, by kernels", "problem": wrong}]
    printed = capsys.readouterr().out
    assert f"1 problem:\n  Foo: case-2, by kernels: {wrong}\n" in printed
    assert "| kernels | 1 | 4 | 1 | 1.0e-02 |" in printed and "agrees" not in printed


def test_many_problems_are_in_the_file(capsys):
    status, report = check(f"{ALL_WELL}\nfor i in range(30): result(2, problem='bad')")
    assert status == 1 and len(report["problems"]) == 30
    printed = capsys.readouterr().out
    assert "30 problems:" in printed and "  and 20 more, which are in the report\n" in printed


def test_an_op_that_is_not_run_is_a_problem():
    status, report = check("result(0)")
    assert status == 1
    assert report["problems"] == [
        {"where": "Foo, float, by XLA", "problem": "was not compared with the CPU"}
    ]


def test_a_crash_is_a_problem_and_the_rest_is_checked():
    status, report = check(
        """
        if first == 0:
            result(0); result(0, "XLA"); begin(1)
            print("illegal address", file=sys.stderr, flush=True)
            os.abort()
        assert first == 2
        result(2)
        """
    )
    [problem] = report["problems"]
    assert status == 1 and problem["where"] == "ops: case-1, by kernels"
    assert problem["problem"] == "the process ended with SIGABRT"
    assert problem["printed"] == ["illegal address"]
    assert report["ops"]["by"]["kernels"]["ops"]["Foo"]["float"]["cases"] == 2


def test_too_many_crashes_end_it(monkeypatch):
    monkeypatch.setattr(gpu_check, "CRASHES", 2)
    status, report = check("result(first); result(first, 'XLA'); os.abort()")
    assert status == 1 and [one["where"] for one in report["problems"]] == [
        "ops: case-0, by XLA",
        "ops: case-1, by XLA",
        "ops",
    ]
    assert report["problems"][-1]["problem"] == "after 2 of these, the last 1 cases were not run"


def test_a_part_that_hangs_is_ended():
    hanging = check_worker.Worker(
        [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(600)"], silence=3
    )
    assert list(hanging.messages()) == [{}]
    assert hanging.problem == "did not answer within 3 seconds"


def test_what_cannot_begin_is_a_problem():
    status, report = check("sys.exit('cannot load')")
    assert status == 1 and report["problems"][0]["printed"] == ["cannot load"]
    assert report["problems"][0]["where"] == "ops: before the first case"


@pytest.mark.parametrize(
    "facts, said",
    [
        ({"nvidia-smi": "not installed"}, "there is no NVIDIA driver, or no GPU"),
        ({"nvidia-smi": "NVML: mismatch"}, "nvidia-smi says: NVML: mismatch"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, 'CUDA_VISIBLE_DEVICES="" hides it'),
        ({"CUDA of TensorFlow": None}, "TensorFlow 2 was built without CUDA"),
        ({}, "CUDA 12.5 and cuDNN 9 are not installed: pip install 'tensorflow[and-cuda]'"),
    ],
)
def test_without_a_gpu_the_causes_are_named(facts, said):
    found = stand_in("raise SystemExit('nothing may be run')", devices=["CPU:0"], **facts)
    with pytest.raises(errors.UserError) as raised:
        gpu_check.check("report.json", programs={}, worker=found)
    text = str(raised.value)
    assert text.startswith("TensorFlow must see GPU:0. It sees CPU:0 only. Usual causes:\n- ")
    assert said in text and os.listdir(".") == []


def test_the_command_says_that_there_is_no_gpu():
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU")
    run = program_runs.drive("gpu-check", cwd=".")
    assert run.returncode == 2 and "gpu-check: TensorFlow must see GPU:0. It sees" in run.stderr
    assert "Traceback" not in run.stderr and os.listdir(".") == []


def test_a_file_nowhere_is_refused_before_anything_is_run():
    def nothing(*arguments):
        raise AssertionError("nothing may be run")

    with pytest.raises(errors.UserError, match="`out` must be a file in an existing folder. Rec"):
        gpu_check.check("none/report.json", worker=nothing)


# --- The parts themselves, on the CPU.

# A case of every op, in float alone.
CASES = [
    "read_member-float-3x5-0",
    "collapse-float-3x5",
    "swa-float-3x5-3",
    "spawn-float-3x5-0.7",
    *(f"member-{rule}-float-(3, 4, 5)-0-False" for rule in ("sgd", "momentum", "adam")),
    *(f"base-{rule}-float-(4, 5)-2-of-3" for rule in ("sgd", "momentum", "adam")),
    "batch_norm-float-Relu-True-(7, 5)",
    "softmax-float-5-4-7",
    "lstm-float-True-5-3-4-6",
    "lstm_tokens-float-True-5-3-4-6",
]
FEW_CASES = """
import sys
from late_phase.check import __main__ as check, ops, op_cases
ops.TOLERANCE = {"float": ops.TOLERANCE["float"]}
ops.CASES = [case for case in op_cases.CASES if case.name in CASES]
FAULT
check.main(sys.argv[1:])
"""


def worker(cases=CASES, fault=""):
    """The commands of the parts, but for few cases, and with a fault if there is one."""

    def command(part, *arguments):
        if part != "ops":
            return check_worker.command(part, *arguments)
        script = FEW_CASES.replace("in CASES", f"in {cases!r}").replace("FAULT", fault)
        return [sys.executable, "-c", script, part, *map(str, arguments)]

    return command


def read_report():
    with open("report.json") as file:
        return json.load(file)


def test_the_cpu_agrees_with_itself_in_everything(monkeypatch, capsys):
    for name, count in (("WARM_UP", 1), ("STEPS", 7), ("STEPS_ON_CPU", 4)):
        monkeypatch.setattr(program_steps, name, count)
    monkeypatch.setattr(gpu_check, "ROUNDS", 2)
    programs = {"small LSTM": SMALL_LSTM, "small ConvNet": SMALL_CONVNET}
    status = gpu_check.check("report.json", "CPU:0", programs, worker())
    report = read_report()
    assert report["problems"] == [] and status == 0
    for by in ("kernels", "XLA"):
        assert report["ops"]["by"][by]["ops"].keys() == set(report["ops"]["ops"])
    for name, op in [("small LSTM", "Rank1LstmTokens"), ("small ConvNet", "BatchNorm")]:
        of_program, of_keras = report["steps"][name]["program"], report["steps"][name]["Keras"]
        assert len(of_program["run"]["losses"]) == 7 and of_program["run"]["milliseconds"] > 0
        assert len(of_program["on-cpu"]["losses"]) == 4
        assert op in of_program["run"]["placement"]["CPU:0"]
        assert {kind: len(seconds) for kind, seconds in of_keras["seconds"].items()} == {
            "late_phase": 2,
            "Keras": 2,
            "late_phase, XLA": 2,
            "Keras, XLA": 2,
        }
    printed = capsys.readouterr().out
    assert "CPU:0 agrees with the CPU." in printed and "| small ConvNet | " in printed


def test_a_wrong_op_is_found():
    fault = """
class Wrong:
    calls = 0
    def __getattr__(self, name):
        return getattr(op_cases.late_phase.raw_ops, name)
    def late_phase_collapse(self, **inputs):
        self.calls += 1  # the first is the one on the CPU
        return op_cases.late_phase.raw_ops.late_phase_collapse(**inputs) * (1 + (self.calls > 1))
op_cases.ops = Wrong()
ops.library = lambda: ["Collapse", "ReadMember"]
"""
    status = gpu_check.check("report.json", "CPU:0", {}, worker(CASES[:2], fault))
    problems = read_report()["problems"]
    assert status == 1 and [one["where"] for one in problems] == [
        "Collapse: collapse-float-3x5, by kernels"
    ]
    assert problems[0]["problem"].startswith("`mean` differs by ")


def test_an_op_without_cases_is_found():
    fault = 'ops.library = lambda: ["Collapse", "Spawn"]'
    status = gpu_check.check("report.json", "CPU:0", {}, worker(CASES[1:2], fault))
    assert status == 1 and [one["where"] for one in read_report()["problems"]] == [
        "Spawn, float, by kernels",
        "Spawn, float, by XLA",
    ]


def test_a_program_that_fails_is_a_problem():
    status = gpu_check.check(
        "report.json",
        "CPU:0",
        programs={"wrong": ["enwik8", "--units", "-3"]},
        worker=stand_in(ALL_WELL),
    )
    [problem] = read_report()["problems"]
    assert status == 1 and problem["where"] == "wrong"
    assert problem["problem"].startswith("on CPU:0: the program ended with status 2: ")
    assert "Received: units=-3" in problem["problem"]


SAID = (
    "late-phase: CPU:0 runs 12 kinds of ops, of ours Spawn; GPU:0 runs 25 kinds of ops, of ours "
    "Rank1LstmTokens, BaseApplyAdam\n"
)


def test_an_op_on_the_wrong_device_is_named():
    placement = program_steps.placement(SAID)
    assert placement == {"CPU:0": ["Spawn"], "GPU:0": ["Rank1LstmTokens", "BaseApplyAdam"]}
    assert program_steps.misplaced(placement, "GPU:0") == ["Spawn ran on CPU:0, not on GPU:0"]
    placement = program_steps.placement(SAID.replace(", of ours Spawn", ""))
    assert program_steps.misplaced(placement, "GPU:0") == []
    nowhere = program_steps.misplaced({"CPU:0": []}, "GPU:0")
    assert nowhere == ["none of the library's ops ran on GPU:0"]


def test_losses_are_compared():
    assert program_steps.unequal([5.0, 4.0, 3.0], [5.01, 4.05]) == []
    assert program_steps.unequal([5.0, 4.0], [5.0, 4.1]) == [
        "the loss of step 2 is 4, on the CPU 4.1"
    ]
    assert program_steps.unequal([float("nan")], [5.0]) == [
        "the loss of step 1 is nan, on the CPU 5"
    ]


def steps_worker(**message):
    message = {"seconds": {}, "losses": {}, "problems": {}, **message}
    return lambda *arguments: [
        sys.executable,
        "-c",
        f"import json; print(json.dumps({{'begins': 'timing'}})); print(json.dumps({message!r}))",
    ]


def test_keras_is_compared_with_itself_under_xla():
    losses = {"late_phase": 2.0, "late_phase, XLA": 2.1, "Keras": 3.0, "Keras, XLA": 3.01}
    _, problems = gpu_check.check_keras("GPU:0", "run", steps_worker(losses=losses))
    assert problems == ["late_phase: a first loss of 2, by XLA 2.1"]
    failing = steps_worker(losses={"Keras": 3.0}, problems={"Keras, XLA": "no ptxas"})
    assert gpu_check.check_keras("GPU:0", "run", failing)[1] == ["Keras, XLA: no ptxas"]


def test_times_are_minima_and_ratios():
    steps = {
        "LSTM": {
            "program": {"run": {"milliseconds": 1.234}},
            "Keras": {
                "seconds": {
                    "late_phase": [0.4, 0.3],
                    "Keras": [0.25, 0.2],
                    "late_phase, XLA": [0.1],
                }
            },
        },
        "none": {"program": {}, "Keras": {}},
    }
    assert gpu_summary.steps_table(steps)[2:] == [
        "| LSTM | 1.23 | 300.00 | 200.00 | 1.50 | 100.00 | – | – |",
        "| none | – | – | – | – | – | – | – |",
    ]
