"""Any Keras optimizer for base weights and members: it computes the updates, on our schedule."""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras.private import learning_rate_of, track, variable_key
from late_phase.keras.sparse_gradients import accumulate as add_to


class _ReducedContext(tf.distribute.ReplicaContext):
    """What a Keras optimizer's `apply` needs inside a merge call, with reduced gradients."""

    def all_reduce(self, reduce_op, value, options=None):
        return value


def _apply(strategy, optimizer, pairs):
    if pairs:
        with _ReducedContext(strategy, replica_id_in_sync_group=0):
            optimizer.apply(
                [gradient for _, gradient in pairs], [variable for variable, _ in pairs]
            )


def _build(optimizer, variables, excluded):
    """Builds a Keras optimizer whose weight decay is not for the `excluded` among its variables."""
    if excluded:
        optimizer.exclude_from_weight_decay(var_list=excluded)
    optimizer.build(variables)


def first_replica(strategy, pairs):
    """Reduced gradients are alike on all replicas: of each (variable, gradient) the first."""
    return [
        (variable, strategy.experimental_local_results(gradient)[0]) for variable, gradient in pairs
    ]


def square_norm(gradients):
    """float64 []: of all gradients together."""
    return tf.add_n(
        [tf.cast(tf.reduce_sum(tf.square(g)), tf.float64) for g in gradients]
        + [tf.constant(0, tf.float64)]
    )


def _clip(gradients, clipnorm, others):
    """Gradients scaled to a norm, with `others` (squared), of at most `clipnorm`, if given."""
    if clipnorm is None:
        return gradients
    norm = tf.sqrt(square_norm(gradients) + others)
    scale = clipnorm / tf.maximum(norm, clipnorm)
    return [g * tf.cast(scale, g.dtype) for g in gradients]


@contextlib.contextmanager
def _decay_scaled(optimizer, scale):
    """The weight decay of a Keras optimizer, where it has one, times `scale`, float64 []."""
    names = [
        name for name in ("weight_decay", "adam_weight_decay") if getattr(optimizer, name, None)
    ]  # the second is of Muon
    decays = {name: getattr(optimizer, name) for name in names}
    try:
        for name, decay in decays.items():
            setattr(optimizer, name, decay * scale)
        yield
    finally:
        for name, decay in decays.items():
            setattr(optimizer, name, decay)


def _sum_with(total, gradient):
    """The tensor of a sum over a cycle and its last gradient; a sparse one is added in place."""
    if not isinstance(gradient, tf.IndexedSlices):
        return total + tf.cast(gradient, total.dtype)
    add_to(total, gradient)
    return tf.convert_to_tensor(total)


class WrappedBase:
    """Base weights: gradients are summed over a cycle, and the optimizer is called at its end."""

    def __init__(self, owner, optimizer, variables, members, decays, clipnorm=None):
        """`decays(variable)` tells whether weight decay is for a variable, too."""
        self._optimizer, self._members, self._key, self._clipnorm = (
            optimizer,
            members,
            functools.partial(variable_key, owner),
            clipnorm,
        )
        if variables:
            _build(optimizer, variables, [v for v in variables if not decays(v)])
        for variable in optimizer.variables:
            track(owner, variable)
        self._sums = {}
        if members > 1:
            self._sums = {
                self._key(v): owner.add_variable_from_reference(v, name="sum") for v in variables
            }

    def apply(self, strategy, pairs, now):
        pairs = first_replica(strategy, pairs)
        if self._members == 1:
            _apply(strategy, self._optimizer, pairs)
            return
        variables, sums = (
            [variable for variable, _ in pairs],
            [self._sums[self._key(variable)] for variable, _ in pairs],
        )

        def update():
            scaled = [
                now.of_type[tf.as_dtype(v.dtype)].base_scale * _sum_with(total.value, g)
                for (v, g), total in zip(pairs, sums)
            ]
            clipped = _clip(scaled, self._clipnorm, now.member_square_norm)
            with _decay_scaled(self._optimizer, now.base_decay_scale):
                _apply(strategy, self._optimizer, list(zip(variables, clipped)))
            for total in sums:
                total.assign(tf.zeros(total.shape, total.dtype))

        def accumulate():
            for (_, gradient), total in zip(pairs, sums):
                add_to(total.value, gradient)

        tf.cond(tf.equal(now.member, now.cycle - 1), update, accumulate)


class WrappedMembers:
    """Late-phase weights [K, ...]: a member's row and state are copied to an optimizer and back."""

    def __init__(
        self, owner, optimizer, variables, members, decays, base_variables=(), clipnorm=None
    ):
        """`base_variables` are trained by the same optimizer, which clips their joint norm."""
        self._optimizer, self._key, self._clipnorm = (
            optimizer,
            functools.partial(variable_key, owner),
            clipnorm,
        )
        self._rows = {self._key(v): _row_of(v) for v in variables}
        self._all = np.arange(members, dtype=np.int32)
        excluded = [v for v in base_variables if not decays(v)] + [
            self._rows[self._key(v)] for v in variables if not decays(v)
        ]
        _build(optimizer, [*base_variables, *self._rows.values()], excluded)
        self._states = []  # (of all members [K, ...], of the current one [...], at first)
        for variable in optimizer.variables:
            if variable is learning_rate_of(optimizer):  # no member's own
                continue
            if members == 1:
                track(owner, variable)
                continue
            fresh = variable.numpy()
            rows = keras.Variable(
                np.broadcast_to(fresh, (members, *fresh.shape)),
                dtype=variable.dtype,
                trainable=False,
                name=f"members_{variable.name}",
            )
            track(owner, rows)
            self._states.append((rows, variable, fresh))

    def apply(self, strategy, pairs, now, base=()):
        pairs = first_replica(strategy, pairs)
        brought = [(variable, self._rows[self._key(variable)]) for variable, _ in pairs]
        brought += [(stack, state) for stack, state, _ in self._states]
        for stack, row in brought:
            row.assign(tf.gather(stack.value, now.member))
        gradients = _clip([gradient for _, gradient in pairs], self._clipnorm, now.base_square_norm)
        rows = [
            (self._rows[self._key(variable)], gradient)
            for (variable, _), gradient in zip(pairs, gradients)
        ]
        _apply(strategy, self._optimizer, first_replica(strategy, base) + rows)

        def write(rows):
            for stack, row in brought:
                strategy.extended.update(
                    stack.value,
                    write_rows,
                    args=(rows, tf.convert_to_tensor(row.value)),
                    group=False,
                )

        if now.is_late is None:
            write(now.member[tf.newaxis])
        else:
            tf.cond(now.is_late, lambda: write(now.member[tf.newaxis]), lambda: write(self._all))

    def restart(self, strategy):
        """All state as of members that have not been trained."""
        for stack, _, fresh in self._states:
            stack.assign(tf.broadcast_to(tf.constant(fresh, stack.dtype), stack.shape))


def _row_of(variable):
    """A variable for one row of a late-phase weight, with its constraint and its path.

    Some optimizers choose by the path what they do.
    """
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        row = keras.Variable(
            np.zeros(variable.shape[1:]), dtype=variable.dtype, trainable=True, name=name
        )
    row.constraint = variable.constraint
    return row


def write_rows(variable, rows, row):
    """variable[rows] <- row, [...], for int32 rows [n] of a variable [K, ...]."""
    updates = tf.gather(tf.expand_dims(row, 0), tf.zeros_like(rows))
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=updates)
