"""The Keras optimizers inside a LatePhaseOptimizer: which it accepts, and what it takes over."""

import math

import keras

from late_phase.keras.private import learning_rate_of

# Optimizers that cannot be `base` or `member`, and what to do instead.
_REFUSED = {
    keras.optimizers.LossScaleOptimizer: (
        "without loss scaling around it: wrap the whole, "
        "LossScaleOptimizer(LatePhaseOptimizer(...))"
    ),
    keras.optimizers.MultiOptimizer: (
        "a single optimizer: one with its own learning rate for each group of weights cannot be "
        "counted in minibatches"
    ),
    keras.optimizers.ScheduleFreeAdamW: (
        "an optimizer whose state does not start from the weights, which spawning changes: use "
        "AdamW and late_phase.keras.SWA"
    ),
}
# Averages and sums of a kind that members would confuse.
_REFUSED_OPTIONS = ("use_ema", "gradient_accumulation_steps")


def _check(argument, optimizer):
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"`{argument}` must be a Keras optimizer. Received: {argument}={optimizer!r}"
        )
    for cls, rule in _REFUSED.items():
        if isinstance(optimizer, cls):
            raise ValueError(f"`{argument}` must be {rule}. Received: {argument}={cls.__name__}")
    for option in _REFUSED_OPTIONS:
        if getattr(optimizer, option):
            raise ValueError(
                f"`{argument}` must be without `{option}`. "
                f"Received: {optimizer.name}, {option}={getattr(optimizer, option)!r}"
            )
    if optimizer.built:
        raise ValueError(
            f"`{argument}` must be an optimizer that has not trained yet. "
            f"Received: {optimizer.name}, which has"
        )


def _like(optimizer):
    """A new optimizer with the options of another one, except the learning rate."""
    config = optimizer.get_config()
    if "learning_rate" in config:
        config["learning_rate"] = 0.0
    return optimizer.__class__.from_config(config)


def _value(rate, step):
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return rate(step)
    return rate() if callable(rate) else rate


def _config_of(rate):
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return keras.optimizers.schedules.serialize(rate)
    return keras.saving.serialize_keras_object(rate) if callable(rate) else float(rate.numpy())


class _RateNow(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of a wrapped optimizer, which counts updates, not minibatches."""

    def __init__(self, rate):
        self._rate = rate

    def __call__(self, step):
        return self._rate()

    def get_config(self):
        return {}


class InnerOptimizers:
    """`base` and `member`, relieved of what must be counted in minibatches or done once for both.

    Attributes:
      base, member: the Keras optimizers.
      follows: whether `member` was not given, so that it does what `base` does.
      base_rate: what the learning rate of `base` was given as, a number, a schedule or a function.
      loss_scale_factor: by which the loss, of which all gradients are, is to be multiplied; or
        None.
      clipnorm: the largest norm of all gradients together; or None. If `member` was given, each
        clips its own.
    """

    def __init__(self, base, member, members):
        _check("base", base)
        self.follows = member is None
        if not self.follows:
            _check("member", member)
            if member is base:
                raise ValueError(
                    "`member` must be an optimizer of its own. "
                    f"Received: {member.name}, which is `base`"
                )
            if (
                None not in (base.loss_scale_factor, member.loss_scale_factor)
                and base.loss_scale_factor != member.loss_scale_factor
            ):
                raise ValueError(
                    "`loss_scale_factor` must be the same in `base` and `member`, because there is "
                    f"one loss. Received: loss_scale_factor={base.loss_scale_factor!r} in `base`, "
                    f"{member.loss_scale_factor!r} in `member`"
                )
        rate = learning_rate_of(base)
        self.base_rate = rate if callable(rate) else float(rate.numpy())
        self.base, self.member = base, _like(base) if self.follows else member
        self._member_rate = learning_rate_of(self.member)
        self.loss_scale_factor = base.loss_scale_factor or self.member.loss_scale_factor
        self.clipnorm = base.global_clipnorm if self.follows and members > 1 else None
        for optimizer in (self.base, self.member):
            optimizer.loss_scale_factor = None
            if self.clipnorm:
                optimizer.global_clipnorm = None

    def follow(self, owner):
        """From now on learning rates are those at the minibatch of `owner`."""
        self.base.learning_rate = _RateNow(owner.base_rate)
        if self.follows:
            self.member.learning_rate = _RateNow(lambda: owner.learning_rate)
        elif callable(self._member_rate):
            self.member.learning_rate = _RateNow(lambda: self.member_rate(owner.iterations))

    def member_rate(self, step):
        """The learning rate of a `member` of its own at a minibatch."""
        return _value(self._member_rate, step)

    def member_rate_variable(self):
        """The same, if it is a variable and so part of the state; else None."""
        return None if self.follows or callable(self._member_rate) else self._member_rate

    def base_decay_scale(self, members, base_scale):
        """The factor on the weight decay of `base` from `start` on, to keep it in balance.

        An update then stands for `members` minibatches. SGD's is proportional to the gradient,
        whose sum is members * base_scale times as large. The others divide the gradient by its
        size: where noise dominates, the sum is larger by sqrt(members) than its noise.
        """
        return (
            members * base_scale
            if isinstance(self.base, keras.optimizers.SGD)
            else math.sqrt(members)
        )

    def configs(self, owner):
        """`base` and `member` as arguments of `owner`'s constructor that make the same again."""

        def config(optimizer, rate):
            config = keras.optimizers.serialize(optimizer)
            config["config"]["learning_rate"] = _config_of(rate)
            taken_over = {
                "loss_scale_factor": owner.loss_scale_factor,
                "global_clipnorm": self.clipnorm,
            }
            config["config"].update(
                {option: value for option, value in taken_over.items() if value is not None}
            )
            return config

        return {
            "base": config(self.base, learning_rate_of(owner)),
            "member": None if self.follows else config(self.member, self._member_rate),
        }
