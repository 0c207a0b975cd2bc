"""Cycles that restart with each epoch, in the programs. What they do to weights:
tests/optimizers/late_phase_test.cc.
"""

import math

import pytest

from tests.program import enwik8_equality_test as reference
from tests.support import enwik8_text, program_runs

# Of 20 minibatches in epochs of 8, T0 is 5. The base takes a step in each of the first 5; then
# cycles of 3 are closed by minibatches 7; 10 and 13 (14 and 15 are dropped); 18. Cycles that run on
# are closed by 7, 10, 13, 16 and 19.
FLAGS = reference.flags(1, "float64")
STEPS = {"true": 5 + 1 + 2 + 1, "false": 5 + 5}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    size = math.ceil(reference.BATCH * (reference.EPOCH * reference.TIME + 1) / 0.9)
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", size, symbols=11)


def train(text, run, restart, *flags):
    flags = (*FLAGS, "--restart-cycle", restart, *flags)
    program_runs.train("enwik8", text, run, *flags)
    return program_runs.read_checkpoint(run)


@pytest.mark.parametrize("restart", STEPS)
def test_base_steps_are_those_of_whole_cycles(tmp_path, text, restart):
    run = tmp_path / "run"
    values = train(text, run, restart, "--steps", reference.STEPS)
    assert values["kernel/count"] == STEPS[restart]
    # Minibatch 19 is the fourth of its epoch, and the fifteenth since T0.
    members = values["u/count"].tolist()
    assert members == ([5, 5, 5] if restart == "false" else [6, 5, 4])
    test = program_runs.read_results(run)["test"]
    last = 0 if restart == "true" else 2
    assert test["current"] == test["members"][last] and len(set(map(str, test["members"]))) == 3
    control = train(
        text, tmp_path / "control", restart, "--model", "rank1-accumulation", "--steps", 20
    )
    assert control["kernel/count"] == control["u/count"] == STEPS[restart]


def test_a_run_resumes_bit_for_bit_within_a_cycle(tmp_path, text):
    whole = train(text, tmp_path / "whole", "true", "--steps", reference.STEPS)
    for step in (9, 15, 16):  # in mid-cycle, in one that will be dropped, and before it is
        part = tmp_path / f"part-{step}"
        train(text, part, "true", "--steps", step)
        program_runs.train("enwik8", text, part, "--resume", "--steps", reference.STEPS)
        program_runs.assert_same_bits(whole, program_runs.read_checkpoint(part))


def test_a_run_keeps_its_cycles(tmp_path, text):
    train(text, tmp_path / "run", "true", "--steps", 9)
    resume = ("--resume", "--steps", 20, "--restart-cycle", "false")
    refused = program_runs.run(
        "train", "enwik8", "--data", text, "--out", tmp_path / "run", *resume
    )
    message = "`restart_every` must be 8, as in the checkpoint. Received: none"
    assert refused.returncode != 0 and message in refused.stderr


def test_an_epoch_must_have_a_whole_cycle(tmp_path, text):
    flags = (*FLAGS, "--restart-cycle", "true", "--members", 9)
    refused = program_runs.run("train", "enwik8", "--data", text, "--out", tmp_path / "run", *flags)
    message = (
        "`members` must be at most 8, the minibatches of an epoch, if each epoch begins a cycle "
        "of its own: else none is ever finished. Received: members=9, restart_cycle=true"
    )
    assert refused.returncode != 0 and message in refused.stderr
    assert not (tmp_path / "run").exists()
