"""cuda_library: CUDA sources, compiled by nvcc, as an ordinary C++ library.

The sources include no TensorFlow header: nvcc takes half a minute on those, and the wheel's CUDA
headers clash with a newer toolkit's. The caller passes raw pointers and a stream.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda//:toolkit.bzl", "CUDA_VERSION", "GENCODE", "NVCC")

_NVCC_FLAGS = [
    "-x",
    "cu",
    "-std=c++17",
    "-O3",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror",
]

def _cuda_objects(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    quote_includes = depset(["."], transitive = [c.quote_includes for c in contexts])
    system_includes = depset(transitive = [c.system_includes for c in contexts])
    defines = depset(transitive = [c.defines for c in contexts])

    objects = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file(source.basename[:-len(".cu.cc")] + ".cu.pic.o")
        objects.append(output)
        arguments = ctx.actions.args()
        arguments.add("-ccbin", find_cpp_toolchain(ctx).compiler_executable)
        arguments.add_all(_NVCC_FLAGS)
        arguments.add_all(GENCODE)
        arguments.add_all(quote_includes, before_each = "-I")
        arguments.add_all(system_includes, before_each = "-isystem")
        arguments.add_all(defines, before_each = "-D")
        arguments.add("-c", source)
        arguments.add("-o", output)
        ctx.actions.run(
            executable = NVCC,
            arguments = [arguments],
            inputs = depset([source], transitive = [headers]),
            outputs = [output],
            # The toolkit's version is part of the action, so another toolkit compiles again. nvcc
            # calls the host compiler's tools by PATH.
            env = {"CUDA_VERSION": CUDA_VERSION, "PATH": "/usr/bin:/bin"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s (CUDA %s)" % (source.short_path, CUDA_VERSION),
        )
    return [DefaultInfo(files = depset(objects))]

_cuda_objects_rule = rule(
    implementation = _cuda_objects,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "srcs": attr.label_list(allow_files = [".cu.cc"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """A C++ library of CUDA sources (`.cu.cc`), linked with the static CUDA runtime."""
    _cuda_objects_rule(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        linkstatic = True,
        deps = deps + ["@cuda//:runtime"],
        **kwargs
    )
