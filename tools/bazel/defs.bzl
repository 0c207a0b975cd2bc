"""The project's build macros: a new op family is one stanza in kernels/BUILD and one in ops/BUILD.

C++ comes in two kinds. A core is free of TensorFlow, compiles in seconds and is tested alone; what
touches TensorFlow is compiled with the wheel's flags and headers. Only //:_late_phase_ops.so links
the libraries of the wheel together with kernels and registrations, so that every program, C++ or
Python, has exactly one copy of them.
"""

load("@tensorflow//:flags.bzl", "TF_COPTS")
load("//tools/bazel:cuda.bzl", "cuda_library")

# Op families: each has a stanza in kernels/BUILD, in ops/BUILD and in tests/kernels/BUILD.
FAMILIES = [
    "batch_norm",
    "member_rows",
    "rank1_lstm",
    "softmax_cross_entropy",
    "update_rules",
]

_WARNINGS = ["-Wall", "-Wextra", "-Werror"]

_CORE_COPTS = _WARNINGS + select({
    "//tools/bazel:optimized": ["-O3"],
    "//conditions:default": [],
})

# The same bits for every instruction set and on the GPU: nothing is fused into a multiply-add,
# which rounds once instead of twice. And square roots and selections that the compiler may
# vectorise.
SAME_BITS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
_SAME_BITS_NVCC = ["-fmad=false"] + ["-Xcompiler=" + flag for flag in SAME_BITS]

# TensorFlow's headers leave parameters of inline functions unused and mix signedness in templates
# that are instantiated in our files.
_TF_COPTS = TF_COPTS + _WARNINGS + ["-Wno-sign-compare", "-Wno-unused-parameter"]

def core_library(name, srcs = [], hdrs = [], deps = [], copts = [], **kwargs):
    """C++ without TensorFlow."""
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _CORE_COPTS + copts,
        linkstatic = True,
        deps = deps,
        **kwargs
    )

def tf_library(name, srcs = [], hdrs = [], deps = [], copts = [], **kwargs):
    """C++ with TensorFlow's headers. The binary that uses it links TensorFlow."""
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _TF_COPTS + copts,
        linkstatic = True,
        deps = deps + ["@tensorflow//:headers"],
        **kwargs
    )

def tf_binary(name, srcs, deps = [], copts = [], **kwargs):
    """A program with TensorFlow's headers; depends on //:late_phase for the ops and TensorFlow."""
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _TF_COPTS + copts,
        deps = deps,
        **kwargs
    )

def op_kernels(name, deps = [], op_deps = [], by_target = False, same_bits = False):
    """How an op family is computed.

    NAME: the core, from NAME.h and NAME_cpu.cc. NAME_gpu: its CUDA twin, from NAME_gpu.cu.cc.
    NAME_shapes: the shapes of inputs and outputs, from NAME_shapes.h if there is one. NAME_op: the
    OpKernels on top, from NAME_op.cc; whoever links them links NAME_gpu too, or the same source in
    the CUDA harness.

    Args:
      name: of the family.
      deps: what the core needs.
      op_deps: what the OpKernels need besides.
      by_target: whether Highway includes NAME_cpu.cc again for every instruction set.
      same_bits: whether the core and its CUDA twin must give the same bits.
    """
    core_library(
        name = name,
        srcs = [name + "_cpu.cc"],
        hdrs = [name + ".h"],
        copts = SAME_BITS if same_bits else [],
        textual_hdrs = [name + "_cpu.cc"] if by_target else [],
        deps = deps,
    )
    shapes = native.glob([name + "_shapes.h"], allow_empty = True)
    if shapes:
        core_library(
            name = name + "_shapes",
            hdrs = shapes,
            deps = ["//kernels:shape_rules"],
        )
    cuda_library(
        name = name + "_gpu",
        srcs = [name + "_gpu.cu.cc"],
        copts = _SAME_BITS_NVCC if same_bits else [],
        deps = [name, "//kernels/cuda:device", "//kernels/cuda:runtime"],
    )
    native.exports_files([name + "_gpu.cu.cc"])  # to cuda_on_cpu
    tf_library(
        name = name + "_op",
        srcs = [name + "_op.cc"],
        deps = [name, "//kernels/op_kernel:devices"] + op_deps + ([name + "_shapes"] if shapes else []),
        alwayslink = True,
    )

