"""clang-tidy over the C++ sources of a target, each an action of its own, hence cached per file.

  bazel build --config=tidy //...

Headers are checked with the sources that include them. Only what nvcc alone can compile is left out
(kernels/cuda/runtime.cu.cc): all other CUDA sources are read as the CUDA harness compiles them.
"""

load("@clang_tidy//:tool.bzl", "CLANG_TIDY", "CLANG_TIDY_VERSION")

# Writes what clang-tidy finds to a file, nothing if all is well: a finding is kept like any other
# result. Its other output, such as how many findings in foreign headers it suppressed, goes to the
# report only if it failed without a finding.
_RUN = """
report=$1 clang_tidy=$2
shift 2
if [[ ! $clang_tidy ]]; then
  echo "clang-tidy is not installed: CONTRIBUTING.md has the command" >"$report"
elif ! "$clang_tidy" --quiet "$@" >"$report" 2>"$report.messages" && [[ ! -s $report ]]; then
  cat "$report.messages" >"$report"
fi
sed -i "s|^$PWD/||; s|^\\./||" "$report"  # file names as in the repository
"""

TidyInfo = provider(
    doc = "What clang-tidy says of a target.",
    fields = {"reports": "list of files, one per source; an empty one is good"},
)

def _flags(ctx, context):
    flags = ctx.actions.args()
    flags.add_all(ctx.fragments.cpp.cxxopts)
    flags.add_all([flag for flag in ctx.rule.attr.copts if not flag.startswith("-W")])
    flags.add_all(context.defines, before_each = "-D")
    flags.add_all(context.local_defines, before_each = "-D")
    flags.add_all(context.quote_includes, before_each = "-iquote")
    flags.add_all(context.includes, before_each = "-I")
    flags.add_all(context.system_includes, before_each = "-isystem")
    return flags

def _report(ctx, source, flags, headers):
    report = ctx.actions.declare_file("%s.%s.tidy.txt" % (ctx.label.name, source.basename))
    command = ctx.actions.args()
    command.add(report)
    command.add(CLANG_TIDY)
    command.add("--warnings-as-errors=*")
    command.add(ctx.file._config, format = "--config-file=%s")
    command.add(source)
    command.add("--")
    ctx.actions.run_shell(
        command = _RUN,
        arguments = [command, flags],
        inputs = depset([source, ctx.file._config], transitive = [headers]),
        outputs = [report],
        # Its version is part of the action, so another version checks again.
        env = {"CLANG_TIDY_VERSION": CLANG_TIDY_VERSION},
        mnemonic = "ClangTidy",
        progress_message = "Looking at %s with clang-tidy" % source.short_path,
    )
    return report

def _tidy(target, ctx):
    if CcInfo not in target or "no-tidy" in ctx.rule.attr.tags:
        return [TidyInfo(reports = [])]
    context = target[CcInfo].compilation_context
    flags = _flags(ctx, context)
    reports = [
        _report(ctx, source, flags, context.headers)
        for source in ctx.rule.files.srcs
        if source.is_source and source.extension == "cc"
    ]
    if not reports:
        return [TidyInfo(reports = [])]
    stamp = ctx.actions.declare_file(ctx.label.name + ".tidy")
    command = ctx.actions.args()
    command.add(stamp)
    command.add_all(reports)
    ctx.actions.run(
        executable = ctx.file._check,
        arguments = [command],
        inputs = reports,
        outputs = [stamp],
        mnemonic = "ClangTidyCheck",
        progress_message = "Reading what clang-tidy says of %s" % ctx.label,
    )
    return [TidyInfo(reports = reports), OutputGroupInfo(tidy = depset([stamp]))]

tidy = aspect(
    implementation = _tidy,
    attrs = {
        "_check": attr.label(default = "//tools/bazel:check_tidy_reports.sh", allow_single_file = True),
        "_config": attr.label(default = "//:.clang-tidy", allow_single_file = True),
    },
    fragments = ["cpp"],
)

def _tidy_reports(ctx):
    reports = [report for dep in ctx.attr.deps for report in dep[TidyInfo].reports]
    return [DefaultInfo(files = depset(reports), runfiles = ctx.runfiles(files = reports))]

# The reports of targets as files, whatever they say.
tidy_reports = rule(
    implementation = _tidy_reports,
    attrs = {"deps": attr.label_list(aspects = [tidy])},
)
