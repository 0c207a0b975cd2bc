"""Makes one call of an op (op_calls.py) and says what is wrong with what came of it.

An accepted call must give what the reference gives (op_references.py). A refused one must say so in
the project's form, and leave every variable as it was. Either way, what a reader holds of a
variable stays as it was read.
"""

import functools
import re

import numpy as np
import tensorflow as tf

import late_phase
from tests.campaign.op_calls import TYPES, wide
from tests.campaign.op_references import REFERENCES

RAW = tf.raw_ops
_ROUNDING = {"half": 2**-11, "bfloat16": 2**-8, "float": 2**-24, "double": 2**-53}
# Ops of which nothing is said about where a NaN among the inputs ends up.
_NAN_ANYWHERE = ("Rank1LstmGrad", "Rank1LstmTokensGrad")
_names = iter(range(2**62))


class Variables:
    """The variables of a call: their handles, and what they held before."""

    def __init__(self, call):
        self.call = call
        self.handles, self.before, self.held, self.kept = {}, {}, {}, []
        for one in call.signature.inputs:
            if one.variable:
                self._make(one.name, call.values[one.name])
        if call.same:
            first, second = call.same
            self.handles[second] = self.handles[first]
            self.before.pop(second, None)
            self.held.pop(second, None)

    def _make(self, name, value):
        call = self.call
        what = call.handle[1] if call.handle and call.handle[0] == name else ""
        if what == "another type":
            value = value.astype(np.int32 if value.dtype != np.int64 else np.float32)
        container = "elsewhere" if call.layout == "another container" else ""
        if what == "no variable":
            self.kept.append(tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0))
            self.handles[name] = self.kept[-1].resource_handle
            return
        handle = RAW.VarHandleOp(
            dtype=value.dtype, shape=value.shape, container=container,
            shared_name=f"campaign-{next(_names)}",
        )  # fmt: skip
        self.handles[name] = handle
        if what == "uninitialised":
            return
        RAW.AssignVariableOp(resource=handle, value=value)
        if call.layout == "copy-on-read" and value.ndim:
            nothing = value[:0]
            RAW.ResourceScatterUpdate(
                resource=handle, indices=np.zeros([0], np.int32), updates=nothing
            )
        elif call.layout == "held":
            self.held[name] = RAW.ReadVariableOp(resource=handle, dtype=value.dtype)
        self.before[name] = value

    def values(self):
        return {
            name: RAW.ReadVariableOp(resource=self.handles[name], dtype=value.dtype).numpy()
            for name, value in self.before.items()
        }

    def destroy(self):
        for name in self.before:
            RAW.DestroyResourceOp(resource=self.handles[name], ignore_lookup_error=True)


def _same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def run(call, function=None):
    """What is wrong: "" if nothing. `function` calls the op, eagerly by default."""
    variables = Variables(call)
    try:
        return _judge(call, variables, function or call_eagerly)
    finally:
        variables.destroy()


def call_eagerly(call, inputs):
    return getattr(late_phase.raw_ops, call.signature.function)(**inputs, **attributes_of(call))


def call_in_function(call, inputs):
    """By a graph that was made before any shape was known."""
    return _function(call.signature, call.dtype, tuple(attributes_of(call).items()))(**inputs)


@functools.cache
def _function(signature, dtype, attributes):
    narrow = TYPES[dtype]

    def spec(one):
        if one.variable:
            return tf.TensorSpec([], tf.resource, one.name)
        kinds = {"U": wide(narrow), "variance": wide(narrow), "rest": wide(narrow)}
        kinds |= dict.fromkeys(("member", "position", "cycle", "token", "label"), np.int32)
        kinds |= dict.fromkeys(("int64", "count"), np.int64)
        return tf.TensorSpec(None, kinds.get(one.kind, narrow), one.name)

    def body(**inputs):
        outputs = getattr(late_phase.raw_ops, signature.function)(**inputs, **dict(attributes))
        return None if isinstance(outputs, tf.Operation) else outputs

    specs = {one.name: spec(one) for one in signature.inputs}
    return tf.function(body).get_concrete_function(**specs)


FORMS = {"eager": call_eagerly, "function": call_in_function}


def attributes_of(call):
    attributes = dict(call.attributes)
    if call.signature.op in ("ReadMember", "Collapse"):
        attributes["dtype"] = TYPES[call.dtype]
    return attributes