def graph_ops(name):
    """What a graph sees of an op family.

    NAME: the C++ graph wrapper, from NAME.h and NAME.cc. NAME_ops: signatures and shape functions,
    from NAME_ops.cc. NAME_grad: the C++ gradient functions, from NAME_grad.cc; a family that updates
    variables has none, and the target is empty.
    """
    tf_library(
        name = name,
        srcs = [name + ".cc"],
        hdrs = [name + ".h"],
        deps = [":add_node"],
    )
    tf_library(
        name = name + "_ops",
        srcs = [name + "_ops.cc"],
        deps = [":shape_inference"],
        alwayslink = True,
    )
    tf_library(
        name = name + "_grad",
        srcs = native.glob([name + "_grad.cc"], allow_empty = True),
        deps = [":add_node", ":no_second_order"],
        alwayslink = True,
    )

def core_test(name, srcs, deps = [], copts = [], tags = [], **kwargs):
    """A GoogleTest without TensorFlow; tools/test runs it under the sanitizers too.

    The tag "threads" is for tests whose code runs on several threads: --config=tsan runs those.
    """
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _CORE_COPTS + copts,
        linkstatic = True,
        tags = tags + ["core"],
        deps = deps + ["@system//:gtest_main"],
        **kwargs
    )

def cuda_on_cpu(name, srcs, hdrs = [], deps = [], same_bits = False):
    """CUDA sources (`.cu.cc`) compiled by the host compiler for the CUDA harness.

    Args:
      name: of the library.
      srcs: the CUDA sources.
      hdrs: their headers.
      deps: libraries besides those that CUDA cores are written with.
      same_bits: as in op_kernels.
    """
    core_library(
        name = name,
        testonly = True,
        srcs = srcs,
        hdrs = hdrs,
        copts = [
            "-Wno-unknown-pragmas",  # #pragma unroll
            "-Wno-unused-const-variable",  # those of __launch_bounds__
        ] + (SAME_BITS if same_bits else []),
        alwayslink = True,  # as a cuda_library is
        deps = deps + [
            "//kernels/cuda:device",
            "//tests/cuda_harness",
        ],
    )

def core_family_tests(name, deps = [], same_bits = False):
    """The cores of an op family, from NAME_test.cc.

    NAME_cuda: the CUDA core in the harness. NAME_TARGET_test: the same cases for every instruction set,
    "native" being the best the machine has, and for the CUDA core.

    Args:
      name: of the family.
      deps: what the test needs besides the cores and tests/kernels/processors.h.
      same_bits: as the family's op_kernels have it.
    """
    cuda_on_cpu(
        name = name + "_cuda",
        srcs = ["//kernels:%s_gpu.cu.cc" % name],
        same_bits = same_bits,
        deps = ["//kernels:" + name],
    )
    for target in ["native", "avx2", "baseline"]:
        core_test(
            name = "%s_%s_test" % (name, target),
            srcs = [name + "_test.cc"],
            env = {} if target == "native" else {"LATE_PHASE_CPU": target},
            # Portable loops are instrumented throughout, and no case runs in the CUDA harness, on
            # fibers.
            tags = ["threads"] if target == "baseline" else [],
            deps = deps + [":processors", ":%s_cuda" % name, "//kernels:" + name, "//tests/cuda_harness"],
        )

