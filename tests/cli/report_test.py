"""tools/latephase report: the page of recorded and of made-up runs, read back by an HTML parser."""

import base64
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from late_phase_cli import enwik8_table, report, report_runs, sweep_plan

VOID = {"img", "meta", "wbr"}
EVIL = "<script>alert(1)</script>&\"'--><b>"


class Page(html.parser.HTMLParser):
    """The text of every element by its name, rows of cells, links, images; and that each element is
    closed.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        (
            self.open,
            self.links,
            self.images,
            self.anchors,
            self.rows,
            self.texts,
            self.best,
            self.elements,
        ) = [], [], [], set(), [], {}, [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        if tag == "img":
            self.images.append(attributes)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.best.append("best" in attributes.get("class", ""))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def make(out, *folders, title="Training runs"):
    report.main([*map(str, folders)], str(out), title)
    return Page(out.read_text(encoding="utf-8"))


def assert_self_contained(page, text):
    """Nothing that a browser would fetch or run."""
    assert page.images and all(
        image["src"].startswith("data:image/") and image["alt"] for image in page.images
    )
    assert (
        all(link.startswith("#") and link[1:] in page.anchors for link in page.links) and page.links
    )
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in page.elements
    }
    for _, attributes in page.elements:
        assert not {
            name
            for name in attributes
            if name.startswith("on") or name in ("srcset", "style", "action", "background")
        }
    style = page.texts["style"][0]
    assert "url(" not in style and "@import" not in style
    # Elsewhere, an address could only be in a picture, which is base64.
    assert not re.search(r"https?://", text)


def numbers_in(results):
    """Every figure of a results.json as the page shows it: {(split, weights): texts}."""
    digits = {"accuracy": (100, 2)}
    for split in ("train", "validation", "test"):
        sets = {"": results.get(split, {})} if split == "train" else results.get(split, {})
        for metrics in sets.values():
            for one in metrics if isinstance(metrics, list) else [metrics]:
                yield (
                    split,
                    [
                        f"{digits.get(name, (1, 4))[0] * value:.{digits.get(name, (1, 4))[1]}f}"
                        for name, value in one.items()
                    ],
                )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(page, text) of runs of both programs."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    page = make(
        out,
        "docs/results/cifar-convnet",
        "docs/results/cifar-convnet-quick/base",
        "docs/results/enwik8-96-units",
    )
    return page, out.read_text()


def test_page_is_self_contained(recorded):
    assert_self_contained(*recorded)
    page, _ = recorded
    for image in page.images:
        assert b"<svg" in base64.b64decode(
            image["src"].removeprefix("data:image/svg+xml;base64,"), validate=True
        )
    # Every run, and the models of both folders compared.
    assert len(page.images) == 2 + 1 + 9 + 2


@pytest.mark.parametrize(
    "folder",
    [
        "cifar-convnet/base",
        "cifar-convnet/late-phase",
        "cifar-convnet-quick/base",
        "enwik8-96-units/seed-1/late-phase",
    ],
)
def test_every_figure_of_a_run_is_there(recorded, folder):
    page, text = recorded
    with open(f"docs/results/{folder}/results.json") as file:
        results = json.load(file)
    name = "base" if folder == "cifar-convnet-quick/base" else folder
    mine = Page(text[text.index(f"<h2>Run {name}</h2>") :].partition("</section>")[0])
    expected = list(numbers_in(results))
    rows = [row for row in mine.rows if row and row[0] in ("train", "validation", "test")]
    assert len(rows) == len(expected) >= 2
    for split, texts in expected:
        assert any(row[0] == split and set(texts) <= set(row) for row in rows), (split, texts, rows)
    facts = dict(zip(mine.texts["dt"], mine.texts["dd"]))
    assert facts["parameters"] == f"{results['parameters']:,}" and facts["seed"] == str(
        results["seed"]
    )


def test_summary_marks_the_best_and_averages_seeds(recorded):
    page, text = recorded
    summary = Page(
        text[text.index("<h3>cifar, cifar10</h3>") :].partition("</table>")[0] + "</table></div>"
    )
    heads, rows = summary.rows[:2], summary.rows[2:]
    assert heads[0] == ["", "collapsed", "SWA", "one member", "ensemble"]
    assert heads[1] == ["run", "model", "seed"] + ["accuracy %", "NLL", "ECE"] * 4
    assert [row[0] for row in rows] == ["cifar-convnet/base", "cifar-convnet/late-phase", "base"]
    assert [row[3] for row in rows] == ["77.47", "77.21", "70.79"] and rows[0][6:] == ["–"] * 9
    marked = [
        cell
        for row, cells in zip(
            rows, (summary.best[5 + 15 + 15 * i : 5 + 30 + 15 * i] for i in range(3))
        )
        for cell, best in zip(row, cells)
        if best
    ]
    # Accuracy and NLL of the base, ECE of late-phase; nothing where there is no choice.
    assert marked == ["77.47", "0.6436", "0.0087"]
    enwik8 = Page(
        text[text.index("<h3>enwik8</h3>") :].partition("<section")[0].removesuffix("</section>\n")
    )
    with open("docs/results/enwik8-96-units/results.json") as file:
        base = [
            run["test"]["swa"]["bpc"] for run in json.load(file)["runs"] if run["model"] == "base"
        ]
    mean = sum(base) / 3
    error = (sum((value - mean) ** 2 for value in base) / 2 / 3) ** 0.5
    (row,) = [row for row in enwik8.rows if row[:3] == ["enwik8-96-units/seed-0/base", "base", "3"]]
    assert row[4] == f"{mean:.4f} ± {error:.4f}"


def test_models_are_compared_seed_by_seed(recorded, tmp_path):
    page, text = recorded
    with open("docs/results/enwik8-96-units/results.json") as file:
        lines = enwik8_table.render(json.load(file))
    table = [line for line in lines if line.startswith("|")]
    shown = [
        line.strip("| ").split(" | ") for line in table if "better in" in line or "against" in line
    ]
    assert len(shown) == 4 and all(row in page.rows for row in shown)
    assert any("95 % interval" in text for text in page.texts["p"])
    # Of the image networks, which have one seed and no control.
    assert ["Late-phase against Base", "-0.26", "+0.0136"] in page.rows
    assert sum(" against " in "".join(row) for row in page.rows) == 4
    # Runs that belong to different trainings have no partners.
    for name in ("one", "two"):
        shutil.copytree("docs/results/enwik8-128-units-1e-3/base", tmp_path / "runs" / name)
    shutil.copytree("docs/results/enwik8-128-units-1e-3/rank1", tmp_path / "runs" / "rank1")
    page = make(tmp_path / "out.html", tmp_path / "runs")
    assert not [row for row in page.rows if " against " in "".join(row)]


def test_settings_that_differ_are_shown(recorded):
    _, text = recorded
    cifar = Page(
        text[text.index('<section id="settings">') :].partition("</section>")[0] + "</section>"
    )
    table = cifar.rows[:4]
    assert table[0][:2] == ["run", "model"] and {"epochs", "t0", "members", "sigma"} <= set(
        table[0]
    )
    assert "batch" not in table[0] and "batch = 128" in cifar.texts["pre"][0]
    column = table[0].index("epochs")
    assert [row[column] for row in table[1:]] == ["200", "200", "14"]
    differing = [attributes.get("class", "") for tag, attributes in cifar.elements if tag == "td"]
    width = len(table[0]) - 1
    assert "differs" not in " ".join(differing[:width])
    assert [i for i in range(width) if "differs" in differing[width + i]] == [0]  # the model
    assert "differs" in differing[2 * width + column - 1]


def test_names_from_outside_stay_text(tmp_path):
    run = tmp_path / EVIL.replace("/", "_")
    shutil.copytree("docs/results/cifar-convnet-quick/base", run)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('dtype = "float32"', f"dtype = '''{EVIL}'''"))
    (run / "evaluation").mkdir()
    (run / "evaluation" / "evaluation.json").write_text(
        json.dumps({EVIL: [{"run": EVIL, "weights": EVIL, EVIL: EVIL}]})
    )
    page = make(tmp_path / "out.html", run, title=EVIL)
    assert_self_contained(page, (tmp_path / "out.html").read_text())
    assert (
        "<script>" not in (tmp_path / "out.html").read_text()
        and {"b"} & {tag for tag, _ in page.elements} == set()
    )
    assert page.texts["title"] == page.texts["h1"] == [EVIL]
    assert [image["alt"] for image in page.images] == [f"Curves of {run.name}"]
    assert f"Run {run.name}" in page.texts["h2"] and [EVIL] * 3 in page.rows
    assert f"dtype = {EVIL}" in "\n".join(page.texts["pre"])


def test_a_script_in_the_name_of_a_run_is_escaped(tmp_path):
    shutil.copytree("docs/results/cifar-convnet-quick/base", tmp_path / "<script>x")
    make(tmp_path / "out.html", tmp_path / "<script>x")
    text = (tmp_path / "out.html").read_text()
    assert "<script" not in text and "<h2>Run &lt;script&gt;x</h2>" in text


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def make_evaluation(folder):
    """As `tools/latephase eval` leaves it."""
    folder.mkdir()
    ood = {
        "mean_auroc": 0.81239,
        "entropy_limit": 2.3,
        "own_histogram": [1, 2],
        "sets": [{"name": "svhn", "auroc": 0.75, "histogram": [3]}],
    }
    rows = [
        {
            "run": "a",
            "weights": "collapsed",
            "images": 10000,
            "accuracy": 0.70731,
            "brier": 0.41234,
            "reliability": [{"count": 7777}],
            "ood": ood,
            "corruption": {"mean_error": 0.432188, "by_severity": [0.2]},
        },
        {"run": "a", "weights": "ensemble", "images": 10000, "accuracy": None, "brier": 0.40001},
    ]
    points = [
        {"sigma": 0.5, "mean": 0.125, "standard_error": None, "differences": [0.1]},
        {"sigma": 1.0, "mean": 2.5, "standard_error": 0.25},
    ]
    evaluation = {
        "program": "cifar",
        "split": "test",
        "rows": rows,
        "corruption": {"source": "generated", "images": 5},
        "flatness": {
            "samples": 10,
            "curves": [{"run": "a", "images": 3, "loss": 1.5, "points": points}],
        },
    }
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "reliability.png").write_bytes(PNG)


@pytest.mark.parametrize("named", [False, True])
def test_evaluations_are_shown(tmp_path, named):
    """Of a run, and of several runs in a folder of its own."""
    run = tmp_path / "run"
    shutil.copytree("docs/results/cifar-convnet-quick/late-phase", run)
    make_evaluation(tmp_path / "several" if named else run / "evaluation")
    page = make(tmp_path / "out.html", run, *[tmp_path / "several"] * named)
    assert page.texts["h2"] == ["Test metrics", "Run run"] + ["Evaluation several"] * named
    assert [
        "run",
        "weights",
        "images",
        "accuracy %",
        "Brier",
        "AUROC svhn",
        "mean AUROC",
        "mean corruption error %",
    ] in page.rows
    assert ["a", "collapsed", "10,000", "70.73", "0.4123", "0.7500", "0.8124", "43.22"] in page.rows
    assert ["a", "ensemble", "10,000", "–", "0.4000", "–", "–", "–"] in page.rows
    assert ["run", "sigma", "mean", "standard error"] in page.rows
    assert ["a", "0.5000", "0.1250", "–"] in page.rows and [
        "a",
        "1.0000",
        "2.5000",
        "0.2500",
    ] in page.rows
    facts = list(zip(page.texts["dt"], page.texts["dd"]))
    assert {("split", "test"), ("source", "generated"), ("samples", "10")} <= set(facts)
    (image,) = [image for image in page.images if image["src"].startswith("data:image/png;base64,")]
    assert base64.b64decode(image["src"].partition(",")[2]) == PNG and image["alt"] == "reliability"


def make_sweep(folder):
    """Two points of two seeds, the last of which has not finished."""
    axes = {"members": ["1", "5"]}
    points = sweep_plan.plan_points("cifar", "late-phase", axes, grid=False)
    for i, point in enumerate(points):
        point.config = {"members": i, "batch": 128}
        for seed in (0, 1):
            (folder / point.run_folder(seed)).mkdir(parents=True)
            if (i, seed) != (1, 1):
                figures = {"accuracy": 0.5 + i / 8 + seed / 100, "nll": 1.25, "ece": 0.5 - seed / 8}
                (folder / point.run_folder(seed) / "results.json").write_text(
                    json.dumps({"test": {"collapsed": figures}})
                )
    (folder / "sweep.json").write_text(
        json.dumps(sweep_plan.to_json("cifar", axes, False, [0, 1], points))
    )


def test_a_sweep_is_a_table_and_a_figure(tmp_path):
    make_sweep(tmp_path / "k-sweep")
    page = make(tmp_path / "out.html", tmp_path / "k-sweep")
    assert_self_contained(page, (tmp_path / "out.html").read_text())
    assert page.texts["h2"] == ["Sweep k-sweep"] and len(page.images) == 1
    assert ["K", "seeds", "accuracy %", "NLL"] in page.rows
    assert ["1", "2", "50.50 ± 0.50", "1.2500 ± 0.0000"] in page.rows and [
        "5",
        "1",
        "62.50",
        "1.2500",
    ] in page.rows
    assert ["members-1/seed-1", "51.00", "1.2500", "0.3750"] in page.rows
    assert "batch = 128" in page.texts["pre"][0]


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    for name in ("begun", "going"):
        shutil.copytree("docs/results/cifar-convnet-quick/base", tmp_path / name)
        (tmp_path / name / "results.json").unlink()
    (tmp_path / "begun" / "metrics.jsonl").write_text("")
    page = make(tmp_path / "out.html", tmp_path / "begun", tmp_path / "going", tmp_path / "going")
    assert (
        page.texts["p"].count("Not finished: there is no results.json yet.") == 2
        and "No training metrics yet." in page.texts["p"]
    )
    assert len(page.images) == 1 and page.texts["h2"][2:] == ["Run begun", "Run going"]


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    for name in ("one", "two"):
        shutil.copytree("docs/results/cifar-convnet-quick/base", tmp_path / name / "base")
    page = make(tmp_path / "out.html", tmp_path / "one" / "base", tmp_path / "two" / "base")
    assert page.texts["h2"][2:] == [f"Run {tmp_path}/one/base", f"Run {tmp_path}/two/base"]


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "out.html"
    out.write_text("the page of yesterday")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(
        report_runs.ReportError, match="`out` must be a file that can be written.*No space left"
    ):
        report.main(["docs/results/cifar-convnet-quick/base"], str(out), "Training runs")
    assert out.read_text() == "the page of yesterday" and os.listdir(tmp_path) == ["out.html"]


def spoil_evaluation(run, text):
    (run / "evaluation").mkdir()
    (run / "evaluation" / "evaluation.json").write_text(text)


@pytest.mark.parametrize(
    "damage, message",
    [
        (
            lambda run, out: shutil.rmtree(run),
            "`RUN` must be the folder of a run, of several runs, of a sweep or of an evaluation. "
            "Received: RUN={run}",
        ),
        (
            lambda run, out: (run / "metrics.jsonl").unlink(),
            "`RUN` must be the folder of a run, of several runs, of a sweep or of an evaluation. "
            "Received: RUN={run}",
        ),
        (
            lambda run, out: (run / "config.toml").unlink(),
            "a run must have its config.toml. Received: {run}/config.toml",
        ),
        (
            lambda run, out: (run / "results.json").write_text("{"),
            "results.json must be readable JSON. Received: {run}/results.json",
        ),
        (
            lambda run, out: (run / "results.json").write_text('{"test": 3}'),
            "results.json must hold the results of a run. Received: {run}/results.json",
        ),
        (
            lambda run, out: (run / "results.json").write_text('{"seconds": "many"}'),
            "results.json must hold the results of a run. Received: {run}/results.json (`seconds` "
            "must be a finite number. Received: seconds='many')",
        ),
        (
            lambda run, out: (run / "results.json").write_text(
                '{"test": {"members": [{"bpc": 2, "loss": []}]}}'
            ),
            "results.json must hold the results of a run. Received: {run}/results.json (`loss` "
            "must be a finite number or null. Received: loss=[])",
        ),
        (
            lambda run, out: (run / "sweep.json").write_text("{}"),
            "the folder of a sweep must have its sweep.json",
        ),
        (
            lambda run, out: spoil_evaluation(run, "[]"),
            "evaluation.json must hold what tools/latephase eval has written. "
            "Received: {run}/evaluation",
        ),
        (
            lambda run, out: spoil_evaluation(run, '{"rows": [{"ood": {"sets": [3]}}]}'),
            "evaluation.json must hold what tools/latephase eval has written. Received: {run}",
        ),
        (
            lambda run, out: out.mkdir(),
            "`out` must be a file that can be written. Received: out={out} (Is a directory)",
        ),
        (
            lambda run, out: os.rename(out.parent, str(out.parent) + "-gone"),
            "`out` must be a file that can be written. Received: out={out} (No such file",
        ),
    ],
)
def test_what_cannot_be_reported_is_told(tmp_path, damage, message):
    run, out = tmp_path / "run", tmp_path / "pages" / "out.html"
    shutil.copytree("docs/results/cifar-convnet-quick/base", run)
    out.parent.mkdir()
    damage(run, out)
    program = subprocess.run(
        [sys.executable, "-m", "late_phase_cli", "report", run, "--out", out],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.returncode == 2 and program.stdout == "" and program.stderr.count("\n") == 1, (
        program.stderr
    )
    assert (
        program.stderr.startswith("latephase report: ")
        and message.format(run=run, out=out) in program.stderr
    )
    assert not list(tmp_path.rglob("*.part*")) and not out.is_file()
