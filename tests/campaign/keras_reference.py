"""Algorithm 1 for a random program: NumPy in double precision, one array and one member at a time.

TensorFlow computes the gradients, by a tape on a plain Keras copy of the network into which the
weights of one member are put. When members start, whose turn it is, how gradients are clipped,
summed and applied, and what noise is, is written down here again from the paper and from
docs/keras.md.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.campaign.keras_rules import Rule, clipped, norm
from tests.campaign.keras_weights import batch_norms
from tests.support import philox

LOSSES = {
    "mse": keras.losses.MeanSquaredError(),
    "classes": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}


class Wrong(Exception):
    """What the library did is not what the reference says."""


def loss_of(network, outputs, y):
    """The sum of the heads' losses."""
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return tf.add_n([LOSSES[name](one, out) for name, one, out in zip(network.losses, y, outputs)])


class Reference:
    """A training with members.

    Attributes:
      weights: Weights, those with noise in the order in which they are spawned.
      t: minibatches so far, by the count of the optimizer.
      start: T0, or None while it is not known.
      rate: what the learning rate of the base weights was set to, or None.
    """

    def __init__(self, network, plain, weights, settings):
        self.network, self.plain, self.weights = network, plain, weights
        self.settings, self.K = settings, settings.members
        for layer in batch_norms(plain):
            layer.momentum = 0  # a training call leaves the statistics of its minibatch there
        self.compile()

    def compile(self):
        """A new optimizer."""
        self.t, self.rate, self.start = 0, None, None
        planned = self.settings.start
        if isinstance(planned, int):
            self.start = planned
        self.unequal = True
        self.sums = {}
        self._new_base_rules()
        self._new_member_rules()
        if self.K > 1 and self.start == 0:
            if not any((w.value != w.value[:1]).any() for w in self.late()):
                return True  # the members are spawned at once
        return False

    def _new_base_rules(self):
        self.base_rules = {id(w): Rule(self.settings.base) for w in self.weights}

    def _new_member_rules(self):
        member = self.settings.member or self.settings.base
        self.member_rules = {(id(w), k): Rule(member) for w in self.weights for k in range(self.K)}

    def late(self):
        return [w for w in self.weights if w.late and w.kind == "trained"]

    def base(self):
        return [w for w in self.weights if not w.late and w.kind == "trained"]

    def is_late(self):
        return self.K > 1 and self.start is not None and self.t >= self.start

    def member(self):
        """Whose turn it is."""
        return (self.t - self.start) % self.K if self.is_late() else 0

    def rows_assigned(self):
        """Rows have come from elsewhere."""
        self.unequal = True

    # The network.

    def load(self, k):
        """Puts the weights of one member, or the mean, into the plain model."""
        values = {w.place: w.row(k) for w in self.weights if w.place is not None}
        for target, u, v in self._factors():
            values[target] = values[target] * u.row(k)[:, None] * v.row(k)
        for place, variable in enumerate(self.plain.weights):
            variable.assign(values[place])

    def _factors(self):
        """(place of the kernel, u, v)"""
        found = {}
        for w in self.weights:
            if w.target is not None:
                found.setdefault(w.target, {})[w.name] = w
        return [(target, pair["u"], pair["v"]) for target, pair in found.items()]

    def outputs(self, x, k=None):
        self.load(k)
        outputs = self.plain(x, training=False)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [np.asarray(one) for one in outputs]

    def reestimated_outputs(self, x):
        """With the mean of the members, and statistics of these inputs."""
        self.load(None)
        self.plain(x, training=True)
        return [np.asarray(one) for one in keras.tree.flatten(self.plain(x, training=False))]

    def affine_outputs(self, x):
        """With the mean of the members' maps in place of each BatchNormalization with members.

        None if a layer has no scale or no offset to hold it.
        """
        self.load(None)
        for layer in batch_norms(self.plain):
            own = {id(v): v.name for v in layer.weights}
            rows = {
                w.name: w.value
                for w in self.weights
                if w.place is not None and w.late and id(self.plain.weights[w.place]) in own
            }
            if "moving_mean" not in rows:
                continue
            if len(rows) < 4:
                return None
            slopes = rows["gamma"] / np.sqrt(rows["moving_variance"] + layer.epsilon)
            offset = np.mean(rows["beta"] - rows["moving_mean"] * slopes, axis=0)
            mean, variance = (rows[f"moving_{name}"].mean(axis=0) for name in ("mean", "variance"))
            layer.gamma.assign(slopes.mean(axis=0) * np.sqrt(variance + layer.epsilon))
            layer.beta.assign(offset + slopes.mean(axis=0) * mean)
        return [np.asarray(one) for one in keras.tree.flatten(self.plain(x, training=False))]

    def gradients(self, x, y, k):
        """id(weight) -> gradient of a minibatch's loss for a member."""
        self.load(k)
        with tf.GradientTape() as tape:
            loss = loss_of(self.network, self.plain(x, training=True), y)
        variables = self.plain.trainable_weights
        found = {
            id(v): np.asarray(tf.convert_to_tensor(g))
            for v, g in zip(variables, tape.gradient(loss, [v.value for v in variables]))
        }
        of_place = {
            place: found[id(v)] for place, v in enumerate(self.plain.weights) if id(v) in found
        }
        scaled = {target: (u, v) for target, u, v in self._factors()}
        gradients = {}
        for w in self.weights:
            if w.kind != "trained" or w.place is None:
                continue
            g = of_place[w.place]
            if w.place in scaled:  # W_k = (u v^T) * W
                u, v = scaled[w.place]
                product = g * w.row(k)
                axes = tuple(range(product.ndim - 2))
                gradients[id(u)] = (product * v.row(k)).sum(axis=(*axes, -1))
                gradients[id(v)] = (product * u.row(k)[:, None]).sum(axis=(*axes, -2))
                g = g * u.row(k)[:, None] * v.row(k)
            gradients[id(w)] = g + 2 * w.l2 * w.row(k)
        return gradients

    # Training.

    def step(self, x, y):
        """One minibatch; returns whether the members are spawned after it."""
        self._join_rows()
        k, late = self.member(), self.is_late()
        gradients = self.gradients(x, y, k)
        self._move_statistics(k, late)
        joint = self._joint_norm(gradients, late)
        self._update_members(gradients, k, late, joint)
        self._update_base(gradients, k, late, joint)
        self.t += 1
        self.unequal = False
        if self.K > 1 and self.start is not None and self.t == self.start:
            self._new_member_rules()
            return True
        return False

    def _join_rows(self):
        """Before the start there is one member."""
        if self.K == 1 or self.start == 0 or self.is_late() or not self.unequal:
            return
        self.join()

    def join(self):
        for w in self.weights:
            if w.late:
                w.value = np.stack([w.value.mean(axis=0)] * self.K)

    def _joint_norm(self, gradients, late):
        """The norm for global_clipnorm where one optimizer is given: before the start, of all."""
        if self.settings.member is not None or (late and self.K > 1):
            return None
        return norm(list(gradients.values()))

    def _move_statistics(self, k, late):
        for w in self.weights:
            if w.kind != "statistic":
                continue
            batch = np.asarray(self.plain.weights[w.place])
            if not w.late:
                w.value = w.momentum * w.value + (1 - w.momentum) * batch
            elif late:
                momentum = w.momentum**self.K
                w.value[k] = momentum * w.value[k] + (1 - momentum) * batch
            else:
                w.value[:] = w.momentum * w.value[0] + (1 - w.momentum) * batch

    def rates(self):
        """The learning rates of this minibatch: of the base weights, and of the members."""
        base = self.settings.base.rate_at(self.t) if self.rate is None else self.rate
        member = self.settings.member
        of_member = base if member is None else member.rate_at(self.t)
        return base * (self.settings.base_rate_scale if self.is_late() else 1.0), of_member

    def _update_members(self, gradients, k, late, joint):
        settings, weights = self.settings.member or self.settings.base, self.late()
        clipped_ones = clipped(settings, [gradients[id(w)] for w in weights], joint)
        _, rate = self.rates()
        for w, g in zip(weights, clipped_ones):
            row = w.value[k]
            row = row - rate * settings.decay_of(w.name) * row
            row = w.constrained(self.member_rules[id(w), k](row, g, rate))
            if late or self.K == 1:
                w.value[k] = row
            else:
                w.value[:] = row

    def _update_base(self, gradients, k, late, joint):
        weights, settings = self.base(), self.settings.base
        for w in weights:
            self.sums[id(w)] = self.sums.get(id(w), 0.0) + gradients[id(w)]
        if late and k != self.K - 1:
            return
        scale = self.settings.base_scale if late else 1.0
        decay = 1.0
        if late:
            decay = self.K * scale if settings.rule == "SGD" else np.sqrt(self.K)
        sums = [scale * self.sums[id(w)] for w in weights]
        rate, _ = self.rates()
        for w, g in zip(weights, clipped(settings, sums, joint)):
            value = w.value - rate * decay * settings.decay_of(w.name) * w.value
            w.value = w.constrained(self.base_rules[id(w)](value, g, rate))
        self.sums = {}

    # The start.

    def spawned_rows(self):
        """id(weight) -> [K, ...] and how far off they may be, as noise is computed in float."""
        rows = {}
        for number, w in enumerate(self.late()):
            first, sigma = w.value[0], self.settings.sigma
            size = sigma * np.sqrt(np.mean(first * first))
            noise = [
                philox.normals(self.settings.seed, number, k, first.size).reshape(first.shape)
                for k in range(self.K)
            ]
            rows[id(w)] = np.stack([first + size * one for one in noise]), 2e-6 * size
        return rows

    def spawn(self, actual, tolerance=1e-7):
        """The members start; `actual` has the library's rows, to go on with.

        They differ from these by the rounding of floats, which training would make larger, and
        relatively by `tolerance`.
        """
        for w in self.late():
            rows, allowed = self.spawned_rows()[id(w)]
            off = np.abs(actual[id(w)] - rows).max()
            if not off <= allowed + tolerance * np.abs(rows).max():
                raise Wrong(f"spawned, {w.path} is off by {off:.3g}")
        for w in self.late():
            w.value = actual[id(w)].copy()
        self._new_member_rules()

    def slots(self):
        """(name, array) of all that the optimizer keeps and that is known."""
        for w in self.base():
            if self.is_late() and id(w) in self.sums:
                yield f"the gradient sum of {w.path}", self.sums[id(w)]
            for name, state in self.base_rules[id(w)].state.items():
                yield f"{name} of {w.path}", state
        for w in self.late():
            rules = [self.member_rules[id(w), k] for k in range(self.K)]
            if not self.is_late():
                rules = rules[:1]
            for k, rule in enumerate(rules):
                for name, state in rule.state.items():
                    yield f"{name} of member {k} of {w.path}", state
