"""A small campaign of Keras programs (tests/campaign/keras_campaign.py), and that it finds what is
wrong.
"""

import copy

import pytest
import tensorflow as tf

import late_phase.keras
from tests.campaign import keras_campaign, keras_misuse, keras_programs, keras_rules, keras_trial
from tests.campaign.keras_networks import Layer, Network

_STUB = """
import os
from tests.campaign import keras_campaign
keras_campaign.CAMPAIGN._run = lambda options, n: os.abort() if n == 2 else ("well", "", "")
keras_campaign.CAMPAIGN.main()
"""


def test_no_program_goes_wrong(tmp_path):
    arguments = ["--programs", "8", "--processes", "1", "--seconds", "600"]
    campaign = keras_campaign.CAMPAIGN
    findings, counts = campaign.go(campaign.parse(arguments), str(tmp_path))
    assert findings == [] and counts.total() == 8


def program(*actions, decay=None):
    """One that is drawn by hand: BatchNorm and head have members, the layer between has none."""
    made = keras_programs.Program(0, 0)
    made.mode, made.steps_per_execution, made.built_first = "eager", 1, True
    layers = [
        Layer("BatchNormalization", "l0", {"momentum": 0.5}, "own"),
        Layer("Dense", "l1", {"units": 3, "activation": "tanh"}),
        Layer("Dense", "l2", {"units": 2}, "own"),
    ]
    made.network = Network("vector", 3, layers[:2], [layers[2:]], ["mse"], True)
    options = {"momentum": 0.5, "nesterov": False}
    common = {} if decay is None else {"weight_decay": decay}
    made.settings = keras_programs.Settings(
        keras_rules.Settings("SGD", 2**-4, "", options, common),
        member=None, members=3, start=1, sigma=0.125, base_scale=1.0, base_rate_scale=1.0, seed=0,
    )  # fmt: skip
    made.actions = actions
    return made


TRAIN = ("train_on_batches", {"samples": 12, "size": 3})  # one step, and a cycle of the members


def complaint(*actions, **options):
    kind, found = keras_trial.run(program(*actions, **options))
    assert (kind == "wrong") == bool(found)
    return found


def test_a_program_without_a_fault_is_right():
    actions = [TRAIN, ("save", {"form": "keras"}), TRAIN, ("copies", {})]
    assert complaint(*actions) == complaint(TRAIN, decay=0.125) == ""


def test_a_base_step_one_minibatch_late_is_found(monkeypatch):
    cls = late_phase.keras.fused_updates.FusedBase
    update = cls._update

    def late(self, variable, slots, gradient, now):
        now = copy.copy(now)
        now.member = tf.math.floormod(now.member - 1, now.cycle)
        update(self, variable, slots, gradient, now)

    monkeypatch.setattr(cls, "_update", late)
    assert "net/l" in complaint(TRAIN)


def test_a_wrong_mean_of_the_members_is_found(monkeypatch):
    monkeypatch.setattr(late_phase.keras.members, "_mean_of_rows", lambda rows: rows[0])
    assert "the output of inference" in complaint(TRAIN, ("copies", {}))


def test_a_lost_update_of_a_member_is_found(monkeypatch):
    cls = late_phase.keras.fused_updates.FusedMembers
    update = cls._update

    def forgetful(self, variable, slots, gradient, now):
        if int(now.member) != 2:
            update(self, variable, slots, gradient, now)

    monkeypatch.setattr(cls, "_update", forgetful)
    assert "[2, " in complaint(TRAIN)


def test_moments_that_a_save_forgets_are_found(monkeypatch):
    cls = late_phase.keras.LatePhaseOptimizer
    load = cls.load_own_variables

    def forgetful(self, store):
        load(self, store)
        for variable in self.variables:
            if variable.path.endswith("accum"):
                variable.assign(tf.zeros_like(variable.value))

    monkeypatch.setattr(cls, "load_own_variables", forgetful)
    assert "velocity of" in complaint(TRAIN, ("save", {"form": "keras"}))


def test_the_noise_of_another_weight_is_found(monkeypatch):
    spawn = late_phase.keras.optimizer.spawn
    monkeypatch.setattr(
        late_phase.keras.optimizer,
        "spawn",
        lambda variable, sigma, seed: spawn(variable, sigma, [seed[0], 0]),
    )
    assert "spawned, " in complaint(TRAIN)


def test_a_wrong_weight_decay_is_found(monkeypatch):
    cls = late_phase.keras.inner_optimizers.InnerOptimizers
    monkeypatch.setattr(cls, "base_decay_scale", lambda self, members, base_scale: 1.0)
    assert "l1/kernel" in complaint(TRAIN, decay=0.125)


def test_statistics_of_one_minibatch_are_found(monkeypatch):
    """That move by momentum, not momentum^K."""
    cls = late_phase.keras.BatchNormalization
    move = cls._move_statistics

    def slowly(self, *statistics):
        whole, self.momentum = self.momentum, self.momentum ** (1 / self.members)
        move(self, *statistics)
        self.momentum = whole

    monkeypatch.setattr(cls, "_move_statistics", slowly)
    assert "moving_mean" in complaint(TRAIN)


@pytest.mark.parametrize(
    "error, found",
    [
        (ValueError("`x` must be 1. Received: x=2"), ""),
        (ValueError("bad x"), "does not say what was given"),
        (KeyError("x"), "KeyError instead of an error for users"),
        (None, "accepted, but it must be refused"),
    ],
)
def test_how_a_wrong_use_ends_is_looked_at(error, found):
    def wrong():
        if error is not None:
            raise error

    got = keras_misuse.complaint(wrong)
    assert found in got and bool(got) == bool(found)


def test_a_write_before_an_error_is_found(monkeypatch):
    def draw(training, number):
        def wrong():
            training.pairs[0][1].assign_add([[1.0] * 3] * 3)
            raise ValueError("Received: nothing good")

        return "a wrong use", wrong

    monkeypatch.setattr(keras_misuse, "draw", draw)
    found = complaint(("misuse", {"number": 0}))
    assert "has changed when there was an error: a wrong use" in found


def test_a_process_that_dies_is_a_finding(tmp_path, monkeypatch):
    campaign = keras_campaign.CAMPAIGN
    monkeypatch.setattr(campaign, "program", ["-c", _STUB])
    options = campaign.parse(["--programs", "5", "--processes", "1"])
    findings, counts = campaign.go(options, str(tmp_path))
    assert [finding["trial"].partition(":")[0] for finding in findings] == ["program 2"]
    assert "its process ended with -6" in findings[0]["complaint"]
    assert counts["well"] >= 2  # those after it ran


def test_a_program_can_be_made_again():
    assert str(keras_programs.Program(3, 17)) == str(keras_programs.Program(3, 17))
    assert str(keras_programs.Program(3, 17)) != str(keras_programs.Program(4, 17))
