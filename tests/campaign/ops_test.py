"""A small campaign over the ops (tests/campaign/ops.py), and that it finds what is wrong."""

import numpy as np
import pytest

from tests.campaign import op_calls, op_races, op_trial, ops
from tests.campaign.op_signatures import SIGNATURES, Shapes


@pytest.mark.parametrize("form, calls", [("eager", 1000), ("function", 200)])
def test_no_call_goes_wrong(form, calls, tmp_path):
    arguments = ["--calls", str(calls), "--form", form, "--seconds", "600"]
    findings, counts = ops.CAMPAIGN.go(ops.CAMPAIGN.parse(arguments), str(tmp_path))
    assert findings == []
    assert sum(counts.values()) == calls
    for signature in SIGNATURES:
        accepted, refused = (counts[f"{signature.op} {what}"] for what in ("accepted", "refused"))
        assert accepted + refused
        if form == "eager":
            assert accepted and refused


def test_every_op_takes_part():
    registered = {
        name for name in dir(op_trial.late_phase.raw_ops) if name.startswith("late_phase_")
    }
    functions = {one.function for one in SIGNATURES}
    others = {name for name in registered if name.endswith("_eager_fallback")}
    assert registered - others - {"late_phase_library_info"} == functions


def first(wanted):
    """The first call that fulfils a condition."""
    calls = (op_calls.make(0, number) for number in range(100_000))
    return next(call for call in calls if wanted(call))


def accepted(op, **more):
    return first(
        lambda call: (
            call.signature.op == op
            and call.expected()
            and not call.specials
            and all(call.values[name].size for name in more.get("filled", ()))
            and call.layout == more.get("layout", "plain")
        )
    )


def tampered(change):
    def function(call, inputs):
        outputs = op_trial.call_eagerly(call, inputs)
        return change(call, inputs, outputs)

    return function


def test_a_wrong_value_is_found():
    call = accepted("SoftmaxCrossEntropy", filled=["labels"])

    def change(call, inputs, outputs):
        return outputs._replace(loss=outputs.loss + 0.5)

    assert "`loss`" in op_trial.run(call, tampered(change))


def test_a_write_that_must_not_be_is_found():
    call = accepted("ReadMember", filled=["var"])

    def change(call, inputs, outputs):
        op_trial.RAW.AssignVariableOp(resource=inputs["var"], value=call.values["var"] + 1)
        return outputs

    assert op_trial.run(call, tampered(change)) == "`var` has changed"


def test_a_write_before_a_refusal_is_found():
    call = first(
        lambda call: (
            call.signature.op == "MemberApplySgd"
            and call.fault.startswith("`lr` holds")
            and not call.expected()
            and call.values["var"].size
        )
    )

    def function(call, inputs):
        op_trial.RAW.AssignVariableOp(resource=inputs["var"], value=call.values["var"] + 1)
        return op_trial.call_eagerly(call, inputs)

    assert "refused, and yet `var` has changed" in op_trial.run(call, function)


def test_a_call_that_must_be_refused_is_not_accepted():
    call = first(lambda call: not call.expected() and call.signature.op == "Rank1Lstm")
    assert op_trial.run(call, lambda call, inputs: None) == "accepted, but it must be refused"


def test_an_error_in_another_form_is_found():
    call = first(lambda call: not call.expected() and call.signature.op == "BatchNorm")

    def function(call, inputs):
        raise op_trial.tf.errors.InvalidArgumentError(None, None, "Check failed: rank")

    assert "not in the form" in op_trial.run(call, function)


def test_a_process_that_dies_is_a_finding(tmp_path, monkeypatch):
    program = "from tests.campaign import op_trial, ops; import os; "
    program += "op_trial.FORMS['eager'] = lambda call, inputs: os.abort() if call.number == 5 "
    program += "else op_trial.call_eagerly(call, inputs); ops.CAMPAIGN.main()"
    monkeypatch.setattr(ops.CAMPAIGN, "program", ["-c", program])
    options = ops.CAMPAIGN.parse(["--calls", "10", "--processes", "1"])
    findings, counts = ops.CAMPAIGN.go(options, str(tmp_path))
    assert [finding["trial"].partition(":")[0] for finding in findings] == ["call 5"]
    assert "its process ended with -6" in findings[0]["complaint"]
    assert counts.total() >= 4  # the calls after it were made


def test_shapes_are_matched_as_the_messages_write_them():
    shapes = Shapes()
    assert shapes.match("[batch, units>=1]", (2, 3)) and shapes.match("[4*units]", (12,))
    assert not shapes.match("[4*units]", (8,)) and not shapes.match("[batch, units]", (2, 3, 1))
    assert not Shapes().match("[K>=1, ...]", ()) and not Shapes().match("[K>=1, ...]", (0, 2))
    stack = Shapes()
    assert stack.match("[K>=1, ...]", (3, 5, 2)) and stack.match("[...] or [K, ...]", (5, 2))
    assert stack.match("[...] or [K, ...]", (3, 5, 2)) and not stack.match("[...]", (3, 5, 2))
    assert stack.resolve("[K, ...]") == (3, 5, 2)


def test_a_call_can_be_made_again():
    one, other = op_calls.make(3, 17), op_calls.make(3, 17)
    assert str(one) == str(other)
    for name, value in one.values.items():
        np.testing.assert_array_equal(value, other.values[name])


def test_races_find_updates_that_are_lost_or_half_done(monkeypatch):
    class Unlocked:
        """Reads, waits for the others, and writes: what the locks are there to prevent."""

        def __getattr__(self, name):
            return getattr(op_trial.late_phase.raw_ops, name)

        def late_phase_member_apply_sgd(self, var, member, grad, lr, weight_decay):
            value = op_trial.RAW.ReadVariableOp(resource=var, dtype=np.float64).numpy()
            half = value.copy()
            half[member, : len(grad) // 2] -= grad[: len(grad) // 2]
            op_trial.RAW.AssignVariableOp(resource=var, value=half)
            value[member] -= grad
            op_trial.RAW.AssignVariableOp(resource=var, value=value)

    race = next(
        race
        for race in (op_races.Race(0, number) for number in range(1000))
        if race.rule == "sgd" and race.D == 40000
    )
    assert race.run() == ""
    monkeypatch.setattr(op_races, "late_phase", type("Library", (), {"raw_ops": Unlocked()}))
    assert "in the middle of an update" in race.run() or "lost an update" in race.run()
