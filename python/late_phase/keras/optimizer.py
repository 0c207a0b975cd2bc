"""Algorithm 1 around any two Keras optimizers."""

import types
import warnings

import keras
import numpy as np
import tensorflow as tf

import late_phase
from late_phase.keras import private
from late_phase.keras.fused_updates import FusedBase, FusedMembers, FusedRule
from late_phase.keras.member_gradients import member_row, require_one_member
from late_phase.keras.members import MemberLayer, check_members, register
from late_phase.keras.wrapped_updates import WrappedBase, WrappedMembers


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
    its first step, and the model with `training=True`: gradients that are not of the current member alone are refused.
    `learning_rate`, a number or a schedule, is that of the base weights, and is counted in minibatches.

    Example:

    >>> import keras, numpy as np, late_phase.keras
    >>> model = keras.Sequential([keras.Input((8,)), late_phase.keras.Dense(4, members=3)])
    >>> optimizer = late_phase.keras.LatePhaseOptimizer(keras.optimizers.Adam(1e-3), members=3, start=2, sigma=0.1)
    >>> model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> chosen = []
    >>> for step in range(6):
    ...     chosen.append(int(optimizer.member))
    ...     _ = model.train_on_batch(np.ones((5, 8)), np.arange(5) % 4)
    >>> chosen
    [0, 0, 0, 1, 2, 0]

    Args:
      base: a Keras optimizer for the base weights. It may not be built, and belongs to this one from then on.
      member: a Keras optimizer for the members; None: one like `base`, whose learning rate follows that of `base`.
      members: K. With 1, training is that of the wrapped optimizers.
      start: T0, the step (minibatch) at which the members are spawned.
      sigma: the noise at `start`, in units of a weight array's root mean square.
      base_scale: γ, the factor of the base weights' summed gradients: 1, or 1 / members for their mean.
      seed: of the noise.
      name: of the optimizer.
      **kwargs: refused, because options of an optimizer belong to `base` and `member`.

    Raises:
      ValueError: an argument is out of its range, or `base` or `member` is an optimizer that has trained, or with `use_ema` or
        `gradient_accumulation_steps`.
    """

    def __init__(self, base, member=None, members=1, start=0, sigma=0.0, base_scale=1.0, seed=0, name="late_phase", **kwargs):
        if kwargs:
            raise ValueError(f"Options of an optimizer belong to `base` and `member`. Received: {', '.join(kwargs)}")
        for argument, optimizer in (("base", base), ("member", member)):
            _check(argument, optimizer, isinstance(optimizer, keras.optimizers.Optimizer) or (argument, optimizer) == ("member", None),
                   "a Keras optimizer")
            _check(argument, optimizer, not isinstance(optimizer, LatePhaseOptimizer), "a plain Keras optimizer")
            for option in ("use_ema", "gradient_accumulation_steps"):  # averages and sums of a kind that members would confuse
                if optimizer is not None and getattr(optimizer, option):
                    raise ValueError(f"`{argument}` must be without `{option}`. Received: {optimizer.name}, {option}={getattr(optimizer, option)!r}")
            if optimizer is not None and optimizer.built:
                raise ValueError(f"`{argument}` must be an optimizer that has not trained yet. Received: {optimizer.name}, which has")
        _check("member", member, member is None or member is not base, "an optimizer of its own")
        rate = private.learning_rate_of(base)
        rate = rate if callable(rate) else float(rate.numpy())
        with tf.device("CPU:0"):  # where the updates read counts and rates, which on a GPU would be waited for in every step
            super().__init__(learning_rate=rate, name=name)
            # int32 []: the member of the coming minibatch.
            self.member = keras.Variable(0, dtype="int32", trainable=False, name="member", aggregation="only_first_replica")
        self._members = check_members(members)
        self._start = _check("start", start, isinstance(start, int) and start >= 0, "an integer of at least 0")
        self.sigma = _check("sigma", sigma, 0 <= sigma < np.inf, "at least 0")
        self.base_scale = _check("base_scale", base_scale, 0 < base_scale <= 1, "in (0, 1]")
        self.seed = seed
        self._spawn_is_due = False
        self._follows = member is None
        if member is None:
            member = base.__class__.from_config(base.get_config())
        # In a namespace, because Keras would count what is in attributes, and in lists of them, among this optimizer's own state.
        self._parts = types.SimpleNamespace(base=base, member=member, member_rate=private.learning_rate_of(member))
        # Their own counts are of updates; learning rates follow minibatches.
        self._parts.base.learning_rate = _RateNow(lambda: self.learning_rate)
        if self._follows:
            self._parts.member.learning_rate = _RateNow(lambda: self.learning_rate)
        elif callable(self._parts.member_rate):
            self._parts.member.learning_rate = _RateNow(lambda: self._parts.member_rate(self.iterations))

    members = property(lambda self: self._members, doc="K, how many members there are.")
    start = property(lambda self: self._start, doc="T0, which is fixed: the state of the members depends on it.")

    def attach(self, model):
        """Lets the late-phase layers of `model` use the member that this optimizer chooses.

        Args:
          model: whose layers. `model.compile` and `build` lead here by themselves.
        """
        for layer in private.flatten_layers(model):
            if isinstance(layer, MemberLayer):
                layer.attach(self)
        if self.members > 1 and self.start == 0 and model.built:
            self.build(model.trainable_variables)  # before the first minibatch, which is a member's

    def build(self, variables):
        if self.built:
            return
        with tf.init_scope(), private.strategy_of(self).scope():  # also when the first training step is being traced
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
        parts = self._parts
        parts.variables = variables
        parts.late_variables, parts.base_variables = late, [v for v in variables if not hasattr(v, "late_phase_members")]
        parts.dtypes = {tf.as_dtype(v.dtype) for v in variables}
        if not self._follows and isinstance(parts.member_rate, keras.Variable):
            private.track(self, parts.member_rate)
        base_rule, member_rule = FusedRule.of(parts.base, parts.base_variables), FusedRule.of(parts.member, late)
        # A single member needs no second optimizer; one for all weights also clips their joint norm.
        self._joint = self.members == 1 and self._follows and not (base_rule and member_rule)
        if self._joint:
            parts.member_updates = WrappedMembers(self, parts.base, late, self.members, parts.base_variables)
            return
        if base_rule:
            parts.base_updates = FusedBase(self, base_rule, parts.base_variables)
        else:
            parts.base_updates = WrappedBase(self, parts.base, parts.base_variables, self.members)
        if member_rule:
            parts.member_updates = FusedMembers(self, member_rule, late, self.members)
        else:
            parts.member_updates = WrappedMembers(self, parts.member, late, self.members)
        self._spawn_is_due = self.members > 1 and self.start == 0
        self.spawn_if_due()

    def spawn_if_due(self):
        """Spawns the members of start=0, once their weights have values: those made while a step is traced get them after it.

        Layers call this before each minibatch.
        """
        if not self._spawn_is_due:
            return
        strategy = private.strategy_of(self)
        with tf.init_scope(), strategy.scope():
            if all(variable.value.is_initialized() for variable in self._parts.late_variables):
                self._spawn_is_due = False
                self._spawn(strategy)

    def apply(self, grads, trainable_variables=None):
        if not self.built and trainable_variables is None:
            raise ValueError("The optimizer must be built, or `trainable_variables` given.")
        variables = self._parts.variables if trainable_variables is None else list(trainable_variables)
        member = tf.convert_to_tensor(self.member.value)
        late = [(v, g) for v, g in zip(variables, grads) if g is not None and getattr(v, "late_phase_members", 1) > 1]
        one_member = require_one_member(late, member)
        if not self.built:
            self._require_attached(variables)
            self.build(variables)
        private.require_known(self, variables)
        gradients = {private.variable_key(self, v): g for v, g in zip(variables, grads) if g is not None}
        base_variables = [v for v in self._parts.base_variables if private.variable_key(self, v) in gradients]
        late_variables = [v for v in self._parts.late_variables if private.variable_key(self, v) in gradients]
        base_gradients = [gradients[private.variable_key(self, v)] for v in base_variables]
        if self.members > 1:
            self._require_dense(base_variables, base_gradients)
        late_gradients = [member_row(gradients[private.variable_key(self, v)], member) for v in late_variables]
        if one_member is not None:
            with tf.control_dependencies([one_member]):
                base_gradients, late_gradients = tf.nest.map_structure(tf.identity, [base_gradients, late_gradients])
        if private.strategy_of(self).num_replicas_in_sync > 1:
            replicas = tf.distribute.get_replica_context()
            base_gradients, late_gradients = replicas.all_reduce(tf.distribute.ReduceOp.SUM, [base_gradients, late_gradients])

        def update(strategy, base_gradients, late_gradients):
            self._update(strategy, list(zip(base_variables, base_gradients)), list(zip(late_variables, late_gradients)))

        private.merge_call(update, private.strategy_of(self), base_gradients, late_gradients)

    def _require_attached(self, variables):
        """Gradients of a member are of no use if the layers chose another one."""
        for variable in variables:
            if self.members > 1 and hasattr(variable, "late_phase_layer") and variable.late_phase_layer()._optimizer() is not self:
                raise ValueError(
                    "The layers must know the optimizer before the first training step: compile the model with it, or call "
                    f"optimizer.build(model.trainable_variables). Received: {variable.path}, whose layer does not"
                )
        if self.members > 1 and self.start == 0 and self.sigma > 0 and tf.executing_eagerly():
            raise ValueError(
                "With start=0 the first minibatch is a member's already: the model must be built before a training that is run eagerly; call "
                "it once, or give it an Input. Received: start=0 and a model without weights before the first minibatch"
            )

    @staticmethod
    def _require_dense(variables, gradients):
        for variable, gradient in zip(variables, gradients):
            if isinstance(gradient, tf.IndexedSlices):
                raise ValueError(
                    "Gradients of base weights must be dense, because they are summed over the members; in place of an Embedding, "
                    "a Dense layer without bias on one-hot inputs has such. "
                    f"Received: a sparse gradient of {variable.path}"
                )

    def _update(self, strategy, base, late):
        """One step with (variable, gradient) pairs, seen from all replicas at once, whose reduced gradients are alike."""
        now = self._now()
        if self._joint:
            self._parts.member_updates.apply(strategy, late, now, base)
        else:
            self._parts.member_updates.apply(strategy, late, now)
            self._parts.base_updates.apply(strategy, base, now)
        self._advance(strategy)

    def _now(self):
        """What the updates of a step depend on."""
        parts, late = self._parts, self._is_late()
        rate = parts.member_rate(self.iterations) if callable(parts.member_rate) else parts.member_rate
        base_scale = tf.constant(1.0, tf.float64) if late is None else tf.where(late, tf.constant(self.base_scale, tf.float64), 1.0)
        of_type = {}
        for dtype in parts.dtypes:
            base_rate = tf.cast(self.learning_rate, dtype)
            member_rate = base_rate if self._follows else tf.cast(rate, dtype)
            of_type[dtype] = types.SimpleNamespace(base_rate=base_rate, member_rate=member_rate, base_scale=tf.cast(base_scale, dtype))
        return types.SimpleNamespace(
            member=tf.convert_to_tensor(self.member.value),
            cycle=tf.constant(1) if late is None else tf.where(late, self.members, 1),  # minibatches per update of the base weights
            is_late=late,
            rows=self.rows(),
            of_type=of_type,
        )

    def rows(self):
        """int32 [n]: the rows that the current minibatch writes: its member's; before `start` all, which are one member then."""
        member = tf.convert_to_tensor(self.member.value)
        late = self._is_late()
        if late is None:
            return member[tf.newaxis]
        return tf.range(member, tf.where(late, member + 1, self.members))

    def _is_late(self):
        """bool []: whether there are members yet; None if that is no question."""
        if self.members == 1:
            return None
        return tf.convert_to_tensor(self.iterations.value) >= tf.cast(self.start, self.iterations.dtype)

    def _advance(self, strategy):
        self.iterations.assign_add(1)
        if self.members == 1:
            return
        since = tf.cast(self.iterations.value, tf.int64) - self.start
        self.member.assign(tf.cast(tf.where(since >= 0, since % self.members, 0), tf.int32))
        if self.start > 0:
            tf.cond(tf.equal(since, 0), lambda: self._spawn(strategy), lambda: None)

    def _spawn(self, strategy):
        """Row k of every late-phase weight <- row 0 + sigma RMS(row 0) noise; the members' states start afresh."""

        def spawn(variable, number):
            late_phase.raw_ops.late_phase_spawn(
                var=variable.handle, sigma=tf.constant(self.sigma, tf.float64), seed=tf.constant([self.seed, number], tf.int64)
            )

        for number, variable in enumerate(self._parts.late_variables):
            strategy.extended.update(variable.value, spawn, args=(number,), group=False)
        self._parts.member_updates.restart(strategy)

    def finalize_variable_values(self, var_list):
        """Called at the end of `fit`: says so if it was over before there were members."""
        super().finalize_variable_values(var_list)
        steps = int(self.iterations.numpy())
        if self.members > 1 and steps < self.start:
            warnings.warn(
                f"`start` should be a step of the training, or there are no members. Received: start={self.start}, training ended after {steps} steps",
                stacklevel=3,
            )

    def get_config(self):
        def plain(optimizer, rate):
            config = keras.optimizers.serialize(optimizer)
            schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
            config["config"]["learning_rate"] = keras.optimizers.schedules.serialize(rate) if schedule else float(rate.numpy())
            return config

        return {
            "name": self.name,
            "base": plain(self._parts.base, private.learning_rate_of(self)),
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