def _judge(call, variables, function):
    inputs = {**call.values, **variables.handles}
    expected = call.expected()
    try:
        outputs = function(call, inputs)
        accepted, message = True, ""
    except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
        accepted, message = False, error.message
    for name, reader in variables.held.items():
        if not _same_bits(reader.numpy(), variables.before[name]):
            return f"what was read of `{name}` before has changed"
    if accepted != expected:
        return "accepted, but it must be refused" if accepted else f"refused: {message}"
    after = variables.values()
    if not accepted:
        return _judge_refusal(call, message, variables.before, after)
    return _judge_values(call, outputs, variables.before, after)


def _judge_refusal(call, message, before, after):
    for name, value in before.items():
        if not _same_bits(value, after[name]):
            return f"refused, and yet `{name}` has changed: {message}"
    names = "|".join([*(one.name for one in call.signature.inputs), *call.attributes])
    form = rf"LatePhase>{call.signature.op}: (`({names})`|variables must differ).*\. Received: \S"
    if not re.search(form, message, re.S):
        return f"not in the form of the project's errors: {message}"
    return ""


def _judge_values(call, outputs, before, after):
    if outputs is None or isinstance(outputs, tf.Operation):
        produced = {}
    elif isinstance(outputs, tuple):
        produced = {name: value.numpy() for name, value in outputs._asdict().items()}
    else:
        produced = {"row" if call.signature.op == "ReadMember" else "mean": outputs.numpy()}
    if "saved_mean_rest" in produced:
        rest = produced.pop("saved_mean_rest").astype(np.float64)
        produced["saved_mean + saved_mean_rest"] = (
            produced.pop("saved_mean").astype(np.float64) + rest
        )
    wanted = reference(call)
    untouched = set(before) - set(wanted)
    for name in untouched:
        if not _same_bits(before[name], after[name]):
            return f"`{name}` has changed"
    for name, value in wanted.items():
        got = produced[name] if name in produced else after[name]
        complaint = _compare(call, name, got, np.asarray(value))
        if complaint:
            return complaint
    missing = set(produced) - set(wanted)
    return f"the reference lacks {missing}" if missing else ""


def reference(call):
    """Outputs and variables by the equations; without a sum that the op does not look at."""
    inputs = {}
    for one in call.signature.inputs:
        value = call.values[one.name]
        if value.dtype.kind in "iu":
            inputs[one.name] = int(value) if one.shape == "[]" and not one.variable else value
        else:
            inputs[one.name] = value.astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = REFERENCES[call.signature.op](inputs, call.attributes)
    for name in call.unused():
        wanted.pop(name, None)
    return wanted


def _compare(call, name, got, wanted):
    if got.shape != wanted.shape:
        return f"`{name}` has the shape {got.shape} instead of {wanted.shape}"
    if got.dtype.kind in "iu":
        return "" if (got == wanted).all() else f"`{name}` is {got} instead of {wanted}"
    if call.specials == "wild" or not got.size:
        return ""
    if call.specials == "nan" and call.signature.op in _NAN_ANYWHERE:
        return ""
    got = got.astype(np.float64)
    if (np.isnan(got) != np.isnan(wanted)).any():
        return f"`{name}` is NaN in other places than the reference"
    # Noise is float whatever the type of the weights.
    exact = wide(TYPES[call.dtype]) == np.float64 and call.signature.op != "Spawn"
    compute = "double" if exact else "float"
    size = np.nanmax(np.abs(wanted), initial=0)
    with np.errstate(all="ignore"):
        allowed = (
            2 * _ROUNDING[call.dtype] * np.abs(wanted)
            + 4000 * _ROUNDING[compute] * (1 + size)
            + (6e-8 if call.dtype == "half" else 0)
        )
        off = np.where(got == wanted, 0, np.abs(got - wanted))  # infinities, too
    # Beyond the type's range there is nothing to compare.
    beyond = np.abs(wanted) > 0.99 * float(tf.as_dtype(TYPES[call.dtype]).max)
    wrong = ~((off <= allowed) | np.isnan(wanted) | beyond)
    if not wrong.any():
        return ""
    place = np.unravel_index(np.argmax(np.where(wrong, off, 0)), off.shape)
    return f"`{name}`{list(map(int, place))} is {got[place]} instead of {wanted[place]}"
