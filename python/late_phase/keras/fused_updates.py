"""Keras's SGD and Adam as fused update ops: one op, and one pass over memory, per array."""

import functools

import keras
import tensorflow as tf

import late_phase
from late_phase.keras import sparse_gradients
from late_phase.keras.private import variable_key
from late_phase.keras.rows import copy_first


def tf_variable(variable):
    """The tf.Variable of a Keras variable; one of a reloaded SavedModel is itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def path_of(variable):
    """What to call a variable in a message."""
    return getattr(variable, "path", variable.name)


# Options of a Keras optimizer that the ops lack.
_WITHOUT_FUSED_FORM = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


class FusedRule:
    """An update rule of the ops: its name, slots, and inputs besides the learning rate."""

    def __init__(self, name, slots=(), hyper=None, attributes=None):
        self._name = name
        self._slots = slots
        self._hyper = hyper or {}
        self._attributes = attributes or {}

    @property
    def changes_rows_with_a_gradient_alone(self):
        return self._name == "sgd"

    @classmethod
    def of(cls, optimizer, variables):
        """The rule of a Keras optimizer; None if the ops cannot do what it does."""
        if any(getattr(optimizer, option) for option in _WITHOUT_FUSED_FORM):
            return None
        if any(
            v.dtype not in ("float32", "float64") or v.constraint is not None for v in variables
        ):
            return None
        if type(optimizer) is keras.optimizers.SGD and optimizer.momentum == 0:
            return cls("sgd")
        if type(optimizer) is keras.optimizers.SGD and optimizer.momentum < 1:
            attributes = {"use_nesterov": optimizer.nesterov, "lr_in_accum": True}
            return cls("momentum", ("accum",), {"momentum": optimizer.momentum}, attributes)
        if (
            type(optimizer) is keras.optimizers.Adam
            and not optimizer.amsgrad
            and max(optimizer.beta_1, optimizer.beta_2) < 1
        ):
            return cls(
                "adam",
                ("m", "v"),
                {
                    "beta1": optimizer.beta_1,
                    "beta2": optimizer.beta_2,
                    "epsilon": optimizer.epsilon,
                },
            )
        return None

    def make_slots(self, owner, variable, counts):
        """Name -> a new variable of the optimizer `owner`; `counts` is the shape of its count."""
        slots = {
            name: owner.add_variable_from_reference(variable, name=name) for name in self._slots
        }
        if self._name == "adam":
            name = (
                path_of(variable).replace("/", "_").replace(":", "_")
            )  # as Keras names the other slots
            slots["count"] = owner.add_variable(counts, dtype="int64", name=f"{name}_count")
        return slots

    def update(self, target, variable, slots, constant, **inputs):
        """`target` is "member" or "base"; `inputs` are those that all rules of a target share."""
        dtype = variable.dtype
        getattr(late_phase.raw_ops, f"late_phase_{target}_apply_{self._name}")(
            var=variable.handle,
            **{name: slot.handle for name, slot in slots.items()},
            **{name: constant(value, dtype) for name, value in self._hyper.items()},
            **self._attributes,
            weight_decay=constant(0, dtype),
            **inputs,
        )


class FusedBase:
    """Base weights: one op accumulates the gradients and updates at the end of a cycle.

    Sparse gradients are added to the sum row by row. At the end of a cycle SGD without momentum
    changes the rows that the cycle touched; the others change all rows anyway.
    """

    def __init__(self, owner, rule, variables):
        self._rule, self._key = rule, functools.partial(variable_key, owner)
        self._slots = {}
        for variable in variables:
            slots = {
                **rule.make_slots(owner, variable, ()),
                "sum": owner.add_variable_from_reference(variable, name="sum"),
            }
            self._slots[self._key(variable)] = {name: slot.value for name, slot in slots.items()}

    def apply(self, strategy, pairs, now):
        sparse = [pair for pair in pairs if sparse_gradients.is_sparse(strategy, pair[1])]
        for pair in pairs:
            if not any(pair is other for other in sparse):
                self._apply(strategy, self._update, pair, now)
        if not sparse:
            return

        def accumulate():
            for variable, gradient in sparse:
                total = self._slots[self._key(variable)]["sum"]
                strategy.extended.update(
                    total, sparse_gradients.accumulate, args=(gradient,), group=False
                )

        def update():
            for pair in sparse:
                self._apply(strategy, self._update_sparse, pair, now)

        if now.is_late is None:
            update()
        else:
            tf.cond(tf.equal(now.member, now.cycle - 1), update, accumulate)

    def _apply(self, strategy, update, pair, now):
        variable, gradient = pair
        strategy.extended.update(
            tf_variable(variable),
            update,
            args=(self._slots[self._key(variable)], gradient, now),
            group=False,
        )

    def _update(self, variable, slots, gradient, now):
        scalars = now.of_type[variable.dtype]
        self._rule.update(
            "base",
            variable,
            slots,
            now.constant,
            member=now.member,
            cycle=now.cycle,
            scale=scalars.base_scale,
            lr=scalars.base_rate,
            grad=tf.cast(gradient, variable.dtype),
        )

    def _update_sparse(self, variable, slots, gradient, now):
        """At the end of a cycle."""
        if not self._rule.changes_rows_with_a_gradient_alone:
            self._update(variable, slots, sparse_gradients.dense(gradient), now)
            return
        scalars = now.of_type[variable.dtype]

        def alone():
            sparse_gradients.descend(variable, scalars.base_rate, gradient)

        def with_the_sum():
            sparse_gradients.accumulate(slots["sum"], gradient)
            rate = scalars.base_rate * scalars.base_scale
            sparse_gradients.descend(variable, rate, sparse_gradients.take(slots["sum"]))

        if now.is_late is None:
            alone()
        else:
            tf.cond(now.is_late, with_the_sum, alone)


class FusedMembers:
    """Late-phase weights [K, ...]: an update changes one member's row, and its slots."""

    def __init__(self, owner, rule, variables, members):
        self._rule, self._key, self._members = rule, functools.partial(variable_key, owner), members
        self._slots = {}
        for variable in variables:
            slots = rule.make_slots(owner, variable, (members,))
            self._slots[self._key(variable)] = {name: slot.value for name, slot in slots.items()}

    def apply(self, strategy, pairs, now):
        for variable, gradient in pairs:
            strategy.extended.update(
                variable.value,
                self._update,
                args=(self._slots[self._key(variable)], gradient, now),
                group=False,
            )
        if now.is_late is not None:

            def copy_rows():
                stacks = [variable.value for variable, _ in pairs]
                copy_first([c for v in stacks for c in strategy.experimental_local_results(v)])

            tf.cond(now.is_late, lambda: None, copy_rows)

    def _update(self, variable, slots, gradient, now):
        self._rule.update(
            "member",
            variable,
            slots,
            now.constant,
            member=now.member,
            lr=now.of_type[variable.dtype].member_rate,
            grad=tf.cast(gradient, variable.dtype),
        )

    def restart(self, strategy):
        """All slots as of members that have not been trained."""
        for slots in self._slots.values():
            for slot in slots.values():
                strategy.extended.update(slot, lambda s: s.assign(tf.zeros_like(s)), group=False)
