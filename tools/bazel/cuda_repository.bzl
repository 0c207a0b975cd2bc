"""@cuda: the CUDA toolkit that compiles the GPU cores, version 12 or newer.

The first of these: the toolkit named by LATE_PHASE_CUDA (tools/setup sets it, to the one that it
unpacked from PyPI where the machine has none of its own), /usr/local/cuda.

Targets: `runtime` (headers and the static runtime: the result runs without any CUDA installed).
toolkit.bzl holds what cuda.bzl needs to call nvcc.
"""

load("//tools/bazel:environment.bzl", "run")

_OLDEST_MAJOR_VERSION = 12

# The compute capabilities for which machine code is made, and the newest as PTX, which newer GPUs
# translate when they load it. nvcc 13 dropped everything before Turing.
_ARCHITECTURES = ["75", "80", "86", "89", "90"]
_ARCHITECTURES_UNTIL_12 = ["60", "70"]

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "runtime",
    srcs = ["libcudart_static.a"],
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
    ]),
    includes = ["include"],
    linkopts = ["-lrt", "-ldl", "-lpthread"],
)
"""

def _nvcc_version(ctx, root):
    """The toolkit's version as a list of numbers, or None if there is no nvcc below `root`."""
    if not ctx.path(root + "/bin/nvcc").exists:
        return None
    text = run(ctx, [root + "/bin/nvcc", "--version"], "Asking nvcc for its version")
    release = text.split("release ")[1].split(",")[0]
    return [int(part) for part in release.split(".")]

def _cuda_repository(ctx):
    named = ctx.os.environ.get("LATE_PHASE_CUDA", "")
    root = named or "/usr/local/cuda"
    version = _nvcc_version(ctx, root)
    if not version or version[0] < _OLDEST_MAJOR_VERSION:
        fail("No CUDA toolkit of version %d or newer: run tools/setup, or name one by LATE_PHASE_CUDA. Received: %s, %s" % (
            _OLDEST_MAJOR_VERSION,
            ("LATE_PHASE_CUDA=" + named) if named else root,
            "version " + ".".join([str(v) for v in version]) if version else "which has no bin/nvcc",
        ))

    architectures = (_ARCHITECTURES_UNTIL_12 if version[0] == 12 else []) + _ARCHITECTURES
    gencode = ["-gencode=arch=compute_{0},code=sm_{0}".format(a) for a in architectures]
    gencode.append("-gencode=arch=compute_{0},code=compute_{0}".format(architectures[-1]))

    ctx.symlink(root + "/include", "include")
    for folder in ["lib64", "lib"]:
        archive = "%s/%s/libcudart_static.a" % (root, folder)
        if ctx.path(archive).exists:
            ctx.symlink(archive, "libcudart_static.a")
            break
    ctx.file("BUILD", _BUILD)
    ctx.file("toolkit.bzl", "NVCC = %r\nCUDA_VERSION = %r\nGENCODE = %r\n" % (
        root + "/bin/nvcc",
        ".".join([str(v) for v in version]),
        gencode,
    ))

cuda_repository = repository_rule(
    implementation = _cuda_repository,
    environ = ["LATE_PHASE_CUDA"],
)
