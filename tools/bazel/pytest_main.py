"""Runs the test files named on the command line under pytest, as a Bazel test.

Reports each case as JUnit XML where Bazel looks for it. Not a test collector: the files are those
of the target's `srcs` (python_test in defs.bzl).
"""

import os
import sys

import pytest


def main(arguments):
    # Tests may change folder.
    library = os.environ.get("LATE_PHASE_OPS")
    if library:
        os.environ["LATE_PHASE_OPS"] = os.path.abspath(library)

    options = ["-p", "no:cacheprovider", "-ra", "--import-mode=importlib"]
    if os.environ.get("XML_OUTPUT_FILE"):
        options.append("--junitxml=" + os.environ["XML_OUTPUT_FILE"])
    if os.environ.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter=...
        options += ["-k", os.environ["TESTBRIDGE_TEST_ONLY"]]
    # pytest's status is non-zero also when it collected nothing (5).
    return pytest.main(options + arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
