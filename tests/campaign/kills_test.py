"""A small campaign of kills (tests/campaign/kills.py), and that it finds what is wrong."""

import signal
import time

import pytest

from tests.campaign import kills
from tests.support import program_runs


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return kills.Training("enwik8 late-phase", str(tmp_path_factory.mktemp("training")))


def test_every_training_resumes_to_its_own_end(tmp_path):
    findings, moments = kills.campaign(kills.parse(["--kills", "4"]), str(tmp_path))
    assert findings == []
    assert moments.total() >= 4


def test_another_end_is_found(training, monkeypatch):
    for what in training.end:
        with monkeypatch.context() as patch:
            patch.setitem(training.end, what, None)
            _, complaint = kills.trial(training, what, [0.7])
        assert f": {what} differ" in complaint


def test_a_training_that_does_not_resume_is_found(training, monkeypatch):
    start = kills.Training.start

    def refuse(self, out, arguments=None):
        return start(self, out, [*arguments, "--steps", "-1"] if arguments else arguments)

    def kill_at_a_checkpoint(process, seconds):
        out = process.args[process.args.index("--out") + 1]
        while not program_runs.checkpoint_folders(out):
            time.sleep(0.001)
        process.kill()
        return kills.finish(process)[0] == -signal.SIGKILL

    monkeypatch.setattr(kills.Training, "start", refuse)
    monkeypatch.setattr(kills, "kill_after", kill_at_a_checkpoint)
    where, complaint = kills.trial(training, "refused", [0.8])
    assert len(where) == 1 and complaint.startswith("status 2 after kills")


def test_what_was_killed_was_killed(training):
    process = training.start(f"{training.folder}/killed")
    assert kills.kill_after(process, 0.01) and process.returncode == -signal.SIGKILL
