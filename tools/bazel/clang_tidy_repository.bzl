"""@clang_tidy: the clang-tidy of this machine, if there is one.

tool.bzl holds CLANG_TIDY, its path or "", and CLANG_TIDY_VERSION. A missing clang-tidy is no error:
it is needed only when its reports are requested (tools/bazel/tidy.bzl).
"""

def _clang_tidy_repository(ctx):
    path, version = ctx.which("clang-tidy"), ""
    if path:
        version = ctx.execute([path, "--version"]).stdout.strip()
    ctx.file("BUILD", "# Written by clang_tidy_repository.bzl.\n")
    ctx.file("tool.bzl", "CLANG_TIDY = %r\nCLANG_TIDY_VERSION = %r\n" % (str(path or ""), version))

clang_tidy_repository = repository_rule(
    implementation = _clang_tidy_repository,
    local = True,  # asked again by every Bazel server
)
