"""The documentation's programs are the files they claim to be and print what they claim to print;
its tables are the recorded runs'.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from late_phase_cli import advice, enwik8_table, model_differences, run_table, sweep_table
from tools.develop import cuda_report, docs_blocks, docs_records, outcomes

PAGES = docs_blocks.pages()
LIBRARY = os.environ["LATE_PHASE_OPS"]
COMMANDS = {
    "docs/examples/keras_choosing.py": [sys.executable, "docs/examples/keras_choosing.py"],
    "docs/examples/keras_comparison.py": [sys.executable, "docs/examples/keras_comparison.py"],
    "docs/examples/keras_lstm.py": [sys.executable, "docs/examples/keras_lstm.py"],
    "docs/examples/keras_readme.py": [sys.executable, "docs/examples/keras_readme.py"],
    "docs/examples/keras_swa.py": [sys.executable, "docs/examples/keras_swa.py"],
    "docs/examples/keras_train.py": [sys.executable, "docs/examples/keras_train.py"],
    "docs/examples/keras_transformer.py": [sys.executable, "docs/examples/keras_transformer.py"],
    "docs/examples/keras_tutorial.py": [sys.executable, "docs/examples/keras_tutorial.py"],
    "docs/examples/rank1_lstm.py": [sys.executable, "docs/examples/rank1_lstm.py"],
    "docs/examples/link": ["docs/examples/link"],
    "docs/examples/load": ["docs/examples/load", LIBRARY],
    "docs/examples/train": ["docs/examples/train"],
}
# Training amplifies what processors round differently.
TOLERANCE = {
    "docs/examples/keras_choosing.py": 0.1,
    "docs/examples/keras_comparison.py": 0.05,
    "docs/examples/keras_transformer.py": 0.5,
    "docs/examples/keras_tutorial.py": 0.2,
    "docs/examples/keras_lstm.py": 0.05,
    "docs/examples/keras_readme.py": 0.05,
    "docs/examples/keras_swa.py": 0.05,
    "docs/examples/keras_train.py": 0.05,
    "docs/examples/rank1_lstm.py": 0.3,
    "docs/examples/train": 0.1,
}


def read(path):
    with open(path) as file:
        return file.read()


MARKED = [(page, *block) for page in PAGES for block in docs_blocks.blocks(read(page))]


@pytest.mark.parametrize(
    "page, path, content", [(p, path, c) for p, kind, path, c in MARKED if kind == "same as"]
)
def test_program_on_page_is_the_file(page, path, content):
    assert content == docs_blocks.read(path), (
        f"{page} and {path} differ; run tools/latephase python -m tools.develop.docs_blocks "
        f"--write {page}"
    )


def assert_same_text(actual, documented, tolerance):
    """Words equal; numbers within a tolerance."""
    number = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
    assert number.sub("#", actual) == number.sub("#", documented)
    for a, b in zip(number.findall(actual), number.findall(documented)):
        assert float(a) == pytest.approx(float(b), rel=tolerance, abs=tolerance * 1e-2)


def outputs():
    """(program, its output as a page has it) of all pages; a page that takes a program apart has it
    in several blocks.
    """
    joined = {}
    for page, kind, path, content in MARKED:
        if kind == "output of" and path in COMMANDS:
            joined[page, path] = joined.get((page, path), "") + content
    return sorted({(path, content) for (_, path), content in joined.items()})


@pytest.mark.parametrize("path, content", outputs())
def test_program_prints_what_the_page_says(path, content):
    run = subprocess.run(
        COMMANDS[path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert run.returncode == 0, run.stderr
    assert_same_text(run.stdout, content, TOLERANCE.get(path, 1e-4))


DIGITS = "docs/examples/keras_digits.py"


def test_digits_table_is_like_the_page():
    """With fewer seeds than the page's, for time: the same words, and figures that differ as much
    as choices of images do.
    """
    (documented,) = [
        content for _, kind, path, content in MARKED if (kind, path) == ("output of", DIGITS)
    ]
    run = subprocess.run(
        [sys.executable, DIGITS, "--seeds", "2"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert run.returncode == 0, run.stderr
    number = r"(\d+(?:\.\d+)?)"
    words = [re.sub(r"\s+", " ", re.sub(number, "#", text)) for text in (run.stdout, documented)]
    assert words[0] == words[1]
    rows = [
        re.findall(rf"{number} ± {number} +{number} ± {number}", text)
        for text in (run.stdout, documented)
    ]
    assert [len(r) for r in rows] == [3, 3]
    for actual, expected in zip(*rows):
        assert float(actual[0]) == pytest.approx(float(expected[0]), abs=2) and float(
            actual[2]
        ) == pytest.approx(float(expected[2]), abs=0.06)


@pytest.mark.parametrize(
    "path",
    sorted(
        {path.partition("#")[0] for _, kind, path, _ in MARKED if kind == "same as" and "#" in path}
    ),
)
def test_a_program_taken_apart_is_on_its_page_whole(path):
    pages = {
        page
        for page, kind, marked, _ in MARKED
        if kind == "same as" and marked.startswith(path + "#")
    }
    for page in pages:
        shown = [
            marked.partition("#")[2]
            for p, kind, marked, _ in MARKED
            if (p, kind) == (page, "same as") and marked.startswith(path + "#")
        ]
        assert shown == [name for name in docs_blocks.parts(read(path)) if name], (
            f"the parts of {path} on {page}"
        )


def test_both_kinds_of_blocks_were_found():
    kinds = [kind for _, kind, _, _ in MARKED]
    assert kinds.count("same as") >= 3 and kinds.count("output of") >= 4


@pytest.mark.parametrize("kind, path", sorted(docs_records.RECORDS))
def test_record_on_page_is_the_recorded_run(kind, path):
    documented = [content for _, k, marked, content in MARKED if (k, marked) == (kind, path)]
    assert documented, f"no page shows it: {kind} {path}"
    assert set(documented) == {docs_records.text(kind, path)}, (
        "run tools/latephase python -m tools.develop.docs_blocks --write"
    )


def test_written_blocks_are_read_again():
    """Writing a page puts each block in its place, and leaves alone what it does not know."""
    page = (
        "before\n<!-- same as a.py -->\n```python\nold\n```\nbetween\n<!-- table of b -->\n\n| "
        "old |\n\n<!-- end -->\n"
        "<!-- output of c -->\n```\nkept\n```\nafter\n"
    )
    assert docs_blocks.blocks(page) == [
        ("same as", "a.py", "old\n"),
        ("table of", "b", "| old |\n"),
        ("output of", "c", "kept\n"),
    ]
    new = {("same as", "a.py"): "new\n", ("table of", "b"): "| new |\n"}
    written = docs_blocks.refreshed(page, lambda kind, path: new.get((kind, path)))
    assert written == page.replace("old", "new")


def test_cuda_report_is_the_recorded_one():
    table = "\n".join(cuda_report.render(json.loads(read(cuda_report.RECORD)))) + "\n"
    assert read(cuda_report.TABLE) == table, "run tools/latephase cuda-report --write"


@pytest.mark.parametrize(
    "folder",
    sorted(
        glob.glob("docs/results/enwik8-*")
        + glob.glob("docs/results/cifar-*")
        + glob.glob("docs/results/methods-*/runs/*")
    ),
)
def test_recorded_trainings_are_whole(folder):
    """Each run has its config, its results and its metrics, and they agree."""
    runs = run_table.runs_of(json.loads(read(f"{folder}/results.json")))
    parts = [path for path in glob.glob(f"{folder}/**/metrics.jsonl", recursive=True)]
    assert len(parts) == len(runs)
    for path in parts:
        run = os.path.dirname(path)
        config, result = (
            tomllib.loads(read(f"{run}/config.toml")),
            json.loads(read(f"{run}/results.json")),
        )
        assert result in runs and (config["model"], config["seed"]) == (
            result["model"],
            result["seed"],
        )
        lines = [json.loads(line) for line in read(path).splitlines()]
        assert lines[-1]["step"] == result["steps"]
        final = [
            line
            for line in lines
            if (line.get("split"), line.get("weights")) == ("test", "collapsed")
        ]
        assert final[-1].items() >= result["test"]["collapsed"].items()


def test_advice_knows_the_recorded_runs():
    """latephase advise has no records, but what they come to."""
    assert advice.outcomes() == outcomes.collect(), (
        "run tools/latephase python -m tools.develop.outcomes --write"
    )


SWEEPS = [os.path.dirname(path) for path in glob.glob("docs/results/**/sweep.json", recursive=True)]


@pytest.mark.parametrize("folder", sorted(SWEEPS))
def test_recorded_sweeps_are_whole(folder):
    """What results.json says is what its runs give, and none is missing."""
    results = json.loads(read(f"{folder}/results.json"))
    assert sweep_table.collect(folder) == results
    assert all(len(point["runs"]) == len(results["sweep"]["seeds"]) for point in results["points"])


@pytest.mark.parametrize(
    "path", sorted(glob.glob("docs/results/methods-*/evaluations/*/evaluation.json"))
)
def test_recorded_evaluations_are_of_the_recorded_runs(path):
    evaluation, folder = json.loads(read(path)), os.path.dirname(path) + "/../../runs"
    runs = {
        run["run"]: json.loads(read(f"{folder}/{os.path.basename(run['run'])}/results.json"))
        for run in evaluation["runs"]
    }
    found = [
        row
        for row in evaluation["rows"]
        if row["run"] in runs and row["weights"] in runs[row["run"]]["test"]
    ]
    assert found
    for row in found:
        expected = runs[row["run"]]["test"][row["weights"]]
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_a_block_that_is_still_empty_is_filled_and_nothing_else():
    page = (
        "<!-- table of a -->\n\n<!-- end -->\n\nprose\n\n"
        "<!-- table of b -->\n\n| old |\n\n<!-- end -->\n"
    )
    assert docs_blocks.blocks(page) == [("table of", "a", ""), ("table of", "b", "| old |\n")]
    assert docs_blocks.refreshed(page, lambda kind, path: f"| {path} |\n") == (
        "<!-- table of a -->\n\n| a |\n\n<!-- end -->\n\nprose\n\n"
        "<!-- table of b -->\n\n| b |\n\n<!-- end -->\n"
    )


def test_readme_shows_the_result_and_the_timing():
    shown = {(kind, path) for page, kind, path, _ in MARKED if page == "README.md"}
    assert shown >= {
        ("table of", "docs/results/enwik8-quick/results.json#differences"),
        ("table of", "docs/results/bench_enwik8.json"),
    }


def test_every_output_on_a_page_is_checked():
    assert {path for _, kind, path, _ in MARKED if kind == "output of"} == {
        *COMMANDS,
        DIGITS,
        *(path for kind, path in docs_records.RECORDS if kind == "output of"),
    }
    assert {(kind, path) for _, kind, path, _ in MARKED if kind == "table of"} <= set(
        docs_records.RECORDS
    )


def test_every_marker_begins_a_block():
    """A marker with a mistake in it would leave its block unchecked."""
    for page in PAGES:
        assert len(re.findall(r"^<!-- (?:same as|output of|table of) ", read(page), re.M)) == len(
            docs_blocks.blocks(read(page))
        ), page


def test_load_example_without_the_library_says_what_is_missing():
    run = subprocess.run(["docs/examples/load", "/nowhere.so"], capture_output=True, text=True)
    assert run.returncode == 1 and "/nowhere.so" in run.stderr


def test_the_page_quotes_the_spread_of_the_members():
    for seed in (3, 4):
        rows = map(
            json.loads,
            read(f"docs/results/enwik8-quick/seed-{seed}/late-phase/metrics.jsonl").splitlines(),
        )
        spreads = [row["member_spread"] for row in rows if row["kind"] == "members"]
        assert round(100 * spreads[0]) == 7 and 0.02 < spreads[-1] < 0.03
        assert spreads == sorted(spreads, reverse=True)
    words = " ".join(read("docs/enwik8.md").split())
    assert "An epoch later their spread is 7 %, and at the end 2 to 3 % (seeds 3 and 4" in words


def test_readme_quotes_the_recorded_run():
    """The sentence above the table says what the table says."""
    runs = run_table.runs_of(json.loads(read("docs/results/enwik8-quick/results.json")))
    test, _ = model_differences.QUESTIONS["enwik8"].columns
    gain = {name: its[test] for name, its in model_differences.differences("enwik8", runs)}
    words = " ".join(read("README.md").split())
    own, plain = gain["Late-phase against Base + Rank1"], gain["Late-phase against Base"]
    assert own.won == plain.won == own.seeds == 5 and "five seeds" in words
    assert (
        f"than its own network (*Base + Rank1*) by {-own.mean:.3f} bits per character and than the "
        f"plain LSTM by {-plain.mean:.3f};" in words
    )
    (control,) = (one for name, one in gain.items() if "what the members add" in name)
    assert abs(control.mean) < control.half_width
    assert "accumulating gradients without members does as much" in words
    paper = enwik8_table.PAPER
    gains = [paper[model][1] - paper["late-phase"][1] for model in ("rank1", "base")]
    assert f"gains {gains[0]:.3f} and {gains[1]:.3f}" in words
