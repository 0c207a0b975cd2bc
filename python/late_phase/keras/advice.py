"""Whether averaging is worth it, judged from a training's numbers, as `latephase advise` does."""

import collections.abc
import math
import numbers

import keras

from late_phase_cli import advice, noise_law

# Optimizers that divide their steps by the root of the gradient's mean square, as the law assumes.
_NORMALISED = (keras.optimizers.Adam, keras.optimizers.Nadam, keras.optimizers.RMSprop)


def advise(
    loss, swa_loss, members=10, history=None, late_epochs=None, optimizer="adam", swa_samples=None
):
    """What SWA, accumulation, a lower rate or a late phase would bring at a constant rate.

    The loss minus the loss with SWA is the noise of the last steps: what averaging can remove. With
    Adam, one step per K minibatches, or a rate divided by √K, leaves 1/√K of it; a late phase takes
    such rarer steps, too. They pay off on a plateau, where there is more noise to remove than
    progress to lose; the course of the loss tells. `latephase advise` says the same about a run of
    the programs.

    Example:

    >>> import late_phase.keras
    >>> history = [3 - 0.02 * epoch if epoch < 10 else 2.8 - 0.002 * epoch for epoch in range(20)]
    >>> advice = late_phase.keras.advise(
    ...     loss=2.760, swa_loss=2.700, members=10, history=history, late_epochs=8)
    >>> print(f"noise {advice.excess:.3f}, on a plateau: {advice.on_plateau}; "
    ...       f"by the law {advice.accumulated:.3f}")
    noise 0.060, on a plateau: True; by the law 2.719
    >>> print(advice)
    Noise: the loss is 2.7600, with SWA 2.7000, which takes 0.0600 off (one seed).
    Plateau: ...
    Recommendation: ...

    Args:
      loss: of the last weights on validation data; a sequence of numbers if the training was
        repeated, in the order of `swa_loss`.
      swa_loss: of the weights that SWA has averaged, on the same data, such as `model.evaluate`
        gives in `with swa.averaged():`.
      members: K, over how many minibatches a late phase or accumulation would average.
      history: what `fit` returned, its dictionary (`val_loss` if it has that, else `loss`), or the
        loss of each epoch from the first one on. None: plateaus cannot be judged.
      late_epochs: length of the late phase in question; None: 40 % of the epochs in `history`.
      optimizer: "adam" or "sgd", or the Keras optimizer that was used.
      swa_samples: how many samples SWA has averaged, if few of them should be noted.

    Returns:
      An object whose text (`print` it) is sentences that end with a recommendation. Its attributes
      are `excess` (the noise) and `excess_error` (half of its 95 % interval; NaN for one training),
      `fall` (of the loss in `late_epochs` more epochs), `on_plateau`, `accumulated` (the loss that
      the law predicts), `progress_lost` (what slower steps may cost), and `choice`: "train longer",
      "SWA", "SWA and a late phase" or "nothing". What is not known is None.

    Raises:
      ValueError: an argument is out of range, or of an optimizer for which no law is known.
    """
    losses, swa_losses = _numbers("loss", loss), _numbers("swa_loss", swa_loss)
    if len(losses) != len(swa_losses):
        raise ValueError(
            "`loss` and `swa_loss` must be of the same trainings. "
            f"Received: {len(losses)} and {len(swa_losses)} numbers"
        )
    if isinstance(members, bool) or not isinstance(members, numbers.Integral) or members < 2:
        raise ValueError(f"`members` must be an integer >= 2. Received: members={members}")
    curve = _curve(history)
    if curve is None and late_epochs is not None:
        raise ValueError(
            "`late_epochs` must come with `history`, which says how long the training was. "
            f"Received: late_epochs={late_epochs}, history=None"
        )
    if curve is not None:
        late_epochs = 0.4 * len(curve) if late_epochs is None else late_epochs
        if not 0 < late_epochs < len(curve):
            raise ValueError(
                f"`late_epochs` must be in (0, {len(curve)}), the epochs of `history`. "
                f"Received: late_epochs={late_epochs}"
            )
    return advice.advise(
        advice.Measured(
            losses,
            swa_losses,
            int(members),
            late_epochs,
            None if curve is None else len(curve),
            () if curve is None else [noise_law.trend(dict(enumerate(curve, 1)))],
            swa_samples,
            _kind(optimizer),
        )
    )


def _numbers(name, value):
    """A list of finite numbers, of one or several."""
    several = isinstance(value, collections.abc.Iterable) and not isinstance(value, str)
    try:
        found = [float(one) for one in (value if several else [value])]
    except (TypeError, ValueError):
        found = []
    if not found or not all(map(math.isfinite, found)):
        raise ValueError(
            f"`{name}` must be a finite number, or a sequence of them. Received: {name}={value!r}"
        )
    return found


def _curve(history):
    """The loss of each epoch; None without a history."""
    if history is None:
        return None
    history = getattr(history, "history", history)
    if isinstance(history, collections.abc.Mapping):
        name = "val_loss" if "val_loss" in history else "loss"
        if name not in history:
            raise ValueError(
                "`history` must have `val_loss` or `loss`. "
                f"Received: {', '.join(history) or 'none'}"
            )
        history = history[name]
    return _numbers("history", history)


def _kind(optimizer):
    if optimizer in ("adam", "sgd"):
        return optimizer
    if isinstance(optimizer, keras.optimizers.SGD):
        return "sgd"
    if isinstance(optimizer, _NORMALISED):
        return "adam"
    raise ValueError(
        '`optimizer` must be "adam" or "sgd", or a Keras optimizer among SGD, Adam, AdamW, Nadam '
        f"and RMSprop. Received: optimizer={optimizer!r}"
    )
