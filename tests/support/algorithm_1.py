"""Algorithm 1 as a plain loop over arrays, for tests: one weight at a time, nothing fused or
sparse.
"""

import numpy as np
import tensorflow as tf

# Numbers that a float holds exactly: Keras rounds some hyper-parameters to float before they enter
# a float64 graph.
RATE, MOMENTUM, BETA1, BETA2, EPSILON = 0.125, 0.875, 0.875, 1 - 2.0**-10, 2.0**-14


class Rule:
    """The update rules as Keras documents them, on one array."""

    def __init__(self, name):
        self.name, self.n, self.a, self.b = name, 0, 0.0, 0.0

    def __call__(self, w, g, scale=1.0):
        """`scale` is of the learning rate."""
        rate = scale * RATE
        self.n += 1
        if self.name == "sgd":
            return w - rate * g
        if self.name == "adam":
            self.a, self.b = BETA1 * self.a + (1 - BETA1) * g, BETA2 * self.b + (1 - BETA2) * g * g
            return w - rate * np.sqrt(1 - BETA2**self.n) / (1 - BETA1**self.n) * self.a / (
                np.sqrt(self.b) + EPSILON
            )
        self.a = MOMENTUM * self.a - rate * g  # the velocity, which contains the learning rate
        return w + (MOMENTUM * self.a - rate * g if self.name == "nesterov" else self.a)


def train(
    loss,
    base,
    rows,
    batches,
    members,
    start,
    base_rule,
    member_rule,
    base_scale=1.0,
    base_rate_scale=1.0,
):
    """Without noise.

    Args:
      loss: of (base weights, a member's weights, batch): tensors, to a scalar.
      base: arrays.
      rows: arrays of one member, with which all of them start.
      batches: one for each step.
      members, start, base_scale, base_rate_scale: as in LatePhaseOptimizer.
      base_rule, member_rule: names of rules.

    Returns:
      The base weights, and [members][weights] of the members.
    """
    base = [np.float64(w) for w in base]
    rows = [[np.float64(w) for w in rows] for _ in range(members)]

    def new_rules():
        return [[Rule(member_rule) for _ in rows[0]] for _ in range(members)]

    base_rules, member_rules = [Rule(base_rule) for _ in base], new_rules()
    sums = [0.0 for _ in base]
    for t, batch in enumerate(batches):
        if t == start:
            rows, member_rules = [list(rows[0]) for _ in range(members)], new_rules()
        late = t >= start
        k = (t - start) % members if late else 0
        weights = [tf.constant(w) for w in base], [tf.constant(w) for w in rows[k]]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(*weights, batch)
        of_base, of_row = (
            [tf.convert_to_tensor(g).numpy() for g in gs] for gs in tape.gradient(value, weights)
        )
        rows[k] = [rule(w, g) for rule, w, g in zip(member_rules[k], rows[k], of_row)]
        sums = [total + g for total, g in zip(sums, of_base)]
        if not late or k == members - 1:
            scale, of_rate = (base_scale, base_rate_scale) if late else (1, 1)
            base = [rule(w, scale * g, of_rate) for rule, w, g in zip(base_rules, base, sums)]
            sums = [0.0 for _ in base]
    return base, rows if len(batches) > start else [rows[0]] * members
