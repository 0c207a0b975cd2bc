"""Importing the package: which library is taken, and what is said when it does not fit."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

import late_phase
from late_phase import loader


def test_build_info_and_description_agree():
    info = loader.build_info()
    assert info["tensorflow"] == tf.__version__
    assert late_phase.__version__ == info["version"]
    described = dict(line.split(": ", 1) for line in late_phase.describe().splitlines())
    assert described["late_phase"] == info["version"]
    assert described["TensorFlow"] == info["tensorflow"]
    assert described["CPU kernels"] in ("baseline", "avx2", "avx512")


def test_library_of_another_tensorflow_names_the_fix(tmp_path):
    """In a fresh process, as a user meets it."""
    other = tmp_path / "_late_phase_ops.so"
    built_for = loader.build_info()["tensorflow"].encode()
    content = open(loader.library_path(), "rb").read()
    marker = b"tensorflow=" + built_for
    assert content.count(marker) == 1
    other.write_bytes(content.replace(marker, b"tensorflow=2.99.0"[: len(marker)]))
    run = subprocess.run(
        [sys.executable, "-c", "import late_phase"], capture_output=True, text=True,
        env={**os.environ, "LATE_PHASE_OPS": str(other), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode != 0
    assert "was built for TensorFlow 2.99.0" in run.stderr and "pip install tensorflow==2.99.0" in run.stderr
    assert "undefined symbol" not in run.stderr


def another_patch_release():
    release = loader.build_info()["tensorflow"]
    return release[:-1] + ("9" if release[-1] != "9" else "8")


def test_library_of_another_patch_release_is_taken(monkeypatch):
    """As the wheel's requirement says: any 2.21."""
    info = {"version": "0.1.0", "tensorflow": another_patch_release()}
    monkeypatch.setattr(loader, "build_info", lambda: info)
    assert hasattr(loader.load.__wrapped__(), "late_phase_collapse")


@pytest.mark.parametrize("same_release", [True, False])
def test_a_symbol_that_tensorflow_lacks_is_blamed_on_the_release_if_that_differs(tmp_path, monkeypatch, same_release):
    info = {"version": "0.1.0", "tensorflow": loader.build_info()["tensorflow"] if same_release else another_patch_release()}
    source, library = tmp_path / "library.c", tmp_path / "_late_phase_ops.so"
    source.write_text("int lacking();\nint f() { return lacking(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LATE_PHASE_OPS", str(library))
    monkeypatch.setattr(loader, "build_info", lambda: info)
    error, message = (tf.errors.NotFoundError, "undefined symbol: lacking") if same_release else (ImportError, f"pip install tensorflow=={info['tensorflow']}")
    with pytest.raises(error, match=message):
        loader.load.__wrapped__()


def test_missing_library_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LATE_PHASE_OPS", str(tmp_path / "nowhere.so"))
    with pytest.raises(ImportError, match=r"`LATE_PHASE_OPS` must name the op library.*nowhere.so"):
        loader.library_path()
    monkeypatch.delenv("LATE_PHASE_OPS")
    monkeypatch.setattr(loader, "__file__", str(tmp_path / "loader.py"))
    with pytest.raises(ImportError, match="tools/latephase python"):
        loader.library_path()
    beside = tmp_path / "_late_phase_ops.so"
    beside.write_bytes(b"")
    assert loader.library_path() == str(beside)


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_damaged_library_is_named(tmp_path, content):
    damaged = tmp_path / "_late_phase_ops.so"
    damaged.write_bytes(content)
    with pytest.raises(ImportError, match=f"not a late_phase op library, or a damaged one: {damaged}"):
        loader.build_info(str(damaged))


def test_a_driver_that_is_too_old_is_named_once_and_the_cpu_works(tmp_path):
    """With a stand-in for the driver that serves CUDA 11.4, older than any toolkit we build with."""
    source = tmp_path / "driver.c"
    source.write_text("int cuDriverGetVersion(int* version) { *version = 11040; return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    program = "import late_phase, tensorflow as tf; v = tf.Variable([[1.0], [3.0]]); print(late_phase.raw_ops.late_phase_collapse(var=v.handle, dtype=tf.float32).numpy())"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[2.]"
    assert run.stderr.count("late_phase: the CUDA driver is too old for the GPU kernels") == 1
    assert "serves CUDA up to 11.4" in run.stderr
