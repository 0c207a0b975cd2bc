"""Algorithm 1 around two Keras optimizers.

When it spawns, and whose turn it is, is in schedule.py; how weights are updated, in updates.py.
"""

import concurrent.futures
import functools
import numbers
import types
import warnings

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras import incoming, private
from late_phase.keras.inner_optimizers import InnerOptimizers
from late_phase.keras.member_gradients import member_row, require_one_member
from late_phase.keras.members import MemberLayer, check_members, mean_of_rows, register
from late_phase.keras.rows import make_equal, rows_differ, spawn
from late_phase.keras.schedule import Schedule, state
from late_phase.keras.start import is_integer
from late_phase.keras.updates import Updates


def _check(name, value, good, expected):
    if not good:
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")
    return value


def _check_number(name, value, is_good, expected):
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return _check(name, value, is_number and is_good(value), expected)


@register
class LatePhaseOptimizer(keras.optimizers.Optimizer):
    """Trains one member per minibatch, and the base weights once per cycle of all members.

    Before step `start` there is one member, and every minibatch trains it and the base weights, as
    the wrapped optimizers would on their own. At `start` the members are spawned: each becomes the
    trained one plus noise. From then on minibatch t trains member (t - start) mod members; the base
    weights' gradients are summed over the cycle, scaled by `base_scale`, and applied at its end.
    Each member has its own moments and update counts, which start afresh at `start`.

    Weights of layers of `late_phase.keras` are late-phase weights, all others are base weights.
    `model.compile` is enough for the layers to follow the optimizer; a training loop of your own
    calls `optimizer.build(model.trainable_variables)` before its first step, and calls the model
    with `training=True`: gradients that are not those of the current member alone are refused.
    `learning_rate`, a number, a schedule or a function, is that of the base weights, and counts
    minibatches.

    Members that differ when training begins, because the model was compiled again or weights were
    loaded, are never dropped: before `start` they become their mean, which is what inference uses;
    from then on, and with `start` 0, they are kept.

    From `start` on the weight decay of `base` is scaled, by members * base_scale for SGD and by
    sqrt(members) for others, because the base weights have fewer updates: so gradient and decay
    still balance at the same weights.

    Example:

    >>> import keras, numpy as np, late_phase.keras
    >>> model = keras.Sequential([keras.Input((8,)), late_phase.keras.Dense(4, members=3)])
    >>> optimizer = late_phase.keras.LatePhaseOptimizer(
    ...     keras.optimizers.Adam(1e-3), members=3, start=2, sigma=0.1)
    >>> model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> chosen = []
    >>> for step in range(6):
    ...     chosen.append(int(optimizer.member))
    ...     _ = model.train_on_batch(np.ones((5, 8)), np.arange(5) % 4)
    >>> chosen
    [0, 0, 0, 1, 2, 0]

    Args:
      base: a Keras optimizer for the base weights. It must not have been built, and belongs to this
        optimizer from then on. Its `loss_scale_factor` becomes that of this optimizer, as does its
        `global_clipnorm` unless `member` is given.
      member: a Keras optimizer for the members; None: one like `base`, whose learning rate follows
        that of `base`.
      members: K. With 1, training is that of the wrapped optimizers.
      start: T0, when the members are spawned: a step (minibatch); `"60%"` of the steps of `fit`; an
        epoch of `fit`, `late_phase.keras.Epoch(30)`; or None, when `spawn` is called, for example
        by `late_phase.keras.StartOnPlateau`.
      sigma: the noise at `start`, in units of a weight array's root mean square.
      base_scale: γ, the factor on the base weights' summed gradients: 1, or 1 / members for their
        mean.
      seed: the seed of the noise, an integer.
      base_rate_scale: a factor on the learning rate of the base weights from `start` on, which have
        one update per cycle. With Adam, whose updates have a size of their own, sqrt(members) keeps
        what they are worth where noise dominates; see "Choosing K, start, sigma, base_scale".
      name: the name of the optimizer.
      **kwargs: refused, because options of an optimizer belong to `base` and `member`.

    Raises:
      ValueError: an argument is out of range; or `base` or `member` is an optimizer that has
        trained, has `use_ema` or `gradient_accumulation_steps`, or is a MultiOptimizer, a
        ScheduleFreeAdamW or a LossScaleOptimizer, which must wrap this one instead.
    """

    def __init__(
        self,
        base,
        member=None,
        members=1,
        start=0,
        sigma=0.0,
        base_scale=1.0,
        seed=0,
        base_rate_scale=1.0,
        name="late_phase",
        **kwargs,
    ):
        if kwargs:
            raise ValueError(
                "Options of an optimizer belong to `base` and `member`. "
                f"Received: {', '.join(kwargs)}"
            )
        for argument, optimizer in (("base", base), ("member", member)):
            is_plain = not isinstance(optimizer, LatePhaseOptimizer)
            _check(argument, optimizer, is_plain, "a plain Keras optimizer")
        members = check_members(members)
        inner = InnerOptimizers(base, member, members)
        # On the device of all other variables, because XLA reaches no other device's; the library's
        # own kernels on a GPU wait for these instead.
        super().__init__(
            learning_rate=inner.base_rate, loss_scale_factor=inner.loss_scale_factor, name=name
        )
        self._schedule = Schedule(self, members, start)
        # bool []: whether rows may differ although there are no members yet, because they came from
        # elsewhere.
        unequal = state(True, "bool", "unequal")
        # In a namespace, because Keras would count attributes, and what is in lists of them, as
        # this optimizer's own state.
        self._parts = types.SimpleNamespace(inner=inner, unequal=unequal, shared=(None, {}))
        self.member = self._schedule.member
        self.sigma = _check_number("sigma", sigma, lambda x: 0 <= x < np.inf, "at least 0")
        self.base_scale = _check_number("base_scale", base_scale, lambda x: 0 < x <= 1, "in (0, 1]")
        is_seed = is_integer(seed) and -(2**63) <= seed < 2**63
        self.seed = int(_check("seed", seed, is_seed, "an integer of 64 bits"))
        self.base_rate_scale = _check_number(
            "base_rate_scale", base_rate_scale, lambda x: 0 < x < np.inf, "greater than 0"
        )
        self._spawn_is_due = self._said_too_short = False
        inner.follow(self)

    members = property(lambda self: self._schedule.members, doc="K, the number of members.")
    has_planned_start = property(
        lambda self: self._schedule.planned is not None,
        doc="Whether `start` was given, and is not None.",
    )

    @property
    def start(self):
        """T0, the step of the first member; before it is known, what `start` was given as."""
        return self._schedule.start()

    def plan(self, model):
        """Finds the step of a `start` that is a part or an epoch of the `fit` that is running.

        Args:
          model: the model. Layers call this before the first minibatch.
        """
        self._schedule.plan(model)

    def spawn(self):
        """Starts the members now, between two steps: for `start=None`, or before a planned start.

        Raises:
          ValueError: `start` is a step, there is one member only, the members have started, or the
            optimizer has not been built.
        """
        if self._schedule.step is None:
            raise ValueError(
                "`start` must be None for members that are spawned by hand, and there must be "
                f"several. Received: start={self.start!r}, members={self.members}"
            )
        if not self.built:
            raise ValueError(
                "The optimizer must be built: train, or call "
                "optimizer.build(model.trainable_variables). Received: one without weights"
            )
        step = int(self.iterations.numpy())
        if step >= int(self._schedule.step.numpy()):
            raise ValueError(f"The members must not have started yet. Received: start={self.start}")
        strategy = private.strategy_of(self)
        with strategy.scope():
            # Rows may have come from elsewhere since the last step.
            for late in self._parts.late_variables:
                late.assign(tf.broadcast_to(mean_of_rows(late), late.shape))
            self._schedule.step.assign(step)
            self._parts.unequal.assign(False)
            self._spawn(strategy)

    def attach(self, model):
        """Lets the late-phase layers of `model` use the member that this optimizer chooses.

        Args:
          model: the model. `model.compile` and `build` call this by themselves.
        """
        for layer in private.flatten_layers(model):
            if isinstance(layer, MemberLayer):
                layer.attach(self)
        if self._schedule.starts_at_once() and model.built:
            self.build(model.trainable_variables)  # before the first minibatch, which is a member's

    def build(self, variables):
        if self.built:
            return
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            raise ValueError(
                "The optimizer must be built before its first step in `strategy.run`: call "
                "optimizer.build(model.trainable_variables) in the strategy's scope. Received: an "
                f"optimizer that is not built, in {type(tf.distribute.get_strategy()).__name__}.run"
            )

        def build():
            with tf.init_scope(), private.strategy_of(self).scope():
                self._build(list(variables))

        def build_in_thread():
            # Which does not know the device of the one that started it; a strategy chooses its own.
            is_default = private.strategy_of(self) is tf.distribute.get_strategy()
            with tf.device(self.iterations.value.device if is_default else None):
                build()

        if tf.executing_eagerly():
            build()
        else:
            # Variables that are made while a step is traced would make Keras trace it once more. In
            # a thread of its own nothing is being traced.
            with concurrent.futures.ThreadPoolExecutor(1) as executor:
                executor.submit(build_in_thread).result()

    def _build(self, variables):
        late = [v for v in variables if hasattr(v, "late_phase_members")]
        for variable in late:
            if variable.late_phase_members != self.members:
                raise ValueError(
                    "`members` must be the same in the optimizer and in all layers. "
                    f"Received: members={self.members} in the optimizer, "
                    f"members={variable.late_phase_members} in {variable.path}"
                )
        if self.members > 1 and not variables:  # as Keras does to restore an optimizer from .h5
            raise ValueError(
                "There must be variables to train; loading of a whole model from .h5 needs "
                "compile=False. Received: none"
            )
        if self.members > 1 and not late:
            raise ValueError(
                "There must be a weight with members to train: use layers of late_phase.keras in "
                "the model, and do not freeze all of them (trainable=False); or use members=1. "
                f"Received: {len(variables)} variables without members"
            )
        super().build(variables)
        for variable in late:
            variable.late_phase_layer().attach(self)
        parts, inner = self._parts, self._parts.inner
        parts.variables, parts.late_variables = variables, late
        parts.base_variables = [
            v
            for v in variables
            if not hasattr(v, "late_phase_members") and not incoming.is_new_value(v)
        ]
        parts.dtypes = {tf.as_dtype(v.dtype) for v in variables}
        if inner.member_rate_variable() is not None:
            private.track(self, inner.member_rate_variable())
        parts.updates = Updates(self, inner, late, parts.base_variables)
        self._spawn_is_due = self._schedule.starts_at_once()
        self._spawn_if_due()

    def prepare_rows(self, variables):
        """Brings the rows of weights with members into the state that the coming minibatch needs.

        With `start` 0 they are spawned. Before `start` they are one member: rows that differ after
        loading become their mean, which inference uses.

        Args:
          variables: weights of shape [K, ...]. Layers call this before a training call uses their
            rows.
        """
        self._spawn_if_due()
        if self.members > 1 and not self._schedule.starts_at_once():
            tf.cond(
                self._parts.unequal.value & ~self._schedule.is_late(),
                lambda: make_equal(variables),
                lambda: None,
            )

    def rows_changed(self):
        """Notes that rows of weights with members have been assigned from outside."""
        self._parts.unequal.assign(True)

    def _spawn_if_due(self):
        """Spawns the members of start=0, once their weights have values.

        Weights that are made while a step is traced get their values after it.
        """
        if not self._spawn_is_due:
            return
        strategy, late = private.strategy_of(self), self._parts.late_variables
        with tf.init_scope(), strategy.scope():
            if all(variable.value.is_initialized() for variable in late):
                self._spawn_is_due = False
                # Members that differ already, such as those of an earlier training, are kept.
                if self.iterations.numpy() == 0 and not rows_differ(late):
                    self._spawn(strategy)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes weights from the weight decay of `base` and `member`, as Keras's method does.

        It may also be called on these two.

        Args:
          var_list: a list of variables.
          var_names: a list of strings, regular expressions of which one is found in the name of a
            variable to be excluded.
        """
        if self.built:
            raise ValueError(
                "Exclusions from weight decay must be made before the optimizer is built. "
                "Received: an optimizer that has been built"
            )
        super().exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        if not grads and not trainable_variables:
            return  # as in Keras
        if not self.built and trainable_variables is None:
            raise ValueError("The optimizer must be built, or `trainable_variables` given.")
        variables = (
            self._parts.variables if trainable_variables is None else list(trainable_variables)
        )
        key = functools.partial(private.variable_key, self)
        gradients = incoming.checked(grads, variables, key)
        member = self.current_member()
        late = [
            (v, gradients[key(v)])
            for v in variables
            if key(v) in gradients and getattr(v, "late_phase_members", 1) > 1
        ]
        one_member = require_one_member(late, member)
        if not self.built:
            self._require_ready(variables)
            self.build(variables)
        private.require_known(self, variables)
        base_variables = [v for v in self._parts.base_variables if key(v) in gradients]
        late_variables = [v for v in self._parts.late_variables if key(v) in gradients]
        base_gradients = [
            incoming.unscaled(gradients[key(v)], self.loss_scale_factor) for v in base_variables
        ]
        late_gradients = [
            incoming.unscaled(member_row(gradients[key(v)], member), self.loss_scale_factor)
            for v in late_variables
        ]
        if private.strategy_of(self).num_replicas_in_sync > 1:
            base_gradients, late_gradients = incoming.reduced(
                [base_gradients, late_gradients], after=one_member
            )
        for variable in filter(incoming.is_new_value, variables):
            if key(variable) in gradients:
                variable.assign(gradients[key(variable)])

        def update(strategy, base_gradients, late_gradients):
            base = list(zip(base_variables, base_gradients))
            late = list(zip(late_variables, late_gradients))
            self._parts.updates.apply(strategy, base, late, self._now())
            self._advance(strategy)

        with tf.control_dependencies([] if one_member is None else [one_member]):
            private.merge_call(update, private.strategy_of(self), base_gradients, late_gradients)

    def _require_ready(self, variables):
        """To be built by its first step."""
        # Gradients of a member are of no use if the layers chose another one.
        for variable in variables:
            if (
                self.members > 1
                and hasattr(variable, "late_phase_layer")
                and variable.late_phase_layer()._optimizer() is not self
            ):
                raise ValueError(
                    "The layers must know the optimizer before the first training step: compile "
                    "the model with it, or call optimizer.build(model.trainable_variables). "
                    f"Received: {variable.path}, whose layer does not"
                )
        if self._schedule.starts_at_once() and self.sigma > 0 and tf.executing_eagerly():
            raise ValueError(
                "With start=0 the first minibatch is a member's already: the model must be built "
                "before a training that is run eagerly; call it once, or give it an Input. "
                "Received: start=0 and a model without weights before the first minibatch"
            )

    def _now(self):
        """What the updates of a step depend on."""
        inner, late = self._parts.inner, self._schedule.is_late()
        base_scale, of_type = self._schedule.from_start(self.base_scale), {}
        for dtype in self._parts.dtypes:
            rate = tf.cast(self.learning_rate, dtype)
            member_rate = (
                rate if inner.follows else tf.cast(inner.member_rate(self.iterations), dtype)
            )
            of_type[dtype] = types.SimpleNamespace(
                base_rate=tf.cast(self.base_rate(), dtype),
                member_rate=member_rate,
                base_scale=tf.cast(base_scale, dtype),
            )
        return types.SimpleNamespace(
            member=self.current_member(),
            # Minibatches per update of the base weights.
            cycle=tf.constant(1) if late is None else tf.where(late, self.members, 1),
            is_late=late,
            constant=functools.cache(tf.constant),  # value, dtype: one for all weights
            of_type=of_type,
            base_decay_scale=self._schedule.from_start(
                inner.base_decay_scale(self.members, self.base_scale)
            ),
            base_square_norm=None,
            member_square_norm=None,
        )

    def base_rate(self):
        """The learning rate of the base weights in this step."""
        if self.members == 1 or self.base_rate_scale == 1:
            return self.learning_rate
        rate = tf.convert_to_tensor(self.learning_rate)
        return rate * tf.cast(self._schedule.from_start(self.base_rate_scale), rate.dtype)

    def rows(self):
        """int32 [K]: the rows that a minibatch writes: its member's, K times; all before `start`.

        K of them in any case, because XLA would compile a step again for every other number.
        """
        return self.in_this_step("rows", self._schedule.rows)

    def current_member(self):
        """int32 []: the member of the coming minibatch, the same tensor in all of a step."""
        return self.in_this_step("member", lambda: tf.convert_to_tensor(self.member.value))

    def has_members(self):
        """bool []: whether the coming minibatch trains one of several members; None if K is 1."""
        return self._schedule.is_late()

    def in_this_step(self, name, make):
        """A tensor that all layers of a step share: made once while the step is traced.

        Args:
          name: what it is; with all that it depends on, but for this optimizer's state.
          make: a function that makes it.
        """
        if tf.executing_eagerly() or private.strategy_of(self).num_replicas_in_sync > 1:
            return make()
        graph, made = self._parts.shared
        if graph is not tf.compat.v1.get_default_graph():
            made = {}
            self._parts.shared = tf.compat.v1.get_default_graph(), made
        if name not in made:
            made[name] = make()
        return made[name]

    def _advance(self, strategy):
        self._parts.shared = None, {}
        self.iterations.assign_add(1)
        if self.members == 1:
            return
        is_start = self._schedule.advance()
        if not self._schedule.starts_at_once():
            self._parts.unequal.assign(False)
            tf.cond(is_start, lambda: self._spawn(strategy), lambda: None)

    def _spawn(self, strategy):
        """Row k of every late-phase weight <- row 0 + sigma RMS(row 0) noise; with fresh states."""
        for number, variable in enumerate(self._parts.late_variables):
            strategy.extended.update(
                variable.value, spawn, args=(self.sigma, [self.seed, number]), group=False
            )
        self._parts.updates.restart(strategy)

    def finalize_variable_values(self, var_list):
        """Called at the end of `fit`: says so, once, if it was over before there were members."""
        super().finalize_variable_values(var_list)
        steps = int(self.iterations.numpy())
        start = self.start
        is_short = not isinstance(start, int) or steps < start
        if self.members > 1 and is_short and not self._said_too_short:
            self._said_too_short = True
            warnings.warn(
                "Training ended before `start`, so no members were spawned. "
                f"Received: start={start}, training ended after {steps} steps",
                stacklevel=3,
            )

    def get_config(self):
        start = self._schedule.planned
        is_epoch = not isinstance(start, (int, str, type(None)))
        return {
            "name": self.name,
            **self._parts.inner.configs(self),
            "members": self.members,
            "start": keras.saving.serialize_keras_object(start) if is_epoch else start,
            "sigma": self.sigma,
            "base_scale": self.base_scale,
            "seed": self.seed,
            "base_rate_scale": self.base_rate_scale,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("base", "member"):
            if config[name] is not None:
                config[name] = keras.saving.deserialize_keras_object(config[name], custom_objects)
        if isinstance(config["start"], dict):  # an Epoch
            config["start"] = keras.saving.deserialize_keras_object(config["start"])
        return cls(**config)
