"""The wheel, and what a user does with nothing else, wherever it is installed.

A small text takes the place of enwik8.
"""

import hashlib
import json
import os
from importlib import metadata

from late_phase_cli import releases
from tests.support import enwik8_text
from tools.develop import build_wheel

LIBRARY = os.environ["LATE_PHASE_OPS"]
PROGRAM = os.path.abspath(os.environ["LATE_PHASE_PROGRAM"])
RELEASE = releases.release_of(metadata.version("tensorflow"))
# Ten minibatches an epoch.
SMALL = (
    "--units 24 --embedding 8 --batch 8 --sequence 20 --train-characters 1608 "
    "--validation-characters 0 --test-characters 0 --members 3 --t0 1.2 --swa-start 2 "
    "--swa-every 0.5 --epochs 3 --threads 2"
).split()


def make_wheel(folder, library=LIBRARY, program=PROGRAM):
    """A wheel for the one release of TensorFlow at hand; returns the path of the one file that the
    command leaves in `folder`.
    """
    build_wheel.main(["--built", RELEASE, str(library), str(program), "--out", str(folder)])
    (name,) = os.listdir(folder)
    return str(folder / name)


def environment():
    """The environment's variables without those that lead to this project."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("LATE_PHASE_")
    }
    return kept | {"TF_CPP_MIN_LOG_LEVEL": "3"}


def prepare(folder, packages):
    """Writes folder/text, which is enwik8 to the latephase of the site-packages `packages`."""
    path = enwik8_text.write_text(os.path.join(folder, "text"), 4000)
    with open(path, "rb") as file:
        text = file.read()
    with open(os.path.join(packages, "small_enwik8.py"), "w") as file:
        file.write(
            "import functools\n"
            "from late_phase_cli import enwik8_data\n"
            f"text = enwik8_data.Text(size={len(text)}, md5={hashlib.md5(text).hexdigest()!r})\n"
            "enwik8_data.find = functools.partial(enwik8_data.find, text=text)\n"
        )
    with open(os.path.join(packages, "small_enwik8.pth"), "w") as file:
        file.write("import small_enwik8\n")  # by every Python that starts there


def succeed(finished):
    assert finished.returncode == 0, finished.stderr
    return finished


def walk(run, folder):
    """`run(*arguments)` runs latephase in `folder`, with no extra installed, to its end."""
    trained = succeed(run("train", "enwik8", "--data", "text", "--out", "run", *SMALL))
    with open(os.path.join(folder, "run", "results.json")) as file:
        results = {one["model"]: one for one in json.load(file)["runs"]}
    assert {"base", "rank1", "late-phase"} <= results.keys(), results.keys()
    assert results["late-phase"]["steps"] == 30
    table = trained.stdout.splitlines()
    assert table[0].startswith("| bits per character | train | test | test with SWA |")
    assert f"| {results['base']['test']['collapsed']['bpc']:.3f} |" in table[2], table
    # One line instead of the plots.
    assert trained.stderr.count("late_phase[plots]") == 1, trained.stderr
    assert not os.path.exists(os.path.join(folder, "run", "curves.png"))

    evaluated = succeed(run("eval", "run/late-phase", "--data", "text"))
    with open(os.path.join(folder, "run", "late-phase", "evaluation", "evaluation.json")) as file:
        rows = json.load(file)["rows"]
    (collapsed,) = (row for row in rows if row["weights"] == "collapsed")
    assert collapsed["bpc"] == results["late-phase"]["test"]["collapsed"]["bpc"]
    assert f"{collapsed['bpc']:.4f}" in evaluated.stdout

    sampled = succeed(run("sample", "run/late-phase", "--prompt", "!#", "--length", "20"))
    assert sampled.stdout.startswith("!#") and len(sampled.stdout.rstrip("\n")) >= 20
    assert succeed(run("nqp", "--help")).stdout

    if not os.path.exists("/dev/nvidia0"):
        refused = run("gpu-check")
        assert refused.returncode == 2 and "must see GPU:0. It sees CPU:0 only" in refused.stderr
        assert not os.path.exists(os.path.join(folder, "gpu-check.json"))

    for arguments in (["plot", "run"], ["report", "run", "--out", "page.html"]):
        refused = run(*arguments)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
        assert "which is not installed: pip install 'late_phase[plots]'" in refused.stderr
    assert not os.path.exists(os.path.join(folder, "page.html"))
