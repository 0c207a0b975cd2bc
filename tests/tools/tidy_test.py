"""`bazel build --config=tidy` finds faults: its reports on samples, made by the same aspect."""

import os
import subprocess

REPORTS = os.environ["LATE_PHASE_TIDY_REPORTS"].split()
CHECK = os.environ["LATE_PHASE_CHECK_TIDY_REPORTS"]


def report_path(sample):
    (path,) = (path for path in REPORTS if path.endswith(f".{sample}.tidy.txt"))
    with open(path) as file:
        assert "clang-tidy is not installed" not in file.read()
    return path


def check(path, tmp_path):
    return subprocess.run([CHECK, tmp_path / "stamp", path], capture_output=True, text=True)


def test_faults_in_source_and_header_fail(tmp_path):
    found = check(report_path("faulty.cc"), tmp_path)
    assert found.returncode == 1
    assert "tests/tools/tidy/faulty.cc:8:" in found.stderr
    assert "bugprone-use-after-move" in found.stderr
    assert "tests/tools/tidy/faulty.h:11:" in found.stderr
    assert "google-explicit-constructor" in found.stderr


def test_good_code_passes(tmp_path):
    found = check(report_path("faultless.cc"), tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert (tmp_path / "stamp").exists()


def test_the_benchmarks_that_google_benchmark_keeps_do_not_count(tmp_path):
    leak = (
        "/usr/include/benchmark/benchmark.h:9:3: error: Potential memory leak "
        "[clang-analyzer-cplusplus.NewDeleteLeaks,-warnings-as-errors]\n    9 | x\n"
    )
    fault = "kernels/x.cc:1:1: error: Potential memory leak [cplusplus.NewDeleteLeaks]\n    1 | y\n"
    report = tmp_path / "report"
    report.write_text(leak)
    assert check(report, tmp_path).returncode == 0
    report.write_text(leak + fault + leak)
    found = check(report, tmp_path)
    assert (found.returncode, found.stderr) == (1, fault)
