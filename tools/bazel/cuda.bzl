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

# What nvcc prints goes to a file, except for times, which differ, and to the screen if it fails.
_COMMAND = """
messages=$1
shift
echo "CUDA $CUDA_VERSION" >"$messages"
"$@" 2>>"$messages" || { cat "$messages" >&2; exit 1; }
sed -i '/Compile time/d' "$messages"
"""

def _call_nvcc(ctx, source, output, messages, arguments, headers):
    command = ctx.actions.args()
    command.add(messages)
    command.add(NVCC)
    ctx.actions.run_shell(
        command = _COMMAND,
        arguments = [command] + arguments,
        inputs = depset([source], transitive = [headers]),
        outputs = [output, messages],
        # The toolkit's version is part of the action, so another toolkit compiles again. nvcc calls
        # the host compiler's tools by PATH.
        env = {"CUDA_VERSION": CUDA_VERSION, "PATH": "/usr/bin:/bin"},
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s (CUDA %s)" % (output.short_path, CUDA_VERSION),
    )

def _cuda_objects(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    quote_includes = depset(["."], transitive = [c.quote_includes for c in contexts])
    system_includes = depset(transitive = [c.system_includes for c in contexts])
    defines = depset(transitive = [c.defines for c in contexts])

    objects, reports, ptx = [], [], []
    for source in ctx.files.srcs:
        name = source.basename[:-len(".cu.cc")]
        flags = ctx.actions.args()
        flags.add("-ccbin", find_cpp_toolchain(ctx).compiler_executable)
        flags.add_all(_NVCC_FLAGS)
        flags.add_all(ctx.attr.copts)
        flags.add_all(quote_includes, before_each = "-I")
        flags.add_all(system_includes, before_each = "-isystem")
        flags.add_all(defines, before_each = "-D")
        flags.add(source)

        objects.append(ctx.actions.declare_file(name + ".cu.pic.o"))
        reports.append(ctx.actions.declare_file(name + ".ptxas.txt"))
        to_object = ctx.actions.args()
        to_object.add_all(GENCODE)
        to_object.add("-Xptxas=-v")  # registers and spills of every kernel
        to_object.add("-c", "-o")
        to_object.add(objects[-1])
        _call_nvcc(ctx, source, objects[-1], reports[-1], [flags, to_object], headers)

        ptx.append(ctx.actions.declare_file(name + ".ptx"))
        to_ptx = ctx.actions.args()
        to_ptx.add(GENCODE[-1])  # the one that is kept as PTX
        to_ptx.add("-ptx", "-o")
        to_ptx.add(ptx[-1])
        messages = ctx.actions.declare_file(name + ".ptx.txt")
        _call_nvcc(ctx, source, ptx[-1], messages, [flags, to_ptx], headers)
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(ptx = depset(ptx), ptxas = depset(reports)),
    ]

_cuda_objects_rule = rule(
    implementation = _cuda_objects,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "srcs": attr.label_list(allow_files = [".cu.cc"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], **kwargs):
    """A C++ library of CUDA sources (`.cu.cc`), linked with the static CUDA runtime.

    NAME_objects has further output groups: "ptxas" holds what ptxas reports about the kernels, "ptx" the PTX
    that nvcc makes with the same flags.
    """
    _cuda_objects_rule(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        deps = deps,
        visibility = ["//tests:__subpackages__"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        linkstatic = True,
        # An OpKernel depends only on a core's header, so a linker may encounter the core first.
        alwayslink = True,
        deps = deps + ["@cuda//:runtime"],
        **kwargs
    )

def cuda_reports(name, others = []):
    """What ptxas reports about every cuda_library above this in the package, and the cuda_reports of other packages."""
    native.filegroup(
        name = name + "_of_package",
        srcs = [
            rule["name"]
            for rule in native.existing_rules().values()
            if rule["kind"] == "_cuda_objects_rule"
        ],
        output_group = "ptxas",
    )
    native.filegroup(
        name = name,
        srcs = [name + "_of_package"] + others,
    )
