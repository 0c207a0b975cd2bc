"""Finds the op library for the installed TensorFlow, checks that it fits, and loads it once.

TensorFlow's C++ interface changes with every minor release, so the wheel has a library for each
supported one: tensorflow_2_20/_late_phase_ops.so, tensorflow_2_21/...
"""

import ctypes
import functools
import mmap
import os
import re
import sys
import warnings

_TENSORFLOW_CAME_FIRST = "tensorflow" in sys.modules  # and may have computed something

try:
    import tensorflow as tf  # noqa: E402
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "late_phase needs TensorFlow, which is not installed: pip install 'late_phase[tensorflow]' "
        "(or late_phase[tensorflow-cpu], which is smaller and has no GPU kernels)",
        name="tensorflow",
    ) from None

from late_phase_cli import releases  # noqa: E402

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_FILE = "_late_phase_ops.so"
_MARKER = b"late_phase-build-info "


def library_path():
    """Path of the op library: LATE_PHASE_OPS in the environment, else this package's own for the
    installed TensorFlow.

    Raises:
      ImportError: there is no such file.
    """
    named = os.environ.get("LATE_PHASE_OPS")
    release = releases.release_of(tf.__version__)
    path = named or os.path.join(_FOLDER, releases.folder_name(release), _FILE)
    if os.path.isfile(path):
        return path
    if named:
        raise ImportError(
            f"`LATE_PHASE_OPS` must name the op library {_FILE}. "
            f"Received: LATE_PHASE_OPS={named}, no such file"
        )
    if supported := list(releases.folders(_FOLDER)):
        raise ImportError(
            f"this late_phase is built for TensorFlow {', '.join(supported)}, but this is "
            f"TensorFlow {tf.__version__}. TensorFlow's C++ interface changes with every release. "
            f"Either install one that it was built for (pip install "
            f"'{releases.requirement(supported)}'), or rebuild late_phase for {release} "
            "(docs/install.md)."
        )
    raise ImportError(
        f"late_phase: the op library is missing: {path}. In a source tree start Python with "
        "`tools/latephase python`, which builds it; or build it with `bazel build "
        "//:_late_phase_ops.so` and name it in the environment variable LATE_PHASE_OPS."
    )


@functools.cache
def build_info(path=None):
    """What the file says it was built as, without loading it: `version` and `tensorflow`."""
    path = path or library_path()
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                start = content.find(_MARKER)
                text = content[start : start + 200].split(b"\0")[0].decode() if start >= 0 else ""
        except ValueError:  # an empty file cannot be mapped
            text = ""
    info = dict(re.findall(r"(\w+)=(\S+)", text))
    if not {"version", "tensorflow"} <= info.keys():
        raise ImportError(f"late_phase: not a late_phase op library, or a damaged one: {path}")
    return info


def _wrong_tensorflow():
    info = build_info()
    return ImportError(
        f"late_phase {info['version']} was built for TensorFlow {info['tensorflow']}, but this is "
        f"TensorFlow {tf.__version__}. TensorFlow's C++ interface changes with every release. "
        f"Either install the one it was built for (pip install tensorflow=={info['tensorflow']}), "
        f"or rebuild late_phase for {tf.__version__} (docs/install.md)."
    )


@functools.cache
def load():
    """Loads the op library and returns the module of its raw ops.

    Raises:
      ImportError: there is no library, or it was built for another TensorFlow.
    """
    path, built_for = library_path(), build_info()["tensorflow"]
    if releases.release_of(built_for) != releases.release_of(tf.__version__):
        raise _wrong_tensorflow()
    try:
        library = tf.load_op_library(path)
    except tf.errors.NotFoundError as error:  # a symbol that a patch release removed
        if built_for == tf.__version__:
            raise
        raise _wrong_tensorflow() from error
    _follow_onednn_limit(path, _TENSORFLOW_CAME_FIRST)
    return library


def _follow_onednn_limit(path, tensorflow_came_first):
    """Tells Python about the limit that the library set for oneDNN when it was loaded.

    It does that on machines that announce AMX but do not grant it. If oneDNN has already run, it is
    too late.
    """
    function = ctypes.CDLL(path).late_phase_onednn_limit
    function.restype = ctypes.c_char_p
    if function() is None:
        return
    # It is already set in C; this is for programs that Python starts.
    limit = os.environ["ONEDNN_MAX_CPU_ISA"] = function().decode()
    if tensorflow_came_first:
        warnings.warn(
            "late_phase: this machine announces AMX but does not grant it, so oneDNN now has "
            f"ONEDNN_MAX_CPU_ISA={limit}. TensorFlow was imported before: if it has computed "
            "already, products of bfloat16 still end in an illegal instruction. Import "
            "late_phase first, or set the variable before Python starts.",
            RuntimeWarning,
            stacklevel=2,
        )


def describe():
    """Facts about the loaded library and the machine, one "key: value" line each.

    Example:

    >>> import late_phase
    >>> print(late_phase.describe())
    late_phase: ...
    TensorFlow: ...

    Returns:
      A string: versions of late_phase and TensorFlow, the CPU kernels in use, and the GPUs found.
    """
    load()
    function = ctypes.CDLL(library_path()).late_phase_describe
    function.restype = ctypes.c_char_p
    return function().decode().rstrip("\n")
