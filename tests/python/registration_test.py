"""Every op has a kernel for CPU and GPU, for the same types, and takes handles and scalars from
host memory.
"""

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import kernels, op_def_registry

import late_phase  # noqa: F401 (loads the library)


def registered(device):
    """{(op, types): kernel} of the library's kernels; types are its constraints as text."""
    found = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.op.startswith("LatePhase>") and kernel.device_type == device:
            types = tuple(
                (
                    constraint.name,
                    tuple(tf.as_dtype(t).name for t in constraint.allowed_values.list.type),
                )
                for constraint in kernel.constraint
            )
            found[kernel.op, types] = kernel
    return found


OPS = sorted({op for op, _ in registered("CPU")})
# The inputs that are arrays in the device's memory; all others are handles and scalars.
ARRAYS = {
    "LatePhase>BatchNorm": {"x", "scale", "offset", "mean", "variance"},
    "LatePhase>BatchNormGrad": {
        "x",
        "scale",
        "offset",
        "saved_mean",
        "saved_mean_rest",
        "saved_inv_std",
        "dy",
    },
    "LatePhase>Rank1Lstm": {
        "x",
        "initial_h",
        "initial_c",
        "kernel",
        "recurrent_kernel",
        "bias",
        "u",
        "v",
    },
    "LatePhase>Rank1LstmTokens": {
        "tokens",
        "table",
        "initial_h",
        "initial_c",
        "recurrent_kernel",
        "u",
        "v",
    },
    "LatePhase>SoftmaxCrossEntropy": {"features", "kernel", "bias", "labels"},
    "LatePhase>SoftmaxCrossEntropyGrad": {"features", "kernel", "dlogits", "dloss"},
}
_FROM_FORWARD = {"h", "gates", "cells", "dh", "dfinal_h", "dfinal_c"}
ARRAYS["LatePhase>Rank1LstmGrad"] = ARRAYS["LatePhase>Rank1Lstm"] - {"bias"} | _FROM_FORWARD
ARRAYS["LatePhase>Rank1LstmTokensGrad"] = ARRAYS["LatePhase>Rank1LstmTokens"] | _FROM_FORWARD


def test_the_library_has_all_its_ops():
    families = ["BatchNorm", "Rank1Lstm", "Rank1LstmTokens", "SoftmaxCrossEntropy"]
    expected = [name + grad for name in families for grad in ("", "Grad")]
    expected += [
        target + "Apply" + rule
        for target in ("Member", "Base")
        for rule in ("Sgd", "Momentum", "Adam")
    ]
    expected += ["ReadMember", "Spawn", "SwaUpdate", "Collapse"]
    assert OPS == sorted("LatePhase>" + name for name in expected)


@pytest.mark.parametrize("op", OPS)
def test_gpu_has_every_kernel_of_the_cpu(op):
    cpu = {types for name, types in registered("CPU") if name == op}
    gpu = {types for name, types in registered("GPU") if name == op}
    assert gpu == cpu
    typed = {value for types in cpu for name, values in types if name == "T" for value in values}
    assert typed in (set(), {"float16", "bfloat16", "float32", "float64"})


@pytest.mark.parametrize("op", OPS)
def test_gpu_takes_handles_and_scalars_from_host_memory(op):
    inputs = [argument for argument in op_def_registry.get(op).input_arg]
    arrays = ARRAYS.get(op, {"grad"} & {argument.name for argument in inputs})
    assert arrays <= {argument.name for argument in inputs}
    handles = {argument.name for argument in inputs if argument.type == types_pb2.DT_RESOURCE}
    assert not handles & arrays
    for (name, _), kernel in registered("GPU").items():
        if name == op:
            assert set(kernel.host_memory_arg) == {argument.name for argument in inputs} - arrays
