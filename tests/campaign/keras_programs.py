"""Random programs: a network, an optimizer, and what is done with them."""

import dataclasses

import keras
import numpy as np

import late_phase.keras
from tests.campaign import keras_draw, keras_rules

keras.config.set_floatx("float64")  # so that rounding hides nothing


@dataclasses.dataclass
class Settings:
    """The arguments of LatePhaseOptimizer."""

    base: keras_rules.Settings
    member: keras_rules.Settings | None
    members: int
    start: object
    sigma: float
    base_scale: float
    base_rate_scale: float
    seed: int

    def made(self):
        options = {name: getattr(self, name) for name in _OPTIONS}
        member = None if self.member is None else self.member.made()
        return late_phase.keras.LatePhaseOptimizer(self.base.made(), member, **options)


_OPTIONS = ("members", "start", "sigma", "base_scale", "base_rate_scale", "seed")


def _settings(random, exact, several):
    members = int(random.choice([2, 2, 3, 3, 4] if several else [1, 2, 2, 3, 3, 4]))
    starts = [0, 1, 3, 7, 12, None, "25%", "60%", late_phase.keras.Epoch(1)]
    return Settings(
        base=keras_rules.draw(random),
        member=keras_rules.draw(random) if random.random() < 0.35 else None,
        members=members,
        start=starts[random.integers(len(starts))],
        sigma=0.0 if exact else float(random.choice([0.0, 2.0**-6, 2.0**-3])),
        base_scale=float(random.choice([1.0, 0.5, 1 / members])),
        base_rate_scale=float(random.choice([1.0, 1.0, 1.5])),
        seed=int(random.integers(0, 2**40)),
    )


class Program:
    """One program; the same for the same seed and number.

    Attributes:
      actions: [(method of keras_actions.Actions, its arguments)].
      mode: how steps run: "eager", "function" or "xla".
      built_first: whether the optimizer is built before the first step.
    """

    def __init__(self, seed, number):
        self.key = [seed, number]
        random = np.random.default_rng(self.key)
        self.number = number
        self.mode = str(random.choice(["eager", "function", "xla"], p=[0.92, 0.076, 0.004]))
        together = self.mode == "function" and random.random() < 0.3
        self.steps_per_execution = 2 if together else 1
        self.built_first = bool(random.random() < 0.5)
        self.network = keras_draw.network(random, converted=bool(random.random() < 0.45))
        # With one member sparse gradients are Keras's own affair.
        has_table = self.network.inputs in ("tokens", "tied")
        self.settings = _settings(random, exact=together, several=has_table)
        if self.network.has_lora():  # Keras cannot mix floats and doubles in one norm
            for one in filter(None, (self.settings.base, self.settings.member)):
                one.common.pop("global_clipnorm", None)
        self.actions = list(_actions(random, self))

    def __str__(self):
        s = self.settings
        actions = ", ".join(
            f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
            for name, arguments in self.actions
        )
        member = "like base" if s.member is None else s.member
        return (
            f"program {self.number}: {self.network}\n  {self.mode}, {self.steps_per_execution} "
            f"steps at once, members={s.members}, start={s.start!r}, sigma={s.sigma}, "
            f"base_scale={s.base_scale}, base_rate_scale={s.base_rate_scale}, seed={s.seed}\n"
            f"  base: {s.base}\n  member: {member}\n  {actions}"
        )


def _fit(random):
    return {
        "samples": int(random.integers(3, 14)),
        "size": int(random.integers(2, 6)),
        "epochs": int(random.integers(1, 4)),
    }


def _train(random, program):
    """A training of some kind."""
    planned = isinstance(program.settings.start, (str, late_phase.keras.Epoch))
    kind = random.choice(
        ["fit", "loop", "batches", "swa", "interrupted"], p=[0.4, 0.2, 0.1, 0.2, 0.1]
    )
    if planned and program.settings.members > 1 and kind in ("loop", "batches"):
        kind = "fit"
    arguments = _fit(random)
    if program.steps_per_execution > 1:
        arguments["samples"] = 2 * arguments["size"] * int(random.integers(1, 3))
        kind = "fit"
    if kind == "loop":
        return "loop", {
            "samples": arguments["samples"],
            "size": arguments["size"],
            "graph": bool(program.mode != "eager"),
        }
    if kind == "batches":
        return "train_on_batches", {name: arguments[name] for name in ("samples", "size")}
    if kind == "swa":
        return "fit_with_swa", {**arguments, **_swa(random)}
    if kind == "interrupted":
        steps = -(-arguments["samples"] // arguments["size"]) * arguments["epochs"]
        return "fit", {**arguments, "after": int(random.integers(1, steps + 1))}
    return "fit", arguments


def _forms(program):
    """The forms of a file that hold all of a program's state."""
    network, settings = program.network, program.settings
    if network.has_lora():
        return ["checkpoint"]  # Keras merges the factors into the kernel that it saves
    is_excluded = settings.base.excluded or (settings.member and settings.member.excluded)
    is_own = network.inputs == "tied" and network.weights is not None
    # No config has the exclusions; that of a class of one's own makes layers without members.
    weights_alone = ["weights", "checkpoint"]
    return weights_alone if is_excluded or is_own else [*weights_alone, "keras", "pickle"]


def _swa(random):
    by_epochs = random.random() < 0.6
    windowed = random.random() < 0.4
    return {
        "by_epochs": bool(by_epochs),
        "start": int(random.integers(0, 2 if by_epochs else 4)),
        "every": int(random.integers(1, 3)),
        "window": int(random.integers(1, 4)) if windowed else None,
        "weights": ["equal", "cosine", "1-sqrt"][random.integers(3)]
        if windowed
        else ["equal", 0.75][random.integers(2)],
    }


def _actions(random, program):
    settings = program.settings
    start, several = settings.start, settings.members > 1
    waiting = start is None and several
    for turn in range(random.integers(2, 4)):
        yield _train(random, program)
        if waiting and random.random() < 0.7:
            waiting = False
            yield "spawn", {}
        draw = random.random()
        if draw < 0.4:
            yield "save", {"form": str(random.choice(_forms(program)))}
        elif draw < 0.5 and program.steps_per_execution == 1:
            yield "compile", {}
            waiting = start is None and several
        elif draw < 0.55:
            yield "resume", {}
            start, waiting = 1, False
        elif draw < 0.65:
            yield "assign", {}
        elif draw < 0.7 and not settings.base.schedule:
            yield "set_rate", {"rate": 2.0**-6}
        if random.random() < 0.25:
            yield "misuse", {"number": int(random.integers(10**6))}
        if turn and random.random() < 0.4:
            yield "copies", {}
