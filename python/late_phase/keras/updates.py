"""How weights are updated: by fused ops, or by Keras's optimizers on our schedule."""

import tensorflow as tf

from late_phase.keras import private
from late_phase.keras.fused_updates import FusedBase, FusedMembers, FusedRule
from late_phase.keras.sparse_gradients import dense
from late_phase.keras.wrapped_updates import WrappedBase, WrappedMembers, first_replica, square_norm


class Updates:
    """Trains base and late-phase weights, with the optimizers inside a LatePhaseOptimizer."""

    def __init__(self, owner, inner, late, base):
        self._clipnorm, members = inner.clipnorm, owner.members
        decays = _decays(owner, inner, [*base, *late])
        self._base = self._members = None
        base_rule = member_rule = None
        if late and inner.clipnorm is None:  # without members Keras's own updates do
            base_rule = FusedRule.of(inner.base, base)
            member_rule = FusedRule.of(inner.member, late)
        if late and members == 1 and inner.follows and not (base_rule and member_rule):
            # One member needs no second optimizer; a single one also clips the joint norm.
            self._members = WrappedMembers(owner, inner.base, late, members, decays, base)
            return
        if base_rule:
            self._base = FusedBase(owner, base_rule, base)
        else:
            self._base = WrappedBase(owner, inner.base, base, members, decays, inner.clipnorm)
        if member_rule:
            self._members = FusedMembers(owner, member_rule, late, members)
        elif late:
            self._members = WrappedMembers(
                owner, inner.member, late, members, decays, clipnorm=inner.clipnorm
            )

    def apply(self, strategy, base, late, now):
        """One step with (variable, gradient) pairs, for all replicas; gradients are reduced."""
        if self._clipnorm is not None:  # before `start` by the norm of all gradients
            base = [(v, dense(g)) for v, g in first_replica(strategy, base)]
            late = first_replica(strategy, late)
            now.base_square_norm, now.member_square_norm = tf.cond(
                now.is_late,
                lambda: (tf.constant(0, tf.float64), tf.constant(0, tf.float64)),
                lambda: (square_norm([g for _, g in base]), square_norm([g for _, g in late])),
            )
        if self._base is None:
            self._members.apply(strategy, late, now, base)
            return
        if late:
            self._members.apply(strategy, late, now)
        self._base.apply(strategy, base, now)

    def restart(self, strategy):
        """The members' state becomes that of members that have not been trained."""
        self._members.restart(strategy)


def _decays(owner, inner, variables):
    """A function of a variable: whether weight decay is for it, too."""

    def is_excluded(variable):
        is_late = hasattr(variable, "late_phase_members")
        optimizer = inner.member if is_late and not inner.follows else inner.base
        return not (private.has_decay(optimizer, variable) and private.has_decay(owner, variable))

    # Now, as building `inner.base` replaces its exclusions by those of the base weights.
    excluded = {private.variable_key(owner, v) for v in variables if is_excluded(v)}
    return lambda variable: private.variable_key(owner, variable) not in excluded
