"""@clang_tidy: the clang-tidy of the prepared environment or of this machine, if there is one.

tool.bzl holds CLANG_TIDY, its path or "", and CLANG_TIDY_VERSION. A missing clang-tidy is no error:
it is needed only when its reports are requested (tools/bazel/tidy.bzl).
"""

load("//tools/bazel:environment.bzl", "environment_python")

def _clang_tidy_repository(ctx):
    installed = ctx.path(environment_python(ctx)).dirname.get_child("clang-tidy")
    path, version = installed if installed.exists else ctx.which("clang-tidy"), ""
    if path:
        version = ctx.execute([path, "--version"]).stdout.strip()
    ctx.file("BUILD", "# Written by clang_tidy_repository.bzl.\n")
    ctx.file("tool.bzl", "CLANG_TIDY = %r\nCLANG_TIDY_VERSION = %r\n" % (str(path or ""), version))

clang_tidy_repository = repository_rule(
    implementation = _clang_tidy_repository,
    environ = ["LATE_PHASE_PYTHON"],
    local = True,  # asked again by every Bazel server
)
