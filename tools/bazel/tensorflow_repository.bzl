"""@tensorflow: headers and libraries of the TensorFlow wheel in the prepared environment.

Targets: `headers` (as system headers), `xla_headers` (what XLA's need besides), `framework`
(libtensorflow_framework.so.2), `cc` (that and libtensorflow_cc.so.2). flags.bzl holds TF_COPTS and TF_VERSION, as the wheel itself states them.
"""

load("//tools/bazel:environment.bzl", "environment_python", "run")

_QUERY = """
import tensorflow as tf
print(tf.sysconfig.get_lib())
print(tf.__version__)
for flag in tf.sysconfig.get_compile_flags():
    # The include folder becomes a dependency on :headers.
    if not flag.startswith("-I"):
        print(flag)
"""

# Sandboxed compilation links every listed header into a folder, so what no op includes is left out:
# the wheel's MLIR compiler, its GPU toolchain and its third-party trees.
_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(
        ["include/%s/**" % tree for tree in [
            "Eigen",
            "absl",
            "google",
            "ml_dtypes",
            "tensorflow",
            "tsl",
            "unsupported",
            "xla",
        ]],
        exclude = [
            "include/tensorflow/compiler/mlir/**",
            "include/tensorflow/include/**",
        ],
    ),
    includes = ["include"],
)

# Of their own, so that other files have no more folders to search.
cc_library(
    name = "xla_headers",
    hdrs = glob([
        "include/external/farmhash_archive/src/*.h",
        "include/external/highwayhash/highwayhash/*.h",
    ]),
    includes = [
        "include/external/farmhash_archive/src",
        "include/external/highwayhash",
    ],
    deps = [":headers"],
)

cc_library(
    name = "framework",
    srcs = ["libtensorflow_framework.so.2"],
    deps = [":headers"],
)

cc_library(
    name = "cc",
    srcs = ["libtensorflow_cc.so.2"],
    deps = [":framework"],
)
"""

def _tensorflow_repository(ctx):
    python = environment_python(ctx)
    lines = run(
        ctx,
        [python, "-c", _QUERY],
        "Asking TensorFlow for its compile flags",
        environment = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ).split("\n")
    lib, version, flags = lines[0], lines[1], lines[2:]

    ctx.symlink(lib + "/include", "include")
    for library in ["libtensorflow_framework.so.2", "libtensorflow_cc.so.2"]:
        ctx.symlink(lib + "/" + library, library)
    ctx.file("BUILD", _BUILD)
    ctx.file("flags.bzl", "TF_VERSION = %r\nTF_COPTS = %r\n" % (version, flags))

tensorflow_repository = repository_rule(
    implementation = _tensorflow_repository,
    environ = ["LATE_PHASE_PYTHON"],
)
