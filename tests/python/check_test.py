"""late_phase.check, with a second CPU as the device under test: what agrees, and what is
reported.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from late_phase.check import case as case_module
from late_phase.check import facts, ops
from late_phase.check.case import TYPES, Case, differences
from late_phase.check.op_cases import CASES

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
CPU = "CPU:1"


@pytest.fixture(autouse=True)
def no_other_devices():
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    ops.forbid_other_devices()
    yield
    tf.config.set_soft_device_placement(True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


def test_cases_have_every_op_with_every_type():
    found = {(op, case.type) for case in CASES for op in case.build().ops}
    assert found == {(op, type) for op in ops.library() for type in TYPES}


def test_the_library_is_known():
    registered = {kernel.op for kernel in kernels.get_all_registered_kernels().kernel}
    ours = {op.removeprefix("LatePhase>") for op in registered if op.startswith("LatePhase>")}
    assert ops.library() == sorted(ours)


def test_ops_are_placed_and_may_not_move():
    tf.config.set_soft_device_placement(True)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    next(ops.messages(CPU))
    assert not tf.config.get_soft_device_placement()
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    [case] = [case for case in CASES if case.name == "lstm-float-True-5-3-4-6"]
    operations = case.build(CPU)._step.graph.get_operations()
    ours = {one.type: one.device for one in operations if one.type.startswith("LatePhase>")}
    assert ours == dict.fromkeys(
        ["LatePhase>Rank1Lstm", "LatePhase>Rank1LstmGrad"], "/device:CPU:1"
    )


def test_names_of_cases_differ():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES[::13], ids=lambda case: case.name)
def test_cpu_agrees_with_itself(case):
    result = ops.compare(case, CPU, ops.KERNELS)
    assert result["problem"] is None and result["size"] == 0 and result["ops"], result
    values = case.run().values()
    assert all(np.isfinite(one.astype(float)).all() for one in values) or "unknown" in case.name


def scaled(*factors, call=lambda inputs: {"y": inputs["x"]}):
    """A case whose results are those of `call`, times a factor that differs from run to run."""
    factors = iter(factors)

    def run(variables, inputs):
        factor = next(factors)
        return {name: value * factor for name, value in call(inputs).items()}

    return Case("scaled", "float", run, inputs={"x": np.array([1, -2, 3], np.float32)})


def test_a_wrong_result_is_a_problem():
    result = ops.compare(scaled(1, 1.001, 1.001), CPU, ops.KERNELS)
    assert result["problem"] == "`y` differs by 5.0e-04; allowed: 2.0e-05"
    assert (result["output"], result["tolerance"]) == ("y", 2e-5)
    assert result["size"] == pytest.approx(0.003 / 6, rel=1e-3)
    assert ops.compare(scaled(1, 1 + 1e-6, 1 + 1e-6), CPU, ops.KERNELS)["problem"] is None


def test_results_that_change_are_a_problem_of_kernels():
    factors = (1, 1, 1 + 1e-6)
    problem = "a second call gives other bits"
    assert ops.compare(scaled(*factors), CPU, ops.KERNELS)["problem"] == problem
    assert ops.compare(scaled(*factors), CPU, ops.XLA)["problem"] is None


def test_nan_is_a_problem():
    result = ops.compare(scaled(1, np.nan, np.nan), CPU, ops.KERNELS)
    assert result["problem"].startswith("`y` has another shape or type, or NaN")


def test_an_op_without_a_kernel_is_named():
    """Of TensorFlow's ops, one that only GPUs have."""

    def call(variables, inputs):
        size = tf.raw_ops.CudnnRNNParamsSize(
            num_layers=1, num_units=1, input_size=1, T=tf.float32, S=tf.int32, rnn_mode="lstm"
        )
        return {"size": size}

    real = CASES[0]
    case = dataclasses.replace(real, call=call, cpu_call=real.call)
    # The CPU under another name, so that it is not taken for the one to compare with.
    result = ops.compare(case, "/device:CPU:1", ops.KERNELS)
    assert "CudnnRNNParamsSize" in result["problem"] and "kernel" in result["problem"]
    assert result["ops"] == ["ReadMember"]


