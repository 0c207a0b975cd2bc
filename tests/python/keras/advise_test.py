"""late_phase.keras.advise: the driver's advice, on numbers of one's own."""

import math
import types

import keras
import pytest

import late_phase.keras
from late_phase_cli import advice

# Falls by 0.03 per logarithm of the epoch.
HISTORY = [2.5 - 0.03 * math.log(epoch) for epoch in range(1, 13)]


def test_it_is_what_the_driver_says():
    ours = late_phase.keras.advise(2.4, 2.32, 10, HISTORY, late_epochs=5, swa_samples=20)
    trend = advice.noise_law.trend(dict(enumerate(HISTORY, 1)))
    theirs = advice.advise(advice.Measured([2.4], [2.32], 10, 5, 12, [trend], 20))
    assert str(ours) == str(theirs)
    assert str(ours).splitlines()[-1].startswith("Recommendation: ")
    assert ours.excess == pytest.approx(0.08) and ours.on_plateau
    assert ours.fall == pytest.approx(0.03 * math.log(17 / 12))
    assert ours.accumulated == pytest.approx(2.32 + 0.08 / math.sqrt(10))


def test_histories_of_every_kind():
    given = lambda history: late_phase.keras.advise(2.4, 2.32, history=history).fall
    expected = 0.03 * math.log(16.8 / 12)
    assert given(HISTORY) == pytest.approx(expected)
    assert given({"loss": HISTORY}) == given(HISTORY)
    assert given({"loss": [1] * 12, "val_loss": HISTORY}) == given(HISTORY)
    assert given(types.SimpleNamespace(history={"loss": HISTORY})) == given(HISTORY)
    assert given(None) is None and given(HISTORY[:3]) is None
    assert late_phase.keras.advise(2.4, 2.32).on_plateau is None


def test_what_fit_returns_is_a_history():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = keras.ops.ones((8, 2))
    history = model.fit(x, x[:, :1], epochs=6, verbose=0)
    assert late_phase.keras.advise(1.0, 0.9, history=history).fall is not None


def test_repetitions_have_an_interval():
    one, several = (
        late_phase.keras.advise(2.4, 2.32),
        late_phase.keras.advise([2.4, 2.5, 2.45], [2.32, 2.43, 2.37]),
    )
    assert math.isnan(one.excess_error) and 0 < several.excess_error < 0.02
    assert "mean of 3 seeds" in str(several)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Nadam", "RMSprop"])
def test_the_law_is_for_normalised_steps(kind):
    given = late_phase.keras.advise(2.4, 2.32, optimizer=getattr(keras.optimizers, kind)(0.1))
    assert given.accumulated == late_phase.keras.advise(2.4, 2.32).accumulated


def test_sgd_has_no_such_law():
    for optimizer in ("sgd", keras.optimizers.SGD(0.1, momentum=0.9)):
        given = late_phase.keras.advise(2.4, 2.32, history=HISTORY, optimizer=optimizer)
        assert given.accumulated is None and given.on_plateau is None and given.choice == "SWA"
        assert "(γ = 1) leaves the noise as it is" in str(given)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"loss": math.nan},
         "`loss` must be a finite number, or a sequence of them. Received: loss=nan"),
        ({"loss": []}, "`loss` must be a finite number.* Received: loss=\\[\\]"),
        ({"swa_loss": "low"}, "`swa_loss` must be .* Received: swa_loss='low'"),
        ({"loss": [1, 2]}, "must be of the same trainings. Received: 2 and 1 numbers"),
        ({"members": 1}, "`members` must be an integer >= 2. Received: members=1"),
        ({"members": 2.5}, "`members` must be an integer >= 2. Received: members=2.5"),
        ({"members": True}, "`members` must be an integer >= 2. Received: members=True"),
        ({"history": {"mse": [1]}}, "`history` must have `val_loss` or `loss`. Received: mse"),
        ({"history": [1, math.inf]}, "`history` must be a finite number"),
        ({"late_epochs": 3}, "`late_epochs` must come with `history`"),
        ({"late_epochs": 12, "history": HISTORY},
         r"must be in \(0, 12\).* Received: late_epochs=12"),
        ({"late_epochs": 0, "history": HISTORY}, r"must be in \(0, 12\).* Received: late_epochs=0"),
        ({"optimizer": "lion"}, "`optimizer` must be .* Received: optimizer='lion'"),
        ({"optimizer": keras.optimizers.Adagrad()}, "`optimizer` must be .* Received: optimizer=<"),
    ],
)  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        late_phase.keras.advise(**{"loss": 2.4, "swa_loss": 2.32, **arguments})
