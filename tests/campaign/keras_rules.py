"""The optimizers of a random program: drawn, made of Keras, and written down again for one array.

The equations are those that Keras documents; nothing is taken from its code. Numbers are drawn that
a float holds exactly, because Keras rounds some of them to float before they meet a double.
"""

import dataclasses

import keras
import numpy as np

# Of each rule the options that are drawn, with their values.
_OPTIONS = {
    "SGD": {"momentum": [0.0, 0.0, 0.5, 0.875], "nesterov": [False, True]},
    "Adam": {"beta_1": [0.5, 0.875], "beta_2": [0.75, 0.9375], "amsgrad": [False, False, True]},
    "AdamW": {"beta_1": [0.5, 0.875], "beta_2": [0.75, 0.9375], "weight_decay": [2**-6, 2**-3]},
    "RMSprop": {"rho": [0.75, 0.875], "momentum": [0.0, 0.5], "centered": [False, True]},
    "Adagrad": {"initial_accumulator_value": [0.125, 0.5]},
    "Adamax": {"beta_1": [0.5, 0.875], "beta_2": [0.75, 0.9375]},
    "Nadam": {"beta_1": [0.5, 0.875], "beta_2": [0.75, 0.9375]},
    "Adadelta": {"rho": [0.75, 0.9375]},
}
_OFTEN = ["SGD", "SGD", "SGD", "Adam", "Adam", "AdamW", "RMSprop"]
_EPSILON = 2.0**-10


