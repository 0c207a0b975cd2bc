#!/usr/bin/env bash
# check_tidy_reports.sh STAMP REPORT...: prints what clang-tidy found (tidy.bzl), and fails if that
# is anything; else makes the stamp. That Google Benchmark never frees the benchmarks it registers is
# not counted: no comment of ours could stand in its header.
set -euo pipefail
stamp=$1
shift
leak='^/.*/benchmark\.h:.*NewDeleteLeaks'
awk -v leak="$leak" 'FNR == 1 { counts = 1 } /: (error|warning): / { counts = $0 !~ leak } counts' \
  "$@" >"$stamp"
if [[ -s $stamp ]]; then
  cat "$stamp" >&2
  exit 1
fi
