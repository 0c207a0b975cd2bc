"""@python: the Python of the prepared environment as Bazel's Python 3 toolchain."""

load("//tools/bazel:environment.bzl", "environment_python")

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!{python}",  # The default asks for `python`, which Debian does not have.
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _python_repository(ctx):
    ctx.file("BUILD", _BUILD.format(python = environment_python(ctx)))

python_repository = repository_rule(
    implementation = _python_repository,
    environ = ["LATE_PHASE_PYTHON"],
)
