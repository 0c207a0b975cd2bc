"""Which weights of a model have members."""

import math


def summary(model, print_fn=None):
    """Prints which weights of `model` have members, and which are base weights.

    For weights that have members, `members` is K, the first dimension of their shape. Statistics
    and frozen weights, which the optimizer does not train, are marked.

    Example:

    >>> import keras, late_phase.keras
    >>> model = keras.Sequential([
    ...     keras.Input((8,)),
    ...     keras.layers.Dense(16, name="hidden"),
    ...     keras.layers.BatchNormalization(name="norm"),
    ...     keras.layers.Dense(4, name="head"),
    ... ], name="net")
    >>> late_phase.keras.summary(late_phase.keras.convert(model, members=10))
    weight                    shape        members
    net/hidden/kernel         (8, 16)      base
    net/hidden/bias           (16,)        base
    net/norm/gamma            (10, 16)     10
    net/norm/beta             (10, 16)     10
    net/norm/moving_mean      (10, 16)     10, not trained
    net/norm/moving_variance  (10, 16)     10, not trained
    net/head/kernel           (10, 16, 4)  10
    net/head/bias             (10, 4)      10
    trained: 144 numbers of base weights, 100 of each member

    Args:
      model: a Keras model of any kind, or a layer.
      print_fn: called with each line; None: `print`.

    Raises:
      ValueError: `model` has not been built.
    """
    if not model.built:
        raise ValueError(
            "`model` must be built: call it once, or give it an Input. "
            "Received: one without weights"
        )
    print_fn = print_fn or print
    rows = [("weight", "shape", "members")]
    for variable in model.weights:
        members = str(getattr(variable, "late_phase_members", "base"))
        rows.append(
            (
                variable.path,
                str(tuple(variable.shape)),
                members if variable.trainable else f"{members}, not trained",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    for path, shape, members in rows:
        print_fn(f"{path:<{widths[0]}}  {shape:<{widths[1]}}  {members}")
    base = sum(
        math.prod(v.shape) for v in model.trainable_weights if not hasattr(v, "late_phase_members")
    )
    member = sum(
        math.prod(v.shape[1:]) for v in model.trainable_weights if hasattr(v, "late_phase_members")
    )
    print_fn(f"trained: {base:,} numbers of base weights, {member:,} of each member")
