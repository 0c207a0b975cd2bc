"""Every op under `jit_compile=True` against the plain kernels, in the cases of late_phase.check.

A case is called twice, plain and compiled, with variables of its own each time. Outputs, gradients
and variables must then agree: within rounding, or bit for bit where the case says so.
"""

import dataclasses
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import late_phase
from late_phase.check.case import TYPES, differences
from late_phase.check.op_cases import CASES, HYPER, random, spawn

ops = late_phase.raw_ops
# Compiling takes half a second a case: the default run has every third, of every op and type;
# //tests/python:xla_all_cases_test has them all.
CHOSEN = CASES if "LATE_PHASE_ALL_CASES" in os.environ else CASES[::3]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_compiled_equals_plain(case):
    plain, compiled = case.run(jit_compile=False), case.run(jit_compile=True)
    for difference in differences(case, plain, compiled):
        assert difference.size <= difference.tolerance, difference


def test_chosen_cases_have_every_op_and_type():
    found = {(op, case.type) for case in CHOSEN for op in case.build().ops}
    assert found == {(op, name) for op, _ in found for name in TYPES}
    assert {op for op, _ in found} == {op for case in CASES for op in case.build().ops}


def test_spawn_with_constants_of_the_graph_has_the_same_bits():
    """What the compiler knows about sigma and the seed must not let it merge roundings."""
    start = random((3, 700), np.float32, 1)
    results = []
    for jit_compile in [False, True]:
        var = tf.Variable(start)

        @tf.function(jit_compile=jit_compile)
        def step():
            ops.late_phase_spawn(var=var.handle, sigma=0.37, seed=[5, 6])

        step()
        results.append(var.numpy().tobytes())
    assert results[0] == results[1]


