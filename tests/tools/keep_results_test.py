"""What is kept of a training run: tools/develop/keep_results.py."""

import json
import subprocess
import sys

from tools.develop import keep_results


def test_keeps_figures_and_thins_metrics(tmp_path):
    run = tmp_path / "run" / "base"
    (run / "checkpoint" / "step-000000000001").mkdir(parents=True)
    (run / "checkpoint" / "step-000000000001" / "state.index").write_text("x")
    (run / "events.out.tfevents.1").write_text("x")
    lines = []
    for step in range(1, 951):
        lines.append(json.dumps({"kind": "train", "step": step}))
        if step % 100 == 0:
            lines.append(json.dumps({"kind": "evaluation", "step": step}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "run" / "config.toml").write_text("seed = 1\n")
    for name in ("config.toml", "results.json", "curves.png"):
        (run / name).write_text(name)
    keep_results.keep(str(tmp_path / "run"), str(tmp_path / "kept"))

    assert sorted(
        str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*")
    ) == [
        "base",
        "base/config.toml",
        "base/curves.png",
        "base/metrics.jsonl",
        "base/results.json",
        "config.toml",
    ]
    assert (tmp_path / "kept" / "base" / "results.json").read_text() == "results.json"
    kept = [
        json.loads(line)
        for line in (tmp_path / "kept" / "base" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in kept] == sorted(line["step"] for line in kept)
    training = [line["step"] for line in kept if line["kind"] == "train"]
    assert 90 <= len(training) <= 100 and training[-1] == 950
    assert [line["step"] for line in kept if line["kind"] == "evaluation"] == list(
        range(100, 1000, 100)
    )


def test_keeps_a_sweep(tmp_path):
    for name in (
        "sweep.json",
        "sweep.png",
        "results.json",
        "members-5/seed-0/config.toml",
        "members-5/seed-0/metrics.jsonl",
        "members-5/seed-0.log",
    ):
        path = tmp_path / "sweep" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    run = subprocess.run(
        [sys.executable, keep_results.__file__, tmp_path / "sweep", tmp_path / "kept"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    kept = sorted(
        str(path.relative_to(tmp_path / "kept"))
        for path in (tmp_path / "kept").rglob("*")
        if path.is_file()
    )
    assert kept == [
        "members-5/seed-0/config.toml",
        "members-5/seed-0/metrics.jsonl",
        "results.json",
        "sweep.json",
        "sweep.png",
    ]
