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
    assert described["AMX"] in ("none", "granted", "announced, but refused")


def test_library_of_another_tensorflow_names_the_fix(tmp_path):
    """In a fresh process, as a user meets it."""
    other = tmp_path / "_late_phase_ops.so"
    built_for = loader.build_info()["tensorflow"].encode()
    content = open(loader.library_path(), "rb").read()
    marker = b"tensorflow=" + built_for + b" "
    assert content.count(marker) == 1
    other.write_bytes(content.replace(marker, b"tensorflow=2.99.0".ljust(len(marker))))
    run = subprocess.run(
        [sys.executable, "-c", "import late_phase"],
        capture_output=True,
        text=True,
        env={**os.environ, "LATE_PHASE_OPS": str(other), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode != 0
    assert (
        "was built for TensorFlow 2.99.0" in run.stderr
        and "pip install tensorflow==2.99.0" in run.stderr
    )
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
def test_a_symbol_that_tensorflow_lacks_is_blamed_on_the_release_if_that_differs(
    tmp_path, monkeypatch, same_release
):
    info = {
        "version": "0.1.0",
        "tensorflow": loader.build_info()["tensorflow"]
        if same_release
        else another_patch_release(),
    }
    source, library = tmp_path / "library.c", tmp_path / "_late_phase_ops.so"
    source.write_text("int lacking();\nint f() { return lacking(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LATE_PHASE_OPS", str(library))
    monkeypatch.setattr(loader, "build_info", lambda: info)
    error, message = (
        (tf.errors.NotFoundError, "undefined symbol: lacking")
        if same_release
        else (ImportError, f"pip install tensorflow=={info['tensorflow']}")
    )
    with pytest.raises(error, match=message):
        loader.load.__wrapped__()


def test_missing_library_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LATE_PHASE_OPS", str(tmp_path / "nowhere.so"))
    with pytest.raises(ImportError, match=r"`LATE_PHASE_OPS` must name the op library.*nowhere.so"):
        loader.library_path()
    monkeypatch.delenv("LATE_PHASE_OPS")
    monkeypatch.setattr(loader, "_FOLDER", str(tmp_path))
    with pytest.raises(ImportError, match="tools/latephase python"):
        loader.library_path()


def test_the_library_of_the_installed_release_is_taken(tmp_path, monkeypatch):
    monkeypatch.delenv("LATE_PHASE_OPS")
    monkeypatch.setattr(loader, "_FOLDER", str(tmp_path))
    paths = {}
    for release in ("2.9", "2.20", "2.21"):
        folder = tmp_path / f"tensorflow_{release.replace('.', '_')}"
        folder.mkdir()
        paths[release] = folder / "_late_phase_ops.so"
        paths[release].write_bytes(b"")
    for version, release in (("2.20.1", "2.20"), ("2.21.0", "2.21"), ("2.21.0-rc1", "2.21")):
        monkeypatch.setattr(tf, "__version__", version)
        assert loader.library_path() == str(paths[release])
    monkeypatch.setattr(tf, "__version__", "2.23.0-dev20261026")
    with pytest.raises(
        ImportError,
        match=r"built for TensorFlow 2\.9, 2\.20, 2\.21, but this is TensorFlow 2\.23\.0-dev2026"
        r".*pip install 'tensorflow>=2\.9,<2\.22'",
    ):
        loader.library_path()


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_damaged_library_is_named(tmp_path, content):
    damaged = tmp_path / "_late_phase_ops.so"
    damaged.write_bytes(content)
    with pytest.raises(
        ImportError, match=f"not a late_phase op library, or a damaged one: {damaged}"
    ):
        loader.build_info(str(damaged))


def test_a_driver_that_is_too_old_is_named_once_and_the_cpu_works(tmp_path):
    """With a stand-in for a driver of CUDA 11.4, which is older than any toolkit we build with."""
    source = tmp_path / "driver.c"
    source.write_text("int cuDriverGetVersion(int* version) { *version = 11040; return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    program = (
        "import late_phase, tensorflow as tf; v = tf.Variable([[1.0], [3.0]]); "
        "print(late_phase.raw_ops.late_phase_collapse(var=v.handle, dtype=tf.float32).numpy())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[2.]"
    assert run.stderr.count("late_phase: the CUDA driver is too old for the GPU kernels") == 1
    assert "supports CUDA up to 11.4" in run.stderr


def library_with_limit(folder, limit):
    source, library = folder / "library.c", folder / "library.so"
    source.write_text(f"const char* late_phase_onednn_limit() {{ return {limit}; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_a_limit_of_onednn_is_passed_on_and_said_if_it_may_be_late(tmp_path, monkeypatch, recwarn):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "before")
    library = library_with_limit(tmp_path, '"AVX512_CORE_FP16"')
    loader._follow_onednn_limit(library, tensorflow_came_first=False)
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16" and not recwarn.list
    with pytest.warns(
        RuntimeWarning,
        match="does not grant it, so oneDNN now has ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16.*set the "
        "variable before Python starts",
    ):
        loader._follow_onednn_limit(library, tensorflow_came_first=True)


def test_without_a_limit_nothing_is_set_or_said(tmp_path, monkeypatch, recwarn):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    loader._follow_onednn_limit(library_with_limit(tmp_path, "0"), tensorflow_came_first=True)
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ and not recwarn.list


def test_onednn_reads_its_limit_after_the_library_is_loaded():
    """What `_follow_onednn_limit` relies on: not when TensorFlow is imported, but when oneDNN is
    first used.
    """
    program = """
from late_phase import loader
import os, tensorflow as tf
os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41"  # not this machine's own
x = tf.ones([64, 64])
tf.matmul(x, x)
print("TensorFlow came first:", loader._TENSORFLOW_CAME_FIRST)
"""
    environment = {
        **os.environ,
        "ONEDNN_VERBOSE": "1",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment.pop("ONEDNN_MAX_CPU_ISA", None)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert "info,cpu,isa:Intel SSE4.1" in run.stdout, run.stdout + run.stderr
    assert "TensorFlow came first: False" in run.stdout
    assert loader._TENSORFLOW_CAME_FIRST  # here, where it is imported above late_phase
