"""What nvcc makes of the CUDA cores."""

import os
import re

from tools.develop import cuda_report

# Additions and multiplications with their modifiers. Without .rn the driver's compiler may fuse
# them, too.
_ARITHMETIC = re.compile(r"\b(?:add|sub|mul|fma|mad)(?:\.\w+)*\.f(?:32|64)\b")
_ROUNDED = re.compile(r"(?:add|sub|mul)\.rn\.f(?:32|64)")


def read(variable):
    with open(os.environ[variable]) as file:
        return file.read()


def test_members_are_computed_without_fused_multiply_adds():
    """On a GPU the CUDA core gives the CPU core's bits only if every operation is rounded by
    itself.
    """
    ptx = read("LATE_PHASE_MEMBER_ROWS_PTX")
    kernels = {
        kernel: body
        for kernel, body in re.findall(r"\.entry (\w+)\((.*?)(?=\.entry|\Z)", ptx, re.S)
    }
    assert len(kernels) >= 4 * 7, "seven kernels for each of four types"
    for name in ("SquaresKernel", "ScaleKernel", "NoiseKernel", "NextSample", "MeanOfRows"):
        bodies = [body for kernel, body in kernels.items() if name in kernel]
        assert len(bodies) >= 4, name
        for body in bodies:
            arithmetic = _ARITHMETIC.findall(body)
            assert arithmetic, f"{name} is expected to calculate"
            assert [
                operation for operation in arithmetic if not _ROUNDED.fullmatch(operation)
            ] == [], name
    # Correctly rounded, as on a CPU, which an approximation need not be.
    assert set(re.findall(r"\b(?:div|sqrt|rcp|rsqrt)\.\w+\.f(?:32|64)\b", ptx)) == {
        "div.rn.f32",
        "div.rn.f64",
        "sqrt.rn.f32",
        "sqrt.rn.f64",
    }
    assert ".ftz" not in ptx


def test_no_kernel_spills_registers():
    """On any architecture: `tools/latephase cuda-report` shows what each takes."""
    reports = os.environ["LATE_PHASE_CUDA_REPORTS"].split()
    version, kernels = cuda_report.read_reports(reports)
    assert (
        len(reports) >= 6
        and len(kernels) > 500
        and {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90"} <= {k["architecture"] for k in kernels}
    )
    cuda_report.require_no_spills(kernels)
