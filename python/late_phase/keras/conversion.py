"""From a plain Keras model to one with members, and back."""

import keras
import numpy as np

from late_phase.keras.layers import BatchNormalization, Dense
from late_phase.keras.members import MemberLayer, check_members
from late_phase.keras.private import flatten_layers, is_functional

# What the layers with members take over from Keras's layer of their name.
_WITH_MEMBERS = {keras.layers.BatchNormalization: BatchNormalization, keras.layers.Dense: Dense}


def collapse(model):
    """A copy of `model` in which every late-phase layer is the Keras layer of its name, with the mean of its members' weights.

    The copy gives what `model` gives in inference. It is made of Keras's own layers alone: saved, it loads without late_phase.

    Example:

    >>> import keras, late_phase.keras
    >>> model = keras.Sequential([keras.Input((8,)), late_phase.keras.Dense(4, members=10)])
    >>> plain = late_phase.keras.collapse(model)
    >>> type(plain.layers[0]) is keras.layers.Dense
    True

    Args:
      model: a Sequential or Functional model.

    Returns:
      A model of the same kind, not compiled.

    Raises:
      ValueError: a late-phase layer is inside of another layer, which cannot be taken apart.
    """

    def plain(layer):
        if isinstance(layer, MemberLayer):
            return layer.plain_layer()
        inner = [part.name for part in flatten_layers(layer) if isinstance(part, MemberLayer)] if isinstance(layer, keras.Layer) else []
        if inner:
            raise ValueError(f"Layers with members must be layers of the model, not parts of others. Received: {inner[0]} in {layer.name}")
        return None

    return _copy(model, plain, lambda layer: layer.plain_weights())


def convert(model, members, batch_norm=True, head=True):
    """A copy of `model` with members: what its layers have learned is what all members start with.

    Example:

    >>> import keras, late_phase.keras
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(4)])
    >>> model = late_phase.keras.convert(model, members=10)
    >>> [(type(layer).__name__, layer.members) for layer in model.layers]
    [('BatchNormalization', 10), ('Dense', 10)]

    Args:
      model: a Sequential or Functional model, trained or not.
      members: K.
      batch_norm: whether the BatchNormalization layers get members.
      head: whether the last layer, which must be Dense, gets members.

    Returns:
      A model of the same kind, not compiled, whose outputs are those of `model`.

    Raises:
      ValueError: a layer has an option that the one with members lacks, or there is nothing to convert.
    """
    check_members(members)
    require_graph(model)
    chosen = [layer for layer in _leaves(model) if batch_norm and type(layer) is keras.layers.BatchNormalization]
    if head:
        last = _leaves(model)[-1]
        if type(last) is not keras.layers.Dense:
            raise ValueError(f"The last layer must be Dense to get members; else pass head=False. Received: {last.name}, {type(last).__name__}")
        chosen.append(last)
    if not chosen:
        raise ValueError("There must be a BatchNormalization layer, or a head, to get members. Received: a model without")

    def with_members(layer):
        return _with_members(layer, members) if layer in chosen else None

    return _copy(model, with_members, lambda layer: [np.repeat(w[np.newaxis], members, axis=0) for w in layer.get_weights()])


def _with_members(layer, members):
    cls = _WITH_MEMBERS[type(layer)]
    required = {"units": layer.units} if cls is Dense else {}
    config, default, known = layer.get_config(), type(layer)(**required).get_config(), cls(members=members, **required).get_config()
    lacking = {key: value for key, value in config.items() if key not in known and value != default.get(key)}
    if lacking:
        options = ", ".join(f"{key}={value!r}" for key, value in lacking.items())
        raise ValueError(f"{layer.name} cannot get members: {cls.__name__} with members has no such option. Received: {options}")
    return cls.from_config({**{key: value for key, value in config.items() if key in known}, "members": members})


def has_graph(model):
    """Whether a model's layers, and how they are called, are known one by one."""
    return isinstance(model, keras.Sequential) or is_functional(model)


def require_graph(model):
    if not has_graph(model):
        raise ValueError(f"`model` must be Sequential or Functional, whose layers are known one by one. Received: {type(model).__name__}")
    if not model.built:
        raise ValueError("`model` must be built: call it once, or give it an Input. Received: one without weights")


def _leaves(model):
    return [layer for layer in flatten_layers(model, include_self=False) if not flatten_layers(layer, include_self=False)]


def _copy(model, other_kind, other_weights):
    """A copy with weights. Where `other_kind(layer)` is a layer, it takes the place, with `other_weights(layer)`."""
    require_graph(model)
    copied, replaced = [], []

    def clone(layer):
        other = other_kind(layer)
        if other is not None:
            replaced.append((layer, other))
            return other
        same = layer.__class__.from_config(layer.get_config())
        if isinstance(layer, keras.Layer):  # and not an operation of a Functional model
            copied.append((layer, same))
        return same

    # Keras would compile the copy with this model's optimizer, which has been built for other weights.
    compiled, model.compiled = model.compiled, False
    try:
        copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
    finally:
        model.compiled = compiled
    for layer, same in copied:
        same.set_weights(layer.get_weights())
    for layer, other in replaced:
        other.set_weights(other_weights(layer))
    return copy
