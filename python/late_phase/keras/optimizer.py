"""Algorithm 1 around any two Keras optimizers."""

import types

import keras
import numpy as np
import tensorflow as tf

import late_phase
from late_phase.keras.members import MemberLayer, check_members, register


def _check(name, value, good, expected):
    if not good:
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")
    return value


class _RateNow(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a wrapped optimizer, whose own count is of updates, not of minibatches."""

    def __init__(self, rate):
        self._rate = rate

    def __call__(self, step):
        return self._rate()

    def get_config(self):
        return {}


@register
class LatePhaseOptimizer(keras.optimizers.Optimizer):
    """Trains late-phase weights: each minibatch one member, the base weights once per cycle of all members.

    Before step `start` there is one member, and every minibatch trains it and the base weights, as the wrapped optimizers
    do alone. At `start` the members are spawned: each becomes the trained one plus noise. From then on minibatch t trains
    member (t - start) mod members; the base weights' gradients are summed over the cycle, scaled by `base_scale`, and applied
    at its end. Moments and counts of a member's updates are its own and start afresh at `start`.

    Weights of layers of `late_phase.keras` are late-phase weights, all others are base weights. `model.compile` is enough for
    the layers to follow the optimizer; a training loop of your own calls `optimizer.build(model.trainable_variables)` before
    its first step.

    Args:
      base: a Keras optimizer for the base weights. It may not be built, and belongs to this one from then on.
      member: a Keras optimizer for the members; None: one like `base`, whose learning rate follows that of `base`.
      members: K. With 1, training is that of the wrapped optimizers.
      start: T0, the step (minibatch) at which the members are spawned.
      sigma: the noise at `start`, in units of a weight array's root mean square.
      base_scale: γ, the factor of the base weights' summed gradients: 1, or 1 / members for their mean.
      seed: of the noise.
      name: of the optimizer.

    `learning_rate`, a number or a schedule, is that of the base weights, and is counted in minibatches.
    """

    def __init__(self, base, member=None, members=1, start=0, sigma=0.0, base_scale=1.0, seed=0, name="late_phase", **kwargs):
        if kwargs:
            raise ValueError(f"Options of an optimizer belong to `base` and `member`. Received: {', '.join(kwargs)}")
        for argument, optimizer in (("base", base), ("member", member)):
            _check(argument, optimizer, isinstance(optimizer, keras.optimizers.Optimizer) or (argument, optimizer) == ("member", None),
                   "a Keras optimizer")
            _check(argument, optimizer, not isinstance(optimizer, LatePhaseOptimizer), "a plain Keras optimizer")
            if optimizer is not None and optimizer.built:
                raise ValueError(f"`{argument}` must be an optimizer that has not trained yet. Received: {optimizer.name}, which has")
        _check("member", member, member is None or member is not base, "an optimizer of its own")
        super().__init__(learning_rate=base._learning_rate if callable(base._learning_rate) else float(base.learning_rate), name=name)
        self._members = check_members(members)
        self._start = _check("start", start, isinstance(start, int) and start >= 0, "an integer of at least 0")
        self.sigma = _check("sigma", sigma, 0 <= sigma < np.inf, "at least 0")
        self.base_scale = _check("base_scale", base_scale, 0 < base_scale <= 1, "in (0, 1]")
        self.seed = seed
        self._follows = member is None
        if member is None:
            member = base.__class__.from_config(base.get_config())
        # In a namespace, because Keras would count what is in attributes, and in lists of them, among this optimizer's own state.
        self._parts = types.SimpleNamespace(base=base, member=member, member_rate=member._learning_rate)
        # int32 []: the member of the coming minibatch.
        self.member = keras.Variable(0, dtype="int32", trainable=False, name="member", aggregation="only_first_replica")
        # Their own counts are of updates; learning rates follow minibatches.
        self._parts.base.learning_rate = _RateNow(lambda: self.learning_rate)
        if self._follows:
            self._parts.member.learning_rate = _RateNow(lambda: self.learning_rate)
        elif callable(self._parts.member_rate):
            self._parts.member.learning_rate = _RateNow(lambda: self._parts.member_rate(self._iterations))

    members = property(lambda self: self._members, doc="K.")
    start = property(lambda self: self._start, doc="T0, which is fixed: the state of the members depends on it.")

    def attach(self, model):
        """Lets the late-phase layers of `model` use the member that this optimizer chooses."""
        for layer in model._flatten_layers():
            if isinstance(layer, MemberLayer):
                layer.attach(self)

    def build(self, variables):
        if self.built:
            return
        with tf.init_scope():  # also when the first training step is being traced
            self._build(list(variables))

    def _build(self, variables):
        late = [v for v in variables if hasattr(v, "late_phase_members")]
        for variable in late:
            if variable.late_phase_members != self.members:
                raise ValueError(
                    f"`members` must be the same in the optimizer and in all layers. Received: members={self.members} in the optimizer, "
                    f"members={variable.late_phase_members} in {variable.path}"
                )
        if self.members > 1 and not late:
            raise ValueError(
                "There must be a weight with members to train: use layers of late_phase.keras in the model, or members=1. "
                f"Received: {len(variables)} variables without members"
            )
        super().build(variables)
        for variable in late:
            variable.late_phase_layer().attach(self)
        self._parts.late_variables = late
        self._parts.base_variables = [v for v in variables if not hasattr(v, "late_phase_members")]
        # The members' optimizer works on one row of everything, to which a member's rows are brought and taken back.
        self._parts.rows = [keras.Variable(np.zeros(v.shape[1:]), dtype=v.dtype, trainable=True, name=v.name) for v in late]
        # A single member needs no second optimizer; one for all weights also clips their joint norm.
        self._joint = self.members == 1 and self._follows
        of_base = self._parts.base_variables + (self._parts.rows if self._joint else [])
        if of_base:
            self._parts.base.build(of_base)
        for variable in self._parts.base.variables:
            self._track_variable(variable)
        self._parts.sums = []
        if self.members > 1:
            self._parts.sums = [self.add_variable_from_reference(v, name="sum") for v in self._parts.base_variables]
        self._parts.row_state, self._parts.member_state, self._parts.fresh_state = [], [], []
        if late and not self._joint:
            self._parts.member.build(self._parts.rows)
            for variable in self._parts.member.variables:
                if variable is self._parts.member_rate:
                    self._track_variable(variable)
                    continue
                fresh = variable.numpy()
                self._parts.row_state.append(variable)
                self._parts.fresh_state.append(fresh)
                stack = keras.Variable(np.broadcast_to(fresh, (self.members, *fresh.shape)), dtype=variable.dtype, trainable=False,
                                       name=f"members_{variable.name}")
                self._track_variable(stack)
                self._parts.member_state.append(stack)
        if self.members > 1 and self.start == 0:
            self._spawn()

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            if trainable_variables is None:
                raise ValueError("The optimizer must be built, or `trainable_variables` given.")
            self._require_attached(trainable_variables)
            self.build(trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        self._check_variables_are_known(variables)
        gradients = {self._var_key(v): g for v, g in zip(variables, grads) if g is not None}
        base = [(v, gradients[self._var_key(v)]) for v in self._parts.base_variables if self._var_key(v) in gradients]
        late = [(v, row) for v, row in zip(self._parts.late_variables, self._parts.rows) if self._var_key(v) in gradients]
        # Bring the member's rows, train them, take them back.
        member = tf.convert_to_tensor(self.member.value)
        brought = [*late, *zip(self._parts.member_state, self._parts.row_state)]
        for stack, row in brought:
            row.assign(tf.gather(stack.value, member))
        rows = [(row, self._row_of(gradients[self._var_key(v)], member)) for v, row in late]
        if self._joint:
            self._apply(self._parts.base, base + rows)
        else:
            self._apply(self._parts.member, rows)
            self._train_base(base)
        for stack, row in brought:
            self.write_row(stack, row.value)
        self._advance()

    def _require_attached(self, variables):
        """Gradients of a member are of no use if the layers chose another one."""
        for variable in variables:
            if self.members > 1 and hasattr(variable, "late_phase_layer") and variable.late_phase_layer()._optimizer() is not self:
                raise ValueError(
                    "The layers must know the optimizer before the first training step: compile the model with it, or call "
                    f"optimizer.build(model.trainable_variables). Received: {variable.path}, whose layer does not"
                )

    @staticmethod
    def _apply(optimizer, pairs):
        if pairs:
            optimizer.apply([g for _, g in pairs], [v for v, _ in pairs])

    @staticmethod
    def _row_of(gradient, member):
        """Of a [K, ...] gradient, of which only one row is not zero."""
        if isinstance(gradient, tf.IndexedSlices):
            return tf.reduce_sum(gradient.values, axis=0)
        return tf.gather(gradient, member)

    def write_row(self, variable, row):
        """Writes the row of the current member; before `start` all rows, which are one member then."""
        handle, row = variable.value.handle, tf.convert_to_tensor(row)
        everywhere = tf.range(self.members)

        def one():
            tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=tf.convert_to_tensor(self.member.value), updates=row)

        def all_rows():
            tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=everywhere, updates=tf.repeat(row[tf.newaxis], self.members, axis=0))

        if self.members == 1:
            one()
        else:
            tf.cond(self._is_late(), one, all_rows)

    def _is_late(self):
        return tf.convert_to_tensor(self._iterations.value) >= tf.cast(self.start, self._iterations.dtype)

    def _train_base(self, given):
        """Of (variable, gradient) pairs: applied at the end of a cycle, else added up."""
        if self.members == 1:
            self._apply(self._parts.base, given)
            return
        for variable, gradient in given:
            if isinstance(gradient, tf.IndexedSlices):
                raise ValueError(
                    "Gradients of base weights must be dense, because they are summed over the members. "
                    f"Received: a sparse gradient of {variable.path}"
                )
        sums = {self._var_key(v): s for v, s in zip(self._parts.base_variables, self._parts.sums)}
        late = self._is_late()
        last = tf.logical_or(tf.logical_not(late), tf.equal(self.member.value, self.members - 1))
        scale = tf.where(late, tf.constant(self.base_scale, tf.float64), 1.0)

        def update():
            self._apply(self._parts.base, [(v, tf.cast(scale, g.dtype) * (sums[self._var_key(v)].value + g)) for v, g in given])
            for variable, _ in given:
                total = sums[self._var_key(variable)]
                total.assign(tf.zeros(total.shape, total.dtype))

        def accumulate():
            for variable, gradient in given:
                sums[self._var_key(variable)].assign_add(gradient)

        tf.cond(last, update, accumulate)

    def _advance(self):
        self._iterations.assign_add(1)
        if self.members == 1:
            return
        t = tf.cast(self._iterations.value, tf.int64)
        since = t - self.start
        self.member.assign(tf.cast(tf.where(since >= 0, since % self.members, 0), tf.int32))
        tf.cond(tf.equal(since, 0), self._spawn, lambda: None)

    def _spawn(self):
        """Row k of every late-phase weight <- row 0 + sigma RMS(row 0) noise; the members' states start afresh."""
        for i, variable in enumerate(self._parts.late_variables):
            late_phase.raw_ops.late_phase_spawn(
                var=variable.value.handle, sigma=tf.constant(self.sigma, tf.float64), seed=tf.constant([self.seed, i], tf.int64)
            )
        for stack, fresh in zip(self._parts.member_state, self._parts.fresh_state):
            stack.assign(tf.broadcast_to(tf.constant(fresh, stack.dtype), stack.shape))

    def get_config(self):
        def plain(optimizer, rate):
            config = keras.optimizers.serialize(optimizer)
            schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
            config["config"]["learning_rate"] = keras.optimizers.schedules.serialize(rate) if schedule else float(rate.numpy())
            return config

        return {
            "name": self.name,
            "base": plain(self._parts.base, self._learning_rate),
            "member": None if self._follows else plain(self._parts.member, self._parts.member_rate),
            "members": self.members,
            "start": self.start,
            "sigma": self.sigma,
            "base_scale": self.base_scale,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("base", "member"):
            if config[name] is not None:
                config[name] = keras.optimizers.deserialize(config[name], custom_objects)
        return cls(**config)
