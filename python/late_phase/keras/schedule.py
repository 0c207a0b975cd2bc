"""Where a training is in Algorithm 1: whether it has members yet, and whose turn it is."""

import keras
import tensorflow as tf

from late_phase.keras import private
from late_phase.keras.start import NEVER, check_start, step_of


def state(value, dtype, name):
    """A scalar of an optimizer's state."""
    return keras.Variable(
        value, dtype=dtype, trainable=False, name=name, aggregation="only_first_replica"
    )


class Schedule:
    """T0 and the current member, of an optimizer whose `iterations` count minibatches.

    Attributes:
      members: K.
      planned: what `start` was given as: a step, a percentage, an Epoch or None.
      member: int32 [], the member of the coming minibatch.
      step: int64 [], T0 once it is known; None if `planned` is a step, or there is one member.
    """

    def __init__(self, owner, members, start):
        self._owner, self.members, self.planned = owner, members, check_start(start)
        self.member, self.step = state(0, "int32", "member"), None
        private.track(owner, self.member)  # an attribute alone is not tracked inside of `compile`
        if members > 1 and not isinstance(self.planned, int):
            self.step = state(NEVER, "int64", "start")
            private.track(owner, self.step)

    def start(self):
        """T0 as an integer; before it is known, `planned`."""
        if self.step is None or int(self.step.numpy()) == NEVER:
            return self.planned
        return int(self.step.numpy())

    def starts_at_once(self):
        return self.members > 1 and self.planned == 0

    def plan(self, model):
        """Finds the step of a start that is a part or an epoch of the `fit` that is running."""
        if self.step is None or self.planned is None:
            return
        with tf.init_scope():
            # Each copy by itself, as this may be called by a replica.
            strategy = private.strategy_of(self._owner)
            copies = strategy.experimental_local_results(self.step.value)
            if int(copies[0].numpy()) == NEVER:
                history = getattr(model, "history", None)  # of `fit`
                step = step_of(self.planned, getattr(history, "params", None))
                for copy in copies:
                    copy.assign(step)

    def is_late(self):
        """bool []: whether there are members yet; None if that is no question."""
        if self.members == 1:
            return None
        return self._owner.in_this_step("is_late", lambda: self._since_start() >= 0)

    def from_start(self, value):
        """float64 []: the value from T0 on, 1 before."""
        late = self.is_late()
        if late is None or value == 1:
            return tf.constant(1.0, tf.float64)
        return tf.where(late, tf.constant(value, tf.float64), 1.0)

    def rows(self):
        """int32 [K]: the rows that a minibatch writes: its member's, K times; all before T0."""
        member, late = tf.convert_to_tensor(self.member.value), self.is_late()
        if late is None:
            return member[tf.newaxis]
        return tf.where(late, member, tf.range(self.members))

    def advance(self):
        """Chooses the next member, for several members, once a minibatch has been counted.

        Returns:
          bool []: whether it is time to spawn them.
        """
        since = self._since_start()
        self.member.assign(tf.cast(tf.maximum(since, 0) % self.members, tf.int32))
        return tf.equal(since, 0)

    def _since_start(self):
        """int64 []: minibatches since T0, which is beyond any step while it is not known."""
        start = tf.constant(self.planned, tf.int64) if self.step is None else self.step.value
        return tf.cast(self._owner.iterations.value, tf.int64) - start
