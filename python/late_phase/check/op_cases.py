"""Cases of every op, for all types: odd shapes, empty ones, and what is hard to compute.

late_phase/check/ops.py compares a GPU with the CPU in all of them, tests/python/xla_test.py the
ops under `jit_compile=True` with those without.
"""

import itertools

import numpy as np
import tensorflow as tf

import late_phase
from late_phase.check.case import TYPES, Case

ops = late_phase.raw_ops


def wide(name):
    """The type of slots, sums and statistics."""
    return np.float64 if name == "double" else np.float32


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
                places = np.arange(output.shape.num_elements(), dtype=np.float64)
                weights = np.cos(places * (i + 1.7)).reshape(output.shape)
                score += tf.reduce_sum(output * weights)
        outputs = dict(result)
        if scored and (attributes.get("is_training", True) or "activation" in attributes):
            for name, gradient in tape.gradient(score, watched).items():
                if gradient is not None:
                    outputs[f"d{name}"] = gradient
        return outputs

    return call


def channels_last(call):
    """For the kernels of the CPU, which take images in this order only."""

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
        for shape in [
            (7, 5),
            (1, 3),
            (33, 1),
            (2, 3, 5, 4),
            (1, 1, 1, 2),
            (0, 3),
            (4, 0),
            (5, 7, 9, 33),
        ]:
            inputs = batch_norm_inputs(shape, shape[-1], name)
            yield Case(f"batch_norm-{label}-{shape}", name, call, inputs=inputs)
        first = with_gradients(op, {**attributes, "data_format": "NCHW"}, [])
        last = channels_last(with_gradients(op, attributes, []))
        inputs = batch_norm_inputs((3, 4, 5, 2), 4, name)
        yield Case(f"batch_norm-NCHW-{label}", name, first, inputs=inputs, cpu_call=last)
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
            cpu_call=batch_norm_grad("NHWC"),
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
        TYPES, [(5, 4, 7), (1, 1, 1), (0, 3, 2), (67, 9, 33), (3, 0, 4), (65, 31, 205)]
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


def nan_where(mask, values):
    return tf.where(mask, tf.constant(np.nan, values.dtype), values)


def unknown_label_cases():
    """A label out of range: NaN in its row and no other. The CPU refuses it."""

    def call(variables, inputs):
        return ops.late_phase_softmax_cross_entropy(**inputs)._asdict()

    def cpu_call(variables, inputs):
        unknown = inputs["labels"] == 7
        outputs = call(variables, {**inputs, "labels": tf.where(unknown, 0, inputs["labels"])})
        return {
            "loss": nan_where(unknown, outputs["loss"]),
            "dlogits": nan_where(unknown[:, tf.newaxis], outputs["dlogits"]),
        }

    for name, dtype in TYPES.items():
        inputs = {
            "features": random((3, 2), dtype, 1),
            "kernel": random((2, 7), dtype, 2),
            "bias": random(7, dtype, 3),
            "labels": np.array([6, 7, 0], np.int32),
        }
        yield Case(f"softmax-unknown-label-{name}", name, call, inputs=inputs, cpu_call=cpu_call)


LSTM_SHAPES = [
    (5, 3, 4, 6),
    (1, 1, 1, 1),
    (3, 2, 0, 2),
    (0, 2, 3, 2),
    (2, 0, 3, 2),
    (17, 9, 5, 7),
    (6, 33, 17, 31),
]


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


def unknown_token_cases():
    """A token out of range: NaN in its sequence from its step on. The CPU refuses it."""

    def call(variables, inputs):
        outputs = ops.late_phase_rank1_lstm_tokens(**inputs, is_training=False)._asdict()
        return {name: outputs[name] for name in ("h", "final_h", "final_c")}

    def cpu_call(variables, inputs):
        unknown = inputs["tokens"] == 4
        outputs = call(variables, {**inputs, "tokens": tf.where(unknown, 0, inputs["tokens"])})
        since = np.zeros((5, 3, 1), bool)
        since[2:, 1] = True
        masks = {"h": since, "final_h": since[-1], "final_c": since[-1]}
        return {name: nan_where(mask, outputs[name]) for name, mask in masks.items()}

    tokens = np.random.default_rng(9).integers(0, 4, (5, 3)).astype(np.int32)
    tokens[2, 1] = 4
    for name in TYPES:
        inputs = {"tokens": tokens, "table": random((4, 24), TYPES[name], 7)}
        inputs |= lstm_weights(3, 6, name)
        name_of_case = f"lstm_tokens-unknown-token-{name}"
        yield Case(name_of_case, name, call, inputs=inputs, cpu_call=cpu_call)


CASES = [
    *state_cases(),
    *update_cases(),
    *batch_norm_cases(),
    *softmax_cases(),
    *unknown_label_cases(),
    *lstm_cases(),
    *unknown_token_cases(),
]
