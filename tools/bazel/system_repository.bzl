"""@system: C++ libraries from Debian packages.

Their headers are in the compiler's own search path, so a target here is a check that the package
is installed and the flags to link with.
"""

# Target -> the Debian package, a header of it, and the link flags. Archives rather than shared
# libraries where Debian has them, so that what is built runs without these packages.
_LIBRARIES = {
    # Only the part for tar is used, which needs no further library; zlib does the gzip.
    "archive": struct(package = "libarchive-dev", header = "archive.h", linkopts = ["-l:libarchive.a"]),
    "benchmark": struct(
        package = "libbenchmark-dev",
        header = "benchmark/benchmark.h",
        linkopts = ["-lbenchmark", "-lpthread"],
    ),
    "boost_context": struct(
        package = "libboost-context-dev",
        header = "boost/context/fiber.hpp",
        linkopts = ["-l:libboost_context.a"],
    ),
    "cli11": struct(package = "libcli11-dev", header = "CLI/CLI.hpp", linkopts = []),
    # GoogleMock's package brings GoogleTest's along.
    "gtest": struct(
        package = "libgmock-dev",
        header = "gmock/gmock.h",
        linkopts = ["-l:libgmock.a", "-l:libgtest.a", "-lpthread"],
    ),
    "gtest_main": struct(
        package = "libgmock-dev",
        header = "gmock/gmock.h",
        linkopts = ["-l:libgtest_main.a", "-l:libgmock.a", "-l:libgtest.a", "-lpthread"],
    ),
    # Headers only: code paths are chosen at run time by the project itself
    # (kernels/cpu/cpu_target.h).
    "highway": struct(package = "libhwy-dev", header = "hwy/highway.h", linkopts = []),
    "json": struct(package = "nlohmann-json3-dev", header = "nlohmann/json.hpp", linkopts = []),
    # Debian builds toml++ as a library; used header-only (TOML_HEADER_ONLY is its default) nothing
    # is linked.
    "tomlplusplus": struct(package = "libtomlplusplus-dev", header = "toml++/toml.h", linkopts = []),
    "xsmm": struct(
        package = "libxsmm-dev",
        header = "libxsmm.h",
        # noblas answers the calls to a BLAS that libxsmm makes for sizes it has no kernel for.
        linkopts = ["-l:libxsmm.a", "-l:libxsmmnoblas.a", "-lpthread", "-ldl", "-lrt", "-lm"],
    ),
    "zlib": struct(package = "zlib1g-dev", header = "zlib.h", linkopts = ["-l:libz.a"]),
}

def _system_repository(ctx):
    missing = {
        library.package: None
        for library in _LIBRARIES.values()
        if not ctx.path("/usr/include/" + library.header).exists
    }
    if missing:
        fail("Missing Debian packages: run tools/setup, or: apt-get install " + " ".join(missing.keys()))
    ctx.file("BUILD", "\n".join(
        ["# Written by system_repository.bzl.", "package(default_visibility = [\"//visibility:public\"])"] +
        [
            "cc_library(name = %r, linkopts = %r)" % (name, library.linkopts)
            for name, library in _LIBRARIES.items()
        ],
    ) + "\n")

system_repository = repository_rule(implementation = _system_repository)