def test_library_loaded_after_the_first_compilation():
    program = """
import tensorflow as tf
assert tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1)) == 2
import late_phase
var = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
read = lambda: late_phase.raw_ops.late_phase_read_member(var=var.handle, member=1, dtype=tf.float32)
assert tf.function(read, jit_compile=True)().numpy().tolist() == [3, 4]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- What is refused --------------------------------------------------------------------------


def zeros(*shape, dtype=np.float32):
    return tf.Variable(np.zeros(shape, dtype))


SGD = {"lr": 0.1, "weight_decay": 0.0}


# What follows makes variables, and returns a function that calls an op on them.


def read(var, member=0, dtype=tf.float32):
    return lambda: ops.late_phase_read_member(var=var.handle, member=member, dtype=dtype)


def member_sgd(**changes):
    var = zeros(3, 2)
    return lambda: ops.late_phase_member_apply_sgd(
        **{"var": var.handle, "member": 0, **SGD, "grad": np.zeros(2, np.float32), **changes}
    )


def base_sgd(**changes):
    var, total = zeros(3, 2), zeros(3, 2)
    return lambda: ops.late_phase_base_apply_sgd(
        **{
            "var": var.handle,
            "sum": total.handle,
            "member": 0,
            "cycle": 3,
            "scale": 0.5,
            **SGD,
            "grad": np.zeros((3, 2), np.float32),
            **changes,
        }
    )


def member_momentum(var, accum):
    return lambda: ops.late_phase_member_apply_momentum(
        var=var.handle,
        accum=accum.handle,
        member=0,
        momentum=0.9,
        **SGD,
        grad=np.zeros(2, np.float32),
    )


def swa(average, source, count=1):
    return lambda: ops.late_phase_swa_update(
        average=average.handle, source=source.handle, count=count
    )


def spawn_once(var, sigma=0.1, seed=(1, 2)):
    return lambda: ops.late_phase_spawn(var=var.handle, sigma=sigma, seed=seed)


def batch_norm(x, channels=3):
    ones = np.ones((2, channels), np.float32)
    return lambda: ops.late_phase_batch_norm(
        x=unknown(x), scale=ones, offset=ones, mean=ones, variance=ones, member=0
    )


def lstm(units=2, **changes):
    inputs = {
        "x": (4, 3, 5),
        "initial_h": (3, units),
        "initial_c": (3, units),
        "kernel": (5, 4 * units),
        "recurrent_kernel": (units, 4 * units),
        "bias": (4 * units,),
        "u": (2, units),
        "v": (2, 4 * units),
    }
    inputs |= changes
    return lambda: ops.late_phase_rank1_lstm(
        **{name: unknown(np.ones(shape, np.float32)) for name, shape in inputs.items()}, member=0
    )


def softmax(labels):
    return lambda: ops.late_phase_softmax_cross_entropy(
        features=np.ones((3, 2), np.float32),
        kernel=np.ones((2, 4), np.float32),
        bias=np.ones(4, np.float32),
        labels=unknown(labels),
    )


def unknown(x):
    """x, of a shape that is known when the program is compiled, but not when the graph is built."""
    return tf.raw_ops.PlaceholderWithDefault(input=x, shape=None)


REFUSED = {
    "a variable without rows": (
        lambda: read(zeros(0, 2)),
        r"ReadMember: `var` must be \[K>=1, ...\], one row per member. Received: shape=\[0,2\]",
    ),
    "a variable of another type": (
        lambda: read(zeros(2, 2), dtype=tf.float64),
        "`var` must be of type double. Received: type=float",
    ),
    "several members": (
        lambda: read(zeros(2, 2), member=[0]),
        r"`member` must be a scalar. Received: shape=\[1\]",
    ),
    "a constant member": (
        lambda: read(zeros(2, 2), member=2),
        r"`member` must be in \[0, 2\), the rows of `var`. Received: member=2",
    ),
    "a gradient": (
        lambda: member_sgd(grad=np.zeros(3, np.float32)),
        r"`grad` must have the shape of a row of `var`, \[2\], or of all of it, \[3,2\]. "
        r"Received: shape=\[3\]",
    ),
    "a constant rate": (
        lambda: member_sgd(lr=-0.1),
        r"MemberApplySgd: `lr` must be in \[0, inf\). Received: lr=-0.1",
    ),
    "several rates": (
        lambda: member_sgd(lr=[0.1]),
        r"`lr` must be a scalar. Received: shape=\[1\]",
    ),
    "a slot": (
        lambda: member_momentum(zeros(3, 2), zeros(2, 2)),
        r"`accum` must have the shape \[3,2\], to match `var`. Received: shape=\[2,2\]",
    ),
    "a slot's type": (
        lambda: member_momentum(zeros(3, 2), zeros(3, 2, dtype=np.float64)),
        "`accum` must be of type float. Received: type=double",
    ),
    "a cycle": (lambda: base_sgd(cycle=0), "`cycle` must be at least 1. Received: cycle=0"),
    "a place in the cycle": (
        lambda: base_sgd(member=3),
        r"`member` must be in \[0, 3\), the length of `cycle`. Received: member=3",
    ),
    "a scale": (lambda: base_sgd(scale=0.0), r"`scale` must be in \(0, 1\]. Received: scale=0"),
    "a base gradient": (
        lambda: base_sgd(grad=np.zeros(2, np.float32)),
        r"`grad` must have the shape \[3,2\], to match `var`. Received: shape=\[2\]",
    ),
    "an average": (
        lambda: swa(zeros(2), zeros(3)),
        r"`average` must have the shape of `source`, \[3\]. Received: shape=\[2\]",
    ),
    "an average's type": (
        lambda: swa(zeros(2), zeros(2, dtype=np.float64)),
        "`average` must be of type double. Received: type=float",
    ),
    "a source of integers": (
        lambda: swa(zeros(2), zeros(2, dtype=np.int32)),
        "`source` must be of type half, bfloat16, float or double. Received: type=int32",
    ),
    "a count": (
        lambda: swa(zeros(2), zeros(2), count=-1),
        "`count` must be a scalar >= 0. Received: count=-1",
    ),
    "a seed": (
        lambda: spawn_once(zeros(2, 2), seed=[1, 2, 3]),
        r"Spawn: `seed` must be \[2\]. Received: shape=\[3\]",
    ),
    "a sigma": (
        lambda: spawn_once(zeros(2, 2), sigma=-1.0),
        r"`sigma` must be in \[0, inf\). Received: sigma=-1",
    ),
    "an image": (
        lambda: batch_norm(np.ones((2, 3, 3), np.float32)),
        r"BatchNorm: `x` must be \[batch, channels\] or .*. Received: shape=\[2,3,3\]",
    ),
    "channels": (
        lambda: batch_norm(np.ones((2, 4), np.float32)),
        r"`scale` must be \[K>=1, channels\] with channels=4. Received: shape=\[2,3\]",
    ),
    "a kernel": (
        lambda: lstm(kernel=(4, 8)),
        r"Rank1Lstm: `kernel` must be \[input, 4\*units\] with input=5, units=2. "
        r"Received: shape=\[4,8\]",
    ),
    "factors": (
        lambda: lstm(v=(3, 8)),
        r"`v` must be \[K, 4\*units\] with K=2, units=2. Received: shape=\[3,8\]",
    ),
    "labels": (
        lambda: softmax(np.zeros(4, np.int32)),
        r"`labels` must be \[n\] with n=3. Received: shape=\[4\]",
    ),
}


def assert_refused(call, message, jit_compile):
    def step():
        outputs = call()
        return None if isinstance(outputs, tf.Operation) else outputs

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(step, jit_compile=jit_compile)()


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_as_by_the_plain_kernels(what):
    make, message = REFUSED[what]
    call = make()
    assert_refused(call, message, jit_compile=False)
    assert_refused(call, message, jit_compile=True)


def test_one_variable_for_two_inputs_is_refused():
    var = zeros(3, 2)
    assert_refused(member_momentum(var, var), "variables must differ. Received: one", True)


# --- Values that are out of range when the program runs ---------------------------------------


def case_named(name):
    [case] = [case for case in CASES if case.name == name]
    return case


OUT_OF_RANGE = {
    "read_member-float-3x5-0": {"member": [-1, 3]},
    "spawn-float-3x5-0.7": {"sigma": [-1.0, np.inf, np.nan]},
    "swa-float-3x5-3": {"count": [-1]},
    "member-sgd-float-(3, 4, 5)-0-False": {
        "member": [-1, 3],
        "lr": [-0.1, np.nan],
        "weight_decay": [-1.0],
    },
    "member-momentum-float-(3, 4, 5)-0-False": {"member": [3], "momentum": [1.0]},
    "member-adam-float-(3, 4, 5)-0-False": {
        "member": [-1],
        "beta1": [1.0],
        "beta2": [-0.1],
        "epsilon": [-1.0],
    },
    "base-sgd-float-(4, 5)-1-of-3": {"member": [-1, 3], "cycle": [0, 1], "scale": [0.0, 1.5]},
    "base-momentum-float-(4, 5)-1-of-3": {"member": [3], "momentum": [1.0]},
    "base-adam-float-(4, 5)-1-of-3": {"member": [-1], "beta2": [1.0]},
    "batch_norm-float-Identity-True-(7, 5)": {"member": [-1, 3]},
    "batch_norm-float-Relu-False-(7, 5)": {"member": [3]},
    "lstm-float-True-5-3-4-6": {"member": [-1, 3]},
    "lstm_tokens-float-False-5-3-4-6": {"member": [3]},
}
SHOWS = {
    "read_member": "row",
    "batch": "y",
    "lstm": "h",
    "lstm_tokens": "h",
    "swa": "variable average",
}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_a_value_out_of_range_makes_the_result_nan(name, value):
    case = case_named(name)
    good = case.run(jit_compile=True)
    where = SHOWS.get(re.match(r"read_member|lstm_tokens|[a-z]+", name)[0], "variable var")
    for bad in OUT_OF_RANGE[name][value]:
        inputs = {**case.inputs, value: np.asarray(bad, case.inputs[value].dtype)}
        results = dataclasses.replace(case, inputs=inputs).run(jit_compile=True)
        assert not np.isnan(good[where]).any()
        wrong = np.isnan(results[where])
        if not name.startswith("member-"):
            assert wrong.all(), bad
            continue
        # A whole row, and no other.
        assert sorted(wrong.reshape(3, -1).mean(axis=1)) == [0, 0, 1], bad
        np.testing.assert_array_equal(results[where][~wrong], case.variables["var"][~wrong])


def test_an_unknown_token_makes_its_own_sequence_nan():
    case = case_named("lstm_tokens-float-True-5-3-4-6")
    for token in [-1, 4]:
        tokens = case.inputs["tokens"].copy()
        tokens[2, 1] = token
        results = dataclasses.replace(case, inputs={**case.inputs, "tokens": tokens}).run(
            jit_compile=True
        )
        wrong = np.isnan(results["h"])
        assert wrong[2:, 1].all() and wrong.sum() == wrong[2:, 1].size


def test_an_unknown_label_makes_its_own_row_nan():
    case = case_named("softmax-float-5-4-7")
    for label in [-1, 7]:
        labels = case.inputs["labels"].copy()
        labels[3] = label
        results = dataclasses.replace(case, inputs={**case.inputs, "labels": labels}).run(
            jit_compile=True
        )
        assert np.isnan(results["loss"]).tolist() == [False, False, False, True, False]
        assert np.isnan(results["dlogits"]).sum() == np.isnan(results["dlogits"][3]).sum() == 7


# --- The compiled program ---------------------------------------------------------------------


def optimized(step, *inputs):
    """The program after all of XLA's passes, and its main part."""
    program = tf.function(step, jit_compile=True).experimental_get_compiler_ir(*inputs)(
        stage="optimized_hlo"
    )
    return program, program[program.index("\nENTRY") :]