def graph_test(name, srcs, deps = [], copts = [], with_late_phase = True, **kwargs):
    """A GoogleTest with TensorFlow: links the op library as a user's program does.

    A test of OpKernels outside of the library sets `with_late_phase` to False and links them itself.
    """
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _TF_COPTS + copts,
        linkstatic = True,
        deps = deps + ["//:late_phase" if with_late_phase else "@tensorflow//:cc", "@system//:gtest_main"],
        **kwargs
    )

def _late_phase_test(name, srcs, main, data = [], deps = [], env = {}, with_late_phase = True, **kwargs):
    """A Python program in which `import late_phase` works unless `with_late_phase` is False."""
    library = "//:_late_phase_ops.so"
    native.py_test(
        name = name,
        srcs = srcs,
        main = main,
        data = data + ([library] if with_late_phase else []),
        # Relative to the runfiles folder, in which tests start.
        env = dict(env, **({"LATE_PHASE_OPS": "$(rootpath %s)" % library} if with_late_phase else {})),
        python_version = "PY3",
        srcs_version = "PY3",
        deps = deps + (["//python/late_phase"] if with_late_phase else []),
        **kwargs
    )

def python_test(name, srcs, **kwargs):
    """A pytest file or several; arguments are those of _late_phase_test."""
    _late_phase_test(
        name = name,
        srcs = srcs + ["//tools/bazel:pytest_main.py"],
        main = "//tools/bazel:pytest_main.py",  # makes the paths in the environment absolute
        args = ["$(rootpath %s)" % src for src in srcs],
        **kwargs
    )

# What tests/support/program_runs.py needs.
_PROGRAM_DATA = ["//models/presets", "//tools/program:latephase_program"]
_PROGRAM_ENV = {
    "LATE_PHASE_PRESETS": "models/presets",
    "LATE_PHASE_PROGRAM": "$(rootpath //tools/program:latephase_program)",
}

def program_test(name, data = [], deps = [], env = {}, size = "large", **kwargs):
    """A python_test that runs the C++ program (tests/support/program_runs.py).

    Many short trainings take half a minute, and more where cores are shared: hence the size.
    """
    python_test(
        name = name,
        size = size,
        data = data + _PROGRAM_DATA,
        deps = deps + ["//tests/support:program_runs"],
        env = dict(env, **_PROGRAM_ENV),
        **kwargs
    )

def campaign(name, src = None, program = False, deps = []):
    """The campaign NAME.py, which takes flags (--test_arg) and runs only by its name.

    Its small version imports NAME_py. `src`: a file of another name, where NAME is a module that it
    imports. `program`: it runs the C++ program.
    """
    src = src or name + ".py"
    native.py_library(
        name = name + "_py",
        testonly = True,
        srcs = [src],
        srcs_version = "PY3",
        deps = deps + [":report"] + (["//tests/support:program_runs"] if program else []),
    )
    _late_phase_test(
        name = name,
        size = "enormous",
        srcs = [src],
        main = src,
        data = _PROGRAM_DATA if program else [],
        env = _PROGRAM_ENV if program else {},
        tags = ["manual"],
        deps = [":%s_py" % name],
    )

def bytes_campaign(name, deps):
    """The campaign over the bytes that a parser is given, NAME_bytes.cc in tests/campaign/bytes.

    NAME_bytes_test: its small version. NAME: under libFuzzer, whose flags it takes, with
    --config=fuzz.
    """
    core_library(
        name = name + "_bytes",
        testonly = True,
        srcs = [name + "_bytes.cc"],
        deps = deps + [":parser"],
    )
    core_test(
        name = name + "_bytes_test",
        srcs = ["bytes_test.cc"],
        deps = [":damage", ":parser", ":%s_bytes" % name],
    )
    native.cc_test(
        name = name,
        size = "enormous",
        srcs = ["libfuzzer.cc"],
        copts = _CORE_COPTS,
        linkopts = ["-fsanitize=fuzzer"],
        linkstatic = True,
        tags = ["manual"],
        deps = [":parser", ":%s_bytes" % name],
    )
