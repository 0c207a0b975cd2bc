"""Every op under `jit_compile=True` against the plain kernels: one list of cases.

A case is called twice, plain and compiled, with variables of its own each time. Outputs, gradients
and variables must then agree: within rounding, or bit for bit where the case says so.
"""

import dataclasses
import itertools
import os
import re
import subprocess
import sys
import typing

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import late_phase

ops = late_phase.raw_ops
TYPES = {
    "float": np.float32,
    "double": np.float64,
    "half": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# A few roundings. Half types are computed in float and rounded at the end, by both alike; where the
# float results differ, so may the last digit that is kept.
TOLERANCE = {"float": 2e-5, "double": 1e-12, "half": 2e-3, "bfloat16": 1.6e-2}


def wide(name):
    """The type of slots, sums and statistics."""
    return np.float64 if name == "double" else np.float32


@dataclasses.dataclass
class Case:
    name: str
    type: str
    call: typing.Callable  # of variables and inputs, by name; returns a dict of tensors, or None
    variables: dict = dataclasses.field(default_factory=dict)
    inputs: dict = dataclasses.field(default_factory=dict)
    same_bits: bool = False
    plain_call: typing.Callable = None  # if the plain kernels need another one

    def run(self, jit_compile):
        """Outputs and variables after one call. Inputs are values of the running program."""
        variables = {name: tf.Variable(value) for name, value in self.variables.items()}
        inputs = {name: tf.constant(value) for name, value in self.inputs.items()}
        call = self.call if jit_compile else self.plain_call or self.call

        @tf.function(jit_compile=jit_compile)
        def step(inputs):
            return call(variables, inputs) or {}

        outputs = dict(step(inputs))
        outputs.update({f"variable {name}": value for name, value in variables.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def random(shape, dtype, seed=0, scale=1.0):
    values = np.random.default_rng([seed, *np.atleast_1d(shape)]).normal(size=shape) * scale
    return values.astype(dtype)


def handles(variables):
    return {name: variable.handle for name, variable in variables.items()}


# --- ReadMember, Collapse, Spawn, SwaUpdate ---------------------------------------------------

STACKS = [(3, 5), (1, 7), (4, 2, 3), (2,), (3, 0), (2, 257), (3, 16400)]


def state_cases():
    for (name, dtype), shape in itertools.product(TYPES.items(), STACKS):
        var = {"var": random(shape, dtype, 1)}
        label = f"{name}-{'x'.join(map(str, shape))}"
        for member in {0, shape[0] - 1}:
            yield Case(
                f"read_member-{label}-{member}",
                name,
                read_member,
                var,
                {"member": np.int32(member)},
                True,
            )
        yield Case(f"collapse-{label}", name, collapse, var)
        for count in [0, 3]:
            both = {"average": random(shape, wide(name), 2), "source": random(shape, dtype, 3)}
            yield Case(f"swa-{label}-{count}", name, swa_update, both, {"count": np.int64(count)})
        for sigma, seed in [(0.7, (1, 2)), (0.0, (3, 4)), (1e-3, (-5, 2**62 + 9))]:
            inputs = {"sigma": dtype(sigma), "seed": np.array(seed, np.int64)}
            yield Case(f"spawn-{label}-{sigma}", name, spawn, var, inputs, True)
    # A type of its own for sigma, and rows large enough for several blocks of the sum of squares.
    for name, dtype in TYPES.items():
        inputs = {"sigma": np.float64(0.3), "seed": np.array([7, 8], np.int64)}
        yield Case(
            f"spawn-blocks-{name}", name, spawn, {"var": random((2, 70001), dtype, 5)}, inputs, True
        )


def read_member(variables, inputs):
    var = variables["var"]
    return {"row": ops.late_phase_read_member(var=var.handle, dtype=var.dtype, **inputs)}


def collapse(variables, inputs):
    var = variables["var"]
    return {"mean": ops.late_phase_collapse(var=var.handle, dtype=var.dtype)}


def spawn(variables, inputs):
    ops.late_phase_spawn(**handles(variables), **inputs)


def swa_update(variables, inputs):
    ops.late_phase_swa_update(**handles(variables), **inputs)


# --- Updates ----------------------------------------------------------------------------------

HYPER = {
    "sgd": {"lr": 0.05, "weight_decay": 0.01},
    "momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3, "weight_decay": 0.01},
}
SLOTS = {"sgd": [], "momentum": ["accum"], "adam": ["m", "v"]}
FORMS = [
    ("sgd", {}),
    ("momentum", {}),
    ("momentum", {"use_nesterov": True}),
    ("momentum", {"lr_in_accum": True}),
    ("momentum", {"lr_in_accum": True, "use_nesterov": True}),
    ("adam", {}),
]


def update(target, rule, attributes):
    op = getattr(ops, f"late_phase_{target}_apply_{rule}")

    def call(variables, inputs):
        op(**handles(variables), **inputs, **attributes)

    return call


def update_variables(rule, shape, counts, name, seed):
    variables = {"var": random(shape, TYPES[name], seed)}
    for i, slot in enumerate(SLOTS[rule]):
        variables[slot] = np.abs(random(shape, wide(name), seed + 1 + i))
    if rule == "adam":
        variables["count"] = np.arange(np.prod(counts, dtype=int)).reshape(counts) + 2
    return variables


def update_cases():
    for (name, dtype), (rule, attributes) in itertools.product(TYPES.items(), FORMS):
        hyper = {key: dtype(value) for key, value in HYPER[rule].items()}
        label = "-".join([rule, *attributes, name])
        for shape in [(3, 4, 5), (2,), (1, 37), (3, 0)]:
            variables = update_variables(rule, shape, shape[:1], name, 10)
            for member, of_all in [(0, False), (shape[0] - 1, True)]:
                grad = random(shape if of_all else shape[1:], dtype, 20)
                inputs = {"member": np.int32(member), "grad": grad, **hyper}
                yield Case(
                    f"member-{label}-{shape}-{member}-{of_all}",
                    name,
                    update("member", rule, attributes),
                    variables,
                    inputs,
                )
        for shape, (member, cycle) in itertools.product(
            [(4, 5), (), (131,), (0, 3)], [(0, 1), (0, 3), (1, 3), (2, 3)]
        ):
            variables = update_variables(rule, shape, (), name, 30)
            variables["sum"] = random(shape, wide(name), 40)
            inputs = {
                "member": np.int32(member),
                "cycle": np.int32(cycle),
                "scale": dtype(0.5),
                "grad": random(shape, dtype, 50),
                **hyper,
            }
            yield Case(
                f"base-{label}-{shape}-{member}-of-{cycle}",
                name,
                update("base", rule, attributes),
                variables,
                inputs,
            )


# --- Ops with gradients -----------------------------------------------------------------------


def with_gradients(op, attributes, scored):
    """Calls an op, and differentiates a weighted sum of its outputs `scored`."""

    def call(variables, inputs):
        watched = {name: x for name, x in inputs.items() if x.dtype.is_floating}
        with tf.GradientTape() as tape:
            tape.watch(watched)
            result = op(**inputs, **attributes)._asdict()
            score = 0.0
            for i, name in enumerate(scored):
                output = tf.cast(result[name], tf.float64)
                places = tf.reshape(tf.range(tf.size(output)), tf.shape(output))
                score += tf.reduce_sum(output * tf.cos(tf.cast(places, tf.float64) * (i + 1.7)))
        outputs = dict(result)
        if scored and (attributes.get("is_training", True) or "activation" in attributes):
            for name, gradient in tape.gradient(score, watched).items():
                if gradient is not None:
                    outputs[f"d{name}"] = gradient
        return outputs

    return call


def channels_last(call):
    """For the plain kernels on the CPU, which take images in this order only."""

    def transposed(variables, inputs):
        outputs = call(variables, {**inputs, "x": tf.transpose(inputs["x"], [0, 2, 3, 1])})
        for name in {"y", "dx"} & outputs.keys():
            outputs[name] = tf.transpose(outputs[name], [0, 3, 1, 2])
        return outputs

    return transposed


def batch_norm_inputs(shape, channels, name, mean=0.3, members=3, member=2):
    stacks = {
        part: random((members, channels), wide(name), i)
        for i, part in enumerate(["scale", "offset", "mean"])
    }
    variance = np.abs(random((members, channels), wide(name), 4)) + 0.1
    x = (random(shape, np.float64, 5) + mean).astype(TYPES[name])
    return {"x": x, **stacks, "variance": variance.astype(wide(name)), "member": np.int32(member)}


def batch_norm_cases():
    op = ops.late_phase_batch_norm
    for name, activation, training in itertools.product(TYPES, ["Identity", "Relu"], [True, False]):
        attributes = {
            "activation": activation,
            "is_training": training,
            "momentum": 0.2,
            "epsilon": 1e-3,
        }
        call = with_gradients(op, attributes, ["y"])
        label = f"{name}-{activation}-{training}"
        for shape in [(7, 5), (1, 3), (33, 1), (2, 3, 5, 4), (1, 1, 1, 2), (0, 3), (4, 0)]:
            inputs = batch_norm_inputs(shape, shape[-1], name)
            yield Case(f"batch_norm-{label}-{shape}", name, call, inputs=inputs)
        first = with_gradients(op, {**attributes, "data_format": "NCHW"}, [])
        last = channels_last(with_gradients(op, attributes, []))
        inputs = batch_norm_inputs((3, 4, 5, 2), 4, name)
        yield Case(f"batch_norm-NCHW-{label}", name, first, inputs=inputs, plain_call=last)
    for name in ["float", "double"]:  # a mean far larger than the deviation; a constant channel
        call = with_gradients(op, {}, ["y"])
        inputs = batch_norm_inputs((4099, 3), 3, name, mean=3e3)
        inputs["x"][:, 1] = 0.1
        yield Case(f"batch_norm-large-mean-{name}", name, call, inputs=inputs)
    for name in TYPES:  # the gradient of NCHW
        inputs = batch_norm_inputs((3, 4, 5, 2), 4, name)
        inputs = {part: inputs[part] for part in ["x", "scale", "offset", "member"]}
        saved = {
            f"saved_{part}": random(4, wide(name), i) * (0.01 if "rest" in part else 1)
            for i, part in enumerate(["mean", "mean_rest", "inv_std"])
        }
        inputs |= saved | {"dy": random((3, 4, 5, 2), TYPES[name], 9)}
        yield Case(
            f"batch_norm_grad-NCHW-{name}",
            name,
            batch_norm_grad("NCHW"),
            inputs=inputs,
            plain_call=batch_norm_grad("NHWC"),
        )


def batch_norm_grad(data_format):
    def call(variables, inputs):
        if data_format == "NHWC":
            inputs = {
                name: tf.transpose(x, [0, 2, 3, 1]) if x.shape.rank == 4 else x
                for name, x in inputs.items()
            }
        outputs = ops.late_phase_batch_norm_grad(
            **inputs, data_format=data_format, activation="Relu"
        )._asdict()
        if data_format == "NHWC":
            outputs["dx"] = tf.transpose(outputs["dx"], [0, 3, 1, 2])
        return outputs

    return call


def softmax_cases():
    call = with_gradients(ops.late_phase_softmax_cross_entropy, {}, ["loss"])
    for name, (n, units, vocab) in itertools.product(
        TYPES, [(5, 4, 7), (1, 1, 1), (0, 3, 2), (67, 9, 33), (3, 0, 4)]
    ):
        inputs = {
            "features": random((n, units), TYPES[name], 1),
            "kernel": random((units, vocab), TYPES[name], 2),
            "bias": random(vocab, TYPES[name], 3),
            "labels": np.random.default_rng(4).integers(0, vocab, n).astype(np.int32),
        }
        yield Case(f"softmax-{name}-{n}-{units}-{vocab}", name, call, inputs=inputs)
    # A prediction so confident that the sum is 1 to the last digit, and one so wrong.
    for name in ["float", "double"]:
        inputs = {
            "features": np.ones((3, 1), TYPES[name]),
            "kernel": np.array([[40.0, 0, -3]], TYPES[name]),
            "bias": np.zeros(3, TYPES[name]),
            "labels": np.array([0, 1, 2], np.int32),
        }
        yield Case(f"softmax-confident-{name}", name, call, inputs=inputs)


LSTM_SHAPES = [(5, 3, 4, 6), (1, 1, 1, 1), (3, 2, 0, 2), (0, 2, 3, 2), (2, 0, 3, 2), (17, 9, 5, 7)]


def lstm_weights(batch, units, name, members=3, member=1):
    dtype = TYPES[name]
    return {
        "initial_h": random((batch, units), dtype, 1, 0.5),
        "initial_c": random((batch, units), dtype, 2, 0.5),
        "recurrent_kernel": random((units, 4 * units), dtype, 3, 0.4),
        "u": (1 + random((members, units), np.float64, 4, 0.3)).astype(dtype),
        "v": (1 + random((members, 4 * units), np.float64, 5, 0.3)).astype(dtype),
        "member": np.int32(member),
    }


def lstm_cases():
    scored = ["h", "final_h", "final_c"]
    for name, training, (time, batch, inputs, units) in itertools.product(
        TYPES, [True, False], LSTM_SHAPES
    ):
        label = f"{name}-{training}-{time}-{batch}-{inputs}-{units}"
        weights = lstm_weights(batch, units, name)
        attributes = {"is_training": training}
        dense = {
            "x": random((time, batch, inputs), TYPES[name], 6),
            "kernel": random((inputs, 4 * units), TYPES[name], 7),
            "bias": random(4 * units, TYPES[name], 8),
            **weights,
        }
        yield Case(
            f"lstm-{label}",
            name,
            with_gradients(ops.late_phase_rank1_lstm, attributes, scored),
            inputs=dense,
        )
        if inputs == 0 and time * batch > 0:
            continue  # there are no tokens without a vocabulary
        tokens = (
            np.random.default_rng(9).integers(0, max(inputs, 1), (time, batch)).astype(np.int32)
        )
        by_token = {
            "tokens": tokens,
            "table": random((inputs, 4 * units), TYPES[name], 7),
            **weights,
        }
        yield Case(
            f"lstm_tokens-{label}",
            name,
            with_gradients(ops.late_phase_rank1_lstm_tokens, attributes, scored),
            inputs=by_token,
        )


CASES = [*state_cases(), *update_cases(), *batch_norm_cases(), *softmax_cases(), *lstm_cases()]


def assert_agree(case, plain, compiled):
    assert plain.keys() == compiled.keys()
    for name, expected in plain.items():
        actual = compiled[name]
        assert actual.dtype == expected.dtype and actual.shape == expected.shape, name
        if case.same_bits:
            assert actual.tobytes() == expected.tobytes(), name
            continue
        type = {np.dtype(dtype): key for key, dtype in TYPES.items()}.get(expected.dtype)
        if type is None:  # a count
            np.testing.assert_array_equal(actual, expected, name)
            continue
        if case.type == "double" or type != "float":
            tolerance = TOLERANCE[type]
        else:
            tolerance = TOLERANCE["float"]
        expected, actual = expected.astype(np.float64), actual.astype(np.float64)
        size = np.nanmax(np.abs(expected[np.isfinite(expected)]), initial=1)
        np.testing.assert_allclose(actual, expected, tolerance, tolerance * size, err_msg=name)


# Compiling takes half a second a case: the default run has every third, of every op and type;
# //tests/python:xla_all_cases_test has them all.
CHOSEN = CASES if "LATE_PHASE_ALL_CASES" in os.environ else CASES[::3]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_compiled_equals_plain(case):
    assert_agree(case, case.run(jit_compile=False), case.run(jit_compile=True))


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
