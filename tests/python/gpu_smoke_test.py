"""All ops on a real GPU against the CPU and against themselves; says that it skips where there is
no GPU.
"""

import pytest
import tensorflow as tf

from late_phase.check import ops
from late_phase.check.op_cases import CASES


def test_gpu_equals_cpu_and_itself():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU that TensorFlow can use")
    ops.forbid_other_devices()
    results = [ops.compare(case, "GPU:0", ops.KERNELS) for case in CASES]
    assert [one for one in results if one["problem"]] == []