def test_a_variable_that_differs_is_named():
    case = CASES[0]
    expected = case.run()
    actual = {**expected, "variable var": expected["variable var"] + np.float32(1)}
    wrong = [one for one in differences(case, expected, actual) if one.size > one.tolerance]
    assert [one.output for one in wrong] == ["variable var"]


F = np.float32


@pytest.mark.parametrize(
    "expected, actual, size",
    [
        (F([1, 2]), F([1, 2]), 0),
        (F([1, 2]), F([1, 2.5]), 0.5 / 4),
        (F([0.1]), F([0.2]), 0.1 / 1.1),
        (F([np.nan, 1]), F([np.nan, 1]), 0),
        (F([np.nan, 1]), F([1, np.nan]), np.inf),
        (F([np.inf, 1]), F([-np.inf, 1]), np.inf),
        (F([1]), F([np.inf]), np.inf),
        (F([1]), F([[1]]), np.inf),
        (F([1]), np.float64([1]), np.inf),
        (F([]), F([]), 0),
        (np.int64([3]), np.int64([4]), 1 / 6),
    ],
)
def test_differences(expected, actual, size):
    [one] = differences(Case("", "float", None), {"y": expected}, {"y": actual})
    assert one.size == pytest.approx(size, rel=1e-6)
    assert one.tolerance == (2e-5 if expected.dtype == np.float32 else 0)


def test_bits_count_where_they_must_be_the_same():
    zero, negative = {"y": F([0.0])}, {"y": F([-0.0])}
    for same_bits in (False, True):
        [one] = differences(Case("", "float", None, same_bits=same_bits), zero, negative)
        assert (one.size <= one.tolerance) == (not same_bits)


def test_an_output_that_is_missing_differs():
    [one] = differences(Case("", "float", None), {"y": F([1])}, {})
    assert one.size == np.inf


def test_each_op_is_compiled_once_for_each_type():
    some = [case for case in CASES if case.name.startswith(("read_member-", "collapse-float"))]
    some = [case for case in some if case.type in ("float", "half")][:20]
    about, *messages = ops.messages(CPU, cases=some)
    assert about == {"ops": ops.library(), "cases": 20, "tolerance": case_module.TOLERANCE}
    begun, results = messages[::2], messages[1::2]
    assert [one["begins"] for one in begun] == [one["case"] for one in results]
    assert [one["case"] for one in results if one["by"] == ops.KERNELS] == [c.name for c in some]
    compiled = [(*one["ops"], one["type"]) for one in results if one["by"] == ops.XLA]
    assert sorted(compiled) == sorted({(*one["ops"], one["type"]) for one in results})
    assert not any(one["problem"] for one in results)
    # After a crash the rest is checked.
    numbers = [one["number"] for one in ops.messages(CPU, 18, some) if "begins" in one]
    assert sorted(set(numbers)) == [18, 19]


def test_facts_say_what_a_report_needs(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = facts.facts()
    assert found["TensorFlow"] == tf.__version__ and "CPU:0" in found["devices"]
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert any(line.startswith("CPU kernels: ") for line in found["library"])


def test_nvidia_smi_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts.nvidia_smi() == "not installed"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'NVIDIA A100, 580.65, 8.0, 40960 MiB, 3 MiB, 1410 MHz, 400 W'\n"
    )
    smi.chmod(0o755)
    [gpu] = facts.nvidia_smi()
    assert (gpu["name"], gpu["driver_version"], gpu["power.limit"]) == (
        "NVIDIA A100",
        "580.65",
        "400 W",
    )
    smi.write_text("#!/bin/sh\necho 'NVML: Driver mismatch' >&2\nexit 9\n")
    assert facts.nvidia_smi() == "NVML: Driver mismatch"
