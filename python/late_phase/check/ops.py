"""Every case of every op on a device against the kernels of the CPU.

Nothing may run elsewhere: ops are placed explicitly, and TensorFlow must not move them.
"""

import math
import re

import tensorflow as tf

import late_phase
from late_phase.check.case import TOLERANCE, differences
from late_phase.check.op_cases import CASES

KERNELS, XLA = "kernels", "XLA"


def library():
    """The names of all ops of the library, without their prefix."""
    names = (re.fullmatch(r"late_phase_([a-z0-9_]+)", name) for name in dir(late_phase.raw_ops))
    words = (found[1].split("_") for found in names if found and "eager_fallback" not in found[1])
    return sorted("".join(word.capitalize() for word in one) for one in words)


def forbid_other_devices():
    """Makes an error of an op that has no kernel on its device, and products as exact as on the
    CPU: else GPUs may round to TensorFloat-32.
    """
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.enable_tensor_float_32_execution(False)


def messages(device, first=0, cases=None):
    """Yields what is to be compared, then for every case, from number `first` on, that it begins,
    and its results: by the library's own kernels, and compiled by XLA if the same ops have not been
    with that type.
    """
    forbid_other_devices()
    cases = CASES if cases is None else cases
    yield {"ops": library(), "cases": len(cases), "tolerance": TOLERANCE}
    compiled = set()
    for number in range(first, len(cases)):
        case = cases[number]
        yield {"begins": case.name, "number": number, "by": KERNELS}
        result = compare(case, device, KERNELS)
        yield result
        if (*result["ops"], case.type) not in compiled:
            compiled.add((*result["ops"], case.type))
            yield {"begins": case.name, "number": number, "by": XLA}
            yield compare(case, device, XLA)


def compare(case, device, by):
    """The result of one case: its ops, the difference that is largest for its tolerance, and what
    is wrong with it, if anything.
    """
    result = {"case": case.name, "type": case.type, "by": by, "ops": [], "problem": None}
    try:
        on_cpu = case.build()
        result["ops"] = on_cpu.ops
        expected = on_cpu.run()
        actual, again = (case.run(device, jit_compile=by == XLA) for _ in range(2))
    except Exception as error:  # whatever it is, the other cases must be seen too
        return {**result, "problem": _first_lines(error)}
    worst = max(differences(case, expected, actual), key=_badness)
    if not math.isfinite(worst.size):
        problem = f"`{worst.output}` has another shape or type, or NaN or inf in other places"
        return {**result, "problem": problem}
    result |= worst._asdict()
    if worst.size > worst.tolerance:
        result["problem"] = (
            f"`{worst.output}` differs by {worst.size:.1e}; allowed: {worst.tolerance:.1e}"
        )
    elif by == KERNELS and any(actual[name].tobytes() != again[name].tobytes() for name in actual):
        result["problem"] = "a second call gives other bits"
    return result


def _badness(difference):
    """Exact results that are not come first, then by the share of the tolerance."""
    size, tolerance = difference.size, difference.tolerance
    return size / tolerance if tolerance else float("inf") if size else 0.0


def _first_lines(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:4])}"[:1000]
