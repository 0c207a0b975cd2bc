#!/usr/bin/env bash
# check_tidy_reports.sh STAMP REPORT...: prints what clang-tidy found (tidy.bzl), and fails if that
# is anything; else makes the stamp.
set -euo pipefail
stamp=$1
shift
cat "$@" >"$stamp"
if [[ -s $stamp ]]; then
  cat "$stamp" >&2
  exit 1
fi
