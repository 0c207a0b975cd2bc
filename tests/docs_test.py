"""The documentation's programs are the files they claim to be and print what they claim to print; its tables are the recorded runs'."""

import json
import os
import re
import subprocess
import sys

import pytest

from tools import bench_lstm
from tools import bench_optimizer
from tools import docs_blocks

PAGES = ["README.md", "CONTRIBUTING.md", "docs/using.md", "docs/ops.md", "docs/matmul.md", "docs/benchmarks.md", "docs/training.md", "docs/nqp.md"]
LIBRARY = os.environ["LATE_PHASE_OPS"]
COMMANDS = {
    "docs/examples/rank1_lstm.py": [sys.executable, "docs/examples/rank1_lstm.py"],
    "docs/examples/link": ["docs/examples/link"],
    "docs/examples/load": ["docs/examples/load", LIBRARY],
    "docs/examples/train": ["docs/examples/train"],
}
# Training amplifies what processors round differently.
TOLERANCE = {"docs/examples/rank1_lstm.py": 0.3, "docs/examples/train": 0.1}
RECORDED = {"docs/results/bench_lstm.json": bench_lstm, "docs/results/bench_optimizer.json": bench_optimizer}


def read(path):
    with open(path) as file:
        return file.read()


MARKED = [(page, *block) for page in PAGES for block in docs_blocks.blocks(read(page))]


@pytest.mark.parametrize("page, path, content", [(p, path, c) for p, kind, path, c in MARKED if kind == "same as"])
def test_program_on_page_is_the_file(page, path, content):
    assert content == read(path), f"{page} and {path} differ; run tools/docs_blocks.py --write {page}"


def assert_same_text(actual, documented, tolerance):
    """Words equal; numbers within a tolerance."""
    number = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
    assert number.sub("#", actual) == number.sub("#", documented)
    for a, b in zip(number.findall(actual), number.findall(documented)):
        assert float(a) == pytest.approx(float(b), rel=tolerance, abs=tolerance * 1e-2)


@pytest.mark.parametrize("path, content", sorted({(path, c) for _, kind, path, c in MARKED if kind == "output of" and path in COMMANDS}))
def test_program_prints_what_the_page_says(path, content):
    run = subprocess.run(
        COMMANDS[path], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert run.returncode == 0, run.stderr
    assert_same_text(run.stdout, content, TOLERANCE.get(path, 1e-4))


def test_both_kinds_of_blocks_were_found():
    kinds = [kind for _, kind, _, _ in MARKED]
    assert kinds.count("same as") >= 3 and kinds.count("output of") >= 4


@pytest.mark.parametrize("path", sorted(RECORDED))
def test_benchmark_report_is_the_recorded_run(path):
    documented = [c for _, kind, marked, c in MARKED if kind == "output of" and marked == path]
    assert documented == ["\n".join(RECORDED[path].render(json.loads(read(path)))) + "\n"]


def test_readme_table_is_the_recorded_run():
    assert "\n".join(bench_lstm.summary(json.loads(read("docs/results/bench_lstm.json")))) in read("README.md")


def test_every_output_on_a_page_is_checked():
    assert {path for _, kind, path, _ in MARKED if kind == "output of"} == {*COMMANDS, *RECORDED}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", read(page), flags=re.S)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            if not target.startswith("http"):
                assert os.path.exists(os.path.join(os.path.dirname(page), target)), f"{page}: {target}"


def test_load_example_without_the_library_says_what_is_missing():
    run = subprocess.run(["docs/examples/load", "/nowhere.so"], capture_output=True, text=True)
    assert run.returncode == 1 and "/nowhere.so" in run.stderr
