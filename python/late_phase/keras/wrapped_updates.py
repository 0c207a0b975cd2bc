"""Any Keras optimizer for base weights and members: what it does is its own affair, when it does it is ours."""

import functools

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras.private import learning_rate_of, track, variable_key


class _ReducedContext(tf.distribute.ReplicaContext):
    """What a Keras optimizer's `apply` needs around it inside of a merge call, where gradients have been reduced already."""

    def all_reduce(self, reduce_op, value, options=None):
        return value


def _apply(strategy, optimizer, pairs):
    if pairs:
        with _ReducedContext(strategy, replica_id_in_sync_group=0):
            optimizer.apply([gradient for _, gradient in pairs], [variable for variable, _ in pairs])


def _first(strategy, pairs):
    """Reduced gradients are alike on all replicas: of each the first."""
    return [(variable, strategy.experimental_local_results(gradient)[0]) for variable, gradient in pairs]


class WrappedBase:
    """Base weights: gradients are summed over a cycle, and the optimizer is called at its end."""

    def __init__(self, owner, optimizer, variables, members):
        self._optimizer, self._members, self._key = optimizer, members, functools.partial(variable_key, owner)
        if variables:
            optimizer.build(variables)
        for variable in optimizer.variables:
            track(owner, variable)
        self._sums = {}
        if members > 1:
            self._sums = {self._key(v): owner.add_variable_from_reference(v, name="sum") for v in variables}

    def apply(self, strategy, pairs, now):
        pairs = _first(strategy, pairs)
        if self._members == 1:
            _apply(strategy, self._optimizer, pairs)
            return
        sums = [self._sums[self._key(variable)] for variable, _ in pairs]

        def update():
            scaled = [(v, now.of_type[tf.as_dtype(v.dtype)].base_scale * (total.value + tf.cast(g, v.dtype))) for (v, g), total in zip(pairs, sums)]
            _apply(strategy, self._optimizer, scaled)
            for total in sums:
                total.assign(tf.zeros(total.shape, total.dtype))

        def accumulate():
            for (_, gradient), total in zip(pairs, sums):
                total.assign_add(tf.cast(gradient, total.dtype))

        tf.cond(tf.equal(now.member, now.cycle - 1), update, accumulate)


class WrappedMembers:
    """Late-phase weights [K, ...]: the optimizer has one row of weights and state, to which a member's are brought and taken back."""

    def __init__(self, owner, optimizer, variables, members, base_variables=()):
        """`base_variables` are those that the same optimizer trains: with a single member it clips their joint norm."""
        self._optimizer, self._key = optimizer, functools.partial(variable_key, owner)
        self._rows = {self._key(v): keras.Variable(np.zeros(v.shape[1:]), dtype=v.dtype, trainable=True, name=v.name) for v in variables}
        for variable in variables:
            self._rows[self._key(variable)].constraint = variable.constraint
        optimizer.build([*base_variables, *self._rows.values()])
        self._states = []  # (of all members [K, ...], of the current one [...], at first)
        for variable in optimizer.variables:
            if variable is learning_rate_of(optimizer):  # no member's own
                continue
            if members == 1:
                track(owner, variable)
                continue
            fresh = variable.numpy()
            rows = keras.Variable(np.broadcast_to(fresh, (members, *fresh.shape)), dtype=variable.dtype, trainable=False,
                                  name=f"members_{variable.name}")
            track(owner, rows)
            self._states.append((rows, variable, fresh))

    def apply(self, strategy, pairs, now, base=()):
        pairs = _first(strategy, pairs)
        brought = [(variable, self._rows[self._key(variable)]) for variable, _ in pairs]
        brought += [(stack, state) for stack, state, _ in self._states]
        for stack, row in brought:
            row.assign(tf.gather(stack.value, now.member))
        _apply(strategy, self._optimizer, _first(strategy, base) + [(self._rows[self._key(v)], gradient) for v, gradient in pairs])
        for stack, row in brought:
            strategy.extended.update(stack.value, write_rows, args=(now.rows, tf.convert_to_tensor(row.value)), group=False)

    def restart(self, strategy):
        """All state as of members that have not been trained."""
        for stack, _, fresh in self._states:
            stack.assign(tf.broadcast_to(tf.constant(fresh, stack.dtype), stack.shape))


def write_rows(variable, rows, row):
    """variable[rows] <- row, [...], for int32 rows [n] of a variable [K, ...]."""
    updates = tf.broadcast_to(row, tf.concat([tf.shape(rows), tf.shape(row)], axis=0))
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=updates)