def count(operation, program):
    return len(re.findall(rf" {operation}\(", program))


HOST = ["custom-call", "infeed", "outfeed", "send", "recv"]


@pytest.mark.parametrize("tokens", [True, False])
def test_an_lstm_has_one_loop_per_direction(tokens):
    case = case_named(f"lstm{'_tokens' if tokens else ''}-float-True-17-9-5-7")
    inputs = {name: tf.constant(value) for name, value in case.inputs.items()}
    program, _ = optimized(lambda inputs: case.call({}, inputs), inputs)
    assert count("while", program) == 2
    # How often they run is known, so that a GPU need not ask the host.
    assert sorted(re.findall(r'known_trip_count":{"n":"(\d+)"}', program)) == ["17", "17"]
    assert not any(count(operation, program) for operation in HOST)


@pytest.mark.parametrize(
    "target, shape", [("member", "(3, 4, 5)-0-False"), ("base", "(131,)-1-of-3")]
)
@pytest.mark.parametrize("rule", HYPER)
@pytest.mark.parametrize("type", ["float", "half"])
def test_updates_are_in_place(target, shape, rule, type):
    case = case_named(f"{target}-{rule}-{type}-{shape}")
    variables = {name: tf.Variable(value) for name, value in case.variables.items()}
    inputs = {name: tf.constant(value) for name, value in case.inputs.items()}
    program, main = optimized(lambda inputs: case.call(variables, inputs), inputs)
    # Every variable is an input whose memory is that of an output. Only scalars are copied.
    assert program.splitlines()[0].count("may-alias") == len(variables)
    assert not re.findall(r"f(?:16|32)\[\d[\d,]*\]\S* copy\(", main)
    assert count("while", program) == 0 and not any(count(operation, program) for operation in HOST)


def test_spawn_needs_no_host():
    case = case_named("spawn-float-2x257-0.7")
    var = tf.Variable(case.variables["var"])
    inputs = {name: tf.constant(value) for name, value in case.inputs.items()}
    program, _ = optimized(lambda inputs: spawn({"var": var}, inputs), inputs)
    assert not any(count(operation, program) for operation in HOST)
