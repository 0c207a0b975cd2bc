"""tools/develop/cuda_report.py on what ptxas writes."""

import _ctypes
import json
import os

import pytest

from tools.develop import cuda_report

# Of nvcc 13.0, shortened: two architectures, shared memory, a function that a kernel calls.
REPORT = """CUDA 13.0
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN10late_phase57_GLOBAL__N__51bd2d6b_21_member_rows_gpu_cu_cc_3e8d8b5e_1713SquaresKernelINS_4HalfEEEvlPKT_lPd' for 'sm_75'
ptxas info    : Function properties for _ZN10late_phase57_GLOBAL__N__51bd2d6b_21_member_rows_gpu_cu_cc_3e8d8b5e_1713SquaresKernelINS_4HalfEEEvlPKT_lPd
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 384 bytes cmem[0]
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN10late_phase57_GLOBAL__N__51bd2d6b_21_member_rows_gpu_cu_cc_3e8d8b5e_1713SquaresKernelINS_4HalfEEEvlPKT_lPd' for 'sm_80'
ptxas info    : Function properties for _ZN10late_phase57_GLOBAL__N__51bd2d6b_21_member_rows_gpu_cu_cc_3e8d8b5e_1713SquaresKernelINS_4HalfEEEvlPKT_lPd
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 512 bytes smem, 384 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN10late_phase57_GLOBAL__N__51bd2d6b_21_member_rows_gpu_cu_cc_3e8d8b5e_1713SquaresKernelIdEEvlPKT_lPd' for 'sm_80'
ptxas info    : Function properties for _ZN10late_phase57_GLOBAL__N__51bd2d6b_21_member_rows_gpu_cu_cc_3e8d8b5e_1713SquaresKernelIdEEvlPKT_lPd
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 34 registers, used 1 barriers, 512 bytes smem, 384 bytes cmem[0]
ptxas info    : Function properties for __internal_accurate_pow
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


def spilling(report):
    """A spill in what the last kernel calls."""
    kernels, last = report.rsplit("    0 bytes stack frame", 1)
    return (
        kernels
        + "    8 bytes stack frame"
        + last.replace(
            "0 bytes spill stores, 0 bytes spill loads",
            "8 bytes spill stores, 16 bytes spill loads",
        )
    )


# Any shared library will do: this one has no CUDA code.
LIBRARY = _ctypes.__file__


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "member_rows_gpu.ptxas.txt"
    path.write_text(REPORT)
    return path


def test_reads_kernels_by_architecture(report):
    version, kernels = cuda_report.read_reports([report])
    common = {"source": "member_rows_gpu.cu.cc", "shared_bytes": 512, "spill_bytes": 0}
    assert version == "13.0" and kernels == [
        {**common, "kernel": "SquaresKernel<Half>", "architecture": "sm_75", "registers": 40},
        {**common, "kernel": "SquaresKernel<Half>", "architecture": "sm_80", "registers": 32},
        {**common, "kernel": "SquaresKernel<double>", "architecture": "sm_80", "registers": 34},
    ]


def test_table_joins_variants_and_sums_architectures_up(report, capsys):
    cuda_report.main(["--library", LIBRARY, str(report)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["SquaresKernel", "2", "32", "to", "34", "512", "0"] in lines
    assert ["sm_75", "1", "at", "most", "40", "0"] in lines and [
        "sm_80",
        "2",
        "at",
        "most",
        "34",
        "0",
    ] in lines


@pytest.mark.parametrize(
    "signature, name, kernel",
    [
        (
            "void late_phase::(anonymous namespace)::Update<4, late_phase::Half, "
            "late_phase::(anonymous namespace)::Adam<float, true> >(long, late_phase::(anonymous "
            "namespace)::Arrays<late_phase::Half, 3>)",
            "Update<4, Half, Adam<float, true>>",
            "Update<Adam>",
        ),
        (
            "void late_phase::Gates<(int)4, (late_phase::Form)1, unsigned int>(float const*)",
            "Gates<4, 1, unsigned int>",
            "Gates",
        ),
        ("late_phase::(anonymous namespace)::Probe()", "Probe", "Probe"),
    ],
)
def test_names_are_shortened(signature, name, kernel):
    assert cuda_report.short_name(signature) == name and cuda_report.kernel_of(name) == kernel


def test_spill_is_an_error_that_names_the_kernel(report):
    report.write_text(spilling(REPORT))
    with pytest.raises(SystemExit) as error:
        cuda_report.main(["--library", LIBRARY, str(report)])
    assert "SquaresKernel<double> in member_rows_gpu.cu.cc, sm_80: 24 bytes" in str(error.value)
    assert "spill" in str(error.value) and "Half" not in str(error.value)


def test_write_records_the_numbers_and_the_table(report, tmp_path, capsys):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    cuda_report.main(["--library", LIBRARY, "--write", str(report)])
    table = capsys.readouterr().out
    assert (tmp_path / "docs" / "results" / "cuda_report.txt").read_text() == table
    results = json.loads((tmp_path / "docs" / "results" / "cuda_report.json").read_text())
    assert "\n".join(cuda_report.render(results)) + "\n" == table


def test_library_is_measured(monkeypatch):
    sections = (
        "  [16] .nv_fatbin        PROGBITS        0000000000256308 256308 b3ebf8 00   A  0   0  8\n"
    )
    monkeypatch.setattr(
        cuda_report.subprocess, "run", lambda *_, **__: type("Run", (), {"stdout": sections})
    )
    assert cuda_report.library_sizes(LIBRARY) == {
        "bytes": os.path.getsize(LIBRARY),
        "cuda_bytes": 0xB3EBF8,
    }