@dataclasses.dataclass
class Settings:
    """What an optimizer is made with."""

    rule: str
    rate: float
    schedule: str  # "" for a constant rate
    options: dict  # of the rule
    common: dict  # of every Keras optimizer: weight_decay and clipping
    excluded: str = ""  # from weight decay: a part of the weights' names

    def schedule_of(self):
        """What is the learning rate in Keras."""
        kinds, rate = keras.optimizers.schedules, self.rate
        if self.schedule == "steps":
            return kinds.PiecewiseConstantDecay([3, 9], [rate, rate / 2, rate / 8])
        if self.schedule == "exponential":
            return kinds.ExponentialDecay(rate, 4, 0.5, staircase=True)
        if self.schedule == "inverse":
            return kinds.InverseTimeDecay(rate, 2, 0.25)
        return rate

    def rate_at(self, t):
        """The learning rate at minibatch t, a float."""
        if self.schedule == "steps":
            return self.rate / (1 if t <= 3 else 2 if t <= 9 else 8)
        if self.schedule == "exponential":
            return self.rate * 0.5 ** (t // 4)
        if self.schedule == "inverse":
            return float(np.float32(self.rate) / np.float32(1 + 0.25 * t / 2))
        return self.rate

    def made(self):
        """The Keras optimizer."""
        optimizer = getattr(keras.optimizers, self.rule)(
            self.schedule_of(), **self.options, **self.common
        )
        if self.excluded:
            optimizer.exclude_from_weight_decay(var_names=[self.excluded])
        return optimizer

    def decay_of(self, name):
        """The weight decay of a weight of that name."""
        decay = {**self.options, **self.common}.get("weight_decay") or 0.0
        return 0.0 if self.excluded and self.excluded in name else decay


def draw(random):
    """Settings."""
    rule = str(random.choice(_OFTEN if random.random() < 0.7 else list(_OPTIONS)))
    options = {
        name: values[random.integers(len(values))] for name, values in _OPTIONS[rule].items()
    }
    if rule != "SGD":
        options["epsilon"] = _EPSILON
    common = {}
    if rule != "AdamW" and random.random() < 0.25:
        common["weight_decay"] = 2.0 ** -int(random.integers(3, 7))
    if random.random() < 0.4:
        clip = str(random.choice(["clipnorm", "clipvalue", "global_clipnorm", "global_clipnorm"]))
        common[clip] = 2.0 ** -int(random.integers(0, 6))
    if random.random() < 0.1:
        common["loss_scale_factor"] = 4.0
    has_decay = "weight_decay" in {**options, **common}
    return Settings(
        rule,
        2.0 ** -int(random.integers(4, 8)) * (16 if rule == "Adadelta" else 1),
        str(random.choice(["", "", "", "steps", "exponential", "inverse"])),
        options,
        common,
        str(random.choice(["bias", "kernel"])) if has_decay and random.random() < 0.3 else "",
    )


class Rule:
    """The update of one array; `state` has the arrays that it keeps."""

    def __init__(self, settings):
        self.settings, self.n, self.state = settings, 0, {}
        self._product = 1.0  # of Nadam

    def _kept(self, name, w, value=0.0):
        return self.state.get(name, np.full_like(w, value))

    def __call__(self, w, g, rate):
        self.n += 1
        return w + getattr(self, f"_{self.settings.rule.lower()}")(
            w, g, rate, **self.settings.options
        )

    def _sgd(self, w, g, rate, momentum, nesterov):
        if not momentum:
            return -rate * g
        velocity = self.state["velocity"] = momentum * self._kept("velocity", w) - rate * g
        return momentum * velocity - rate * g if nesterov else velocity

    def _moments(self, w, g, beta_1, beta_2):
        self.state["m"] = beta_1 * self._kept("m", w) + (1 - beta_1) * g
        self.state["v"] = beta_2 * self._kept("v", w) + (1 - beta_2) * g * g
        return self.state["m"], self.state["v"]

    def _adam(self, w, g, rate, beta_1, beta_2, epsilon, amsgrad=False, weight_decay=None):
        m, v = self._moments(w, g, beta_1, beta_2)
        if amsgrad:
            v = self.state["largest v"] = np.maximum(self._kept("largest v", w), v)
        rate = rate * np.sqrt(1 - beta_2**self.n) / (1 - beta_1**self.n)
        return -rate * m / (np.sqrt(v) + epsilon)

    _adamw = _adam

    def _nadam(self, w, g, rate, beta_1, beta_2, epsilon):
        m, v = self._moments(w, g, beta_1, beta_2)
        now, next_ = (beta_1 * (1 - 0.5 * 0.96**n) for n in (self.n, self.n + 1))
        self._product *= now
        m = next_ * m / (1 - self._product * next_) + (1 - now) * g / (1 - self._product)
        return -rate * m / (np.sqrt(v / (1 - beta_2**self.n)) + epsilon)

    def _adamax(self, w, g, rate, beta_1, beta_2, epsilon):
        m = self.state["m"] = beta_1 * self._kept("m", w) + (1 - beta_1) * g
        u = self.state["u"] = np.maximum(beta_2 * self._kept("u", w), np.abs(g))
        return -rate / (1 - beta_1**self.n) * m / (u + epsilon)

    def _rmsprop(self, w, g, rate, rho, momentum, centered, epsilon):
        v = self.state["v"] = rho * self._kept("v", w) + (1 - rho) * g * g
        if centered:
            mean = self.state["mean"] = rho * self._kept("mean", w) + (1 - rho) * g
            v = v - mean * mean
        change = rate * g / np.sqrt(v + epsilon)
        if momentum:
            change = self.state["momentum"] = momentum * self._kept("momentum", w) + change
        return -change

    def _adagrad(self, w, g, rate, initial_accumulator_value, epsilon):
        total = self._kept("sum", w, initial_accumulator_value) + g * g
        self.state["sum"] = total
        return -rate * g / np.sqrt(total + epsilon)

    def _adadelta(self, w, g, rate, rho, epsilon):
        v = self.state["v"] = rho * self._kept("v", w) + (1 - rho) * g * g
        before = self._kept("changes", w)
        change = -np.sqrt(before + epsilon) / np.sqrt(v + epsilon) * g
        self.state["changes"] = rho * before + (1 - rho) * change * change
        return rate * change


def norm(gradients):
    return np.sqrt(sum(np.sum(g * g) for g in gradients))


def clipped(settings, gradients, joint=None):
    """Gradients as an optimizer uses them; `joint`: the norm for global_clipnorm, or their own."""
    clips = settings.common
    if "clipnorm" in clips:
        return [g * min(1.0, clips["clipnorm"] / max(norm([g]), 1e-300)) for g in gradients]
    if "clipvalue" in clips:
        return [np.clip(g, -clips["clipvalue"], clips["clipvalue"]) for g in gradients]
    if "global_clipnorm" in clips:
        joint = norm(gradients) if joint is None else joint
        return [g * min(1.0, clips["global_clipnorm"] / max(joint, 1e-300)) for g in gradients]
    return gradients
