"""A case: one call of ops with given inputs and variables, on any device, and how far two results
of it are apart.
"""

import collections
import dataclasses
import typing

import ml_dtypes
import numpy as np
import tensorflow as tf

TYPES = {
    "float": np.float32,
    "double": np.float64,
    "half": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# A few roundings. Half types are computed in float and rounded at the end, by all alike; where the
# float results differ, so may the last digit that is kept.
TOLERANCE = {"float": 2e-5, "double": 1e-12, "half": 2e-3, "bfloat16": 1.6e-2}
_PREFIX = "LatePhase>"


@dataclasses.dataclass
class Case:
    name: str
    type: str
    call: typing.Callable  # of variables and inputs, by name; returns a dict of tensors, or None
    variables: dict = dataclasses.field(default_factory=dict)
    inputs: dict = dataclasses.field(default_factory=dict)
    same_bits: bool = False
    cpu_call: typing.Callable = None  # if the kernels of the CPU need another one

    def build(self, device="CPU:0", jit_compile=False):
        return BuiltCase(self, device, jit_compile)

    def run(self, device="CPU:0", jit_compile=False):
        return self.build(device, jit_compile).run()


class BuiltCase:
    """A case as a graph on a device, with variables of its own.

    Attributes:
      ops: the names of the library's ops in the graph, gradients included.
    """

    def __init__(self, case, device, jit_compile):
        self._device = device
        call = case.call
        if case.cpu_call and device.startswith("CPU") and not jit_compile:
            call = case.cpu_call
        with tf.device(device):
            self._variables = {name: tf.Variable(value) for name, value in case.variables.items()}
            self._inputs = {name: tf.constant(value) for name, value in case.inputs.items()}

            @tf.function(jit_compile=jit_compile)
            def step(inputs):
                # XLA compiles the function as a whole, for the device on which it is called.
                with tf.device(None if jit_compile else device):
                    return call(self._variables, inputs) or {}

            self._step = step.get_concrete_function(self._inputs)
        self.ops = library_ops(self._step.graph)

    def run(self):
        """Outputs and variables after one call, by name. Inputs are values of the running
        program.
        """
        with tf.device(self._device):
            outputs = dict(self._step(self._inputs))
        outputs.update({f"variable {name}": value for name, value in self._variables.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def library_ops(graph):
    """The names of the library's ops in a graph, without their prefix."""
    types = {operation.type for operation in graph.get_operations()}
    return sorted(name.removeprefix(_PREFIX) for name in types if name.startswith(_PREFIX))


Difference = collections.namedtuple("Difference", ["output", "size", "tolerance"])
Difference.__doc__ = """How far an output of a case is from what was expected.

Args:
  output: its name.
  size: the largest difference, relative to the value and to the largest value of the output, or 1
    if that is more; inf if shapes, types, or the places of NaN and inf differ.
  tolerance: the largest size that is allowed; 0: the bits must be the same.
"""


def differences(case, expected, actual):
    """The `Difference` of each output of a case."""
    return [
        Difference(name, _difference(expected.get(name), actual.get(name)), _tolerance(case, value))
        for name, value in (actual | expected).items()
    ]


def _tolerance(case, value):
    names = {np.dtype(dtype): name for name, dtype in TYPES.items()}
    return 0.0 if case.same_bits else TOLERANCE.get(names.get(value.dtype), 0.0)


def _difference(expected, actual):
    if expected is None or actual is None:
        return float("inf")
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return float("inf")
    if expected.tobytes() == actual.tobytes():
        return 0.0
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(expected)
    same_places = np.array_equal(expected[~finite], actual[~finite], equal_nan=True)
    if not same_places or not np.isfinite(actual[finite]).all():
        return float("inf")
    expected, actual = expected[finite], actual[finite]
    size = np.max(np.abs(expected), initial=1)
    difference = np.max(np.abs(actual - expected) / (size + np.abs(expected)), initial=0)
    # Bits that differ although the values do not, as those of 0 and -0.
    return float(max(difference, np.finfo(np.float64).tiny))
