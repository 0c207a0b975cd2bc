"""From a plain Keras model to one with members, and back."""

import tempfile
import warnings

import keras
import numpy as np

from late_phase.keras.layers import BatchNormalization, Dense
from late_phase.keras.members import MemberLayer, check_members
from late_phase.keras.private import flatten_layers, inner_layers, is_functional
from late_phase.keras.probe import check_same_outputs
from late_phase.keras.reestimation import reestimate_batch_norm

# What the layers with members take over from Keras's layer of their name.
_WITH_MEMBERS = {keras.layers.BatchNormalization: BatchNormalization, keras.layers.Dense: Dense}


def collapse(model, dataset=None, steps=None, probe=None):
    """A copy of `model` with Keras's own layers and the mean of the members' weights.

    Every late-phase layer is replaced by the Keras layer of its name, so a saved copy loads without
    late_phase. The copy computes what `model` computes in inference; this is checked on a small
    batch.

    BatchNormalization gets the mean of the members' moving statistics. With `dataset` the copy's
    statistics are re-estimated for its own weights: `reestimate_batch_norm(copy, dataset, steps)`.

    Example:

    >>> import keras, late_phase.keras
    >>> model = keras.Sequential([keras.Input((8,)), late_phase.keras.Dense(4, members=10)])
    >>> plain = late_phase.keras.collapse(model)
    >>> type(plain.layers[0]) is keras.layers.Dense
    True

    Args:
      model: a Sequential or Functional model.
      dataset: data to re-estimate the statistics of BatchNormalization from, as in
        `reestimate_batch_norm`; None: the members' mean.
      steps: how many batches of `dataset` to use; None: all.
      probe: inputs for `model`, on which it is compared with the copy; None: random ones made from
        its input signature. If that is impossible (strings, inputs that the model rejects), there
        is a warning and no comparison.

    Returns:
      A model of the same kind, not compiled.

    Raises:
      ValueError: a late-phase layer is created inside another layer, which cannot be taken apart;
        or the copy's outputs differ from those of `model`, which happens if `get_config` of a layer
        of your own leaves out something that its outputs depend on.
    """
    if steps is not None and dataset is None:
        raise ValueError(
            f"`steps` must be None without `dataset`. Received: steps={steps!r}, dataset=None"
        )
    copy, pairs = _copy(
        model, lambda layer: layer.plain_layer() if isinstance(layer, MemberLayer) else None
    )
    for layer, other in pairs:
        if isinstance(other, MemberLayer):
            raise ValueError(
                "Layers with members must be layers of the model, or in the config of its layers, to be collapsed. "
                f"Received: {layer.path}, which another layer makes itself"
            )
    check_same_outputs(model, copy, pairs, probe)
    if dataset is not None:
        reestimate_batch_norm(copy, dataset, steps)
    return copy


def convert(model, members, batch_norm=True, head=True, probe=None):
    """A copy of `model` with members, all of which start with what its layers have learned.

    Layers inside others are converted where the outer layer's config holds them, as it does for
    nested models, `TimeDistributed` and other wrappers. Layers that a layer of your own creates
    itself get no members: a warning names each of them. `summary` lists what has members.

    Example:

    >>> import keras, late_phase.keras
    >>> layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    >>> model = keras.Sequential([keras.Input((8,)), *layers])
    >>> model = late_phase.keras.convert(model, members=10)
    >>> [(type(layer).__name__, layer.members) for layer in model.layers]
    [('BatchNormalization', 10), ('Dense', 10)]

    Args:
      model: a Sequential or Functional model, trained or not.
      members: K.
      batch_norm: whether the BatchNormalization layers get members.
      head: whether the last layer, which must be Dense, gets members.
      probe: inputs for `model`, on which it is compared with the copy; None: random ones made from
        its input signature. If that is impossible (strings, inputs that the model rejects), there
        is a warning and no comparison.

    Returns:
      A model of the same kind, not compiled, whose outputs are those of `model`.

    Raises:
      ValueError: a layer has an option that the layer with members does not support, there is
        nothing to convert, or the model has been converted already; or the copy's outputs differ
        from those of `model`, which happens if `get_config` of a layer of your own leaves out
        something that its outputs depend on.
    """
    check_members(members)
    require_graph(model)
    chosen = _chosen(model, members, batch_norm, head)
    copy, pairs = _copy(
        model,
        lambda layer: (
            _with_members(layer, members)
            if layer in chosen and type(layer) in _WITH_MEMBERS
            else None
        ),
    )
    left = list(
        dict.fromkeys(
            layer.path
            for layer, other in pairs
            if layer in chosen and not isinstance(other, MemberLayer)
        )
    )
    if len(left) == len(chosen):
        raise ValueError(
            f"There must be a layer that can get members. Received: none but {', '.join(left)}, inside other layers or of other classes"
        )
    if left:
        warnings.warn(
            f"`convert` leaves {', '.join(left)} without members: they are made inside other layers, or are of classes of their own. "
            f"To give them members, use late_phase.keras.BatchNormalization(members={members}) or Dense(members={members}) there",
            stacklevel=2,
        )
    check_same_outputs(model, copy, pairs, probe)
    return copy


def _chosen(model, members, batch_norm, head):
    """The layers that should get members."""
    layers = flatten_layers(model, include_self=False)
    have = [layer for layer in layers if isinstance(layer, MemberLayer)]
    chosen = [
        layer
        for layer in layers
        if batch_norm and isinstance(layer, keras.layers.BatchNormalization)
    ]
    if head:
        last = model
        while inner_layers(last) and not isinstance(last, MemberLayer):
            last = inner_layers(last)[-1]
        if last not in have and type(last) is not keras.layers.Dense:
            raise ValueError(
                f"The last layer must be Dense to get members; else pass head=False. Received: {last.name}, {type(last).__name__}"
            )
        chosen.append(last)
    converted = [layer for layer in chosen if layer in have] or (have if not chosen else [])
    if converted:
        raise ValueError(
            "`model` must be without members in the layers to convert; this one has been converted already, or built with members. "
            f"Received: {converted[0].name} with members={converted[0].members}"
        )
    for layer in have:
        if layer.members != members:
            raise ValueError(
                f"`members` must be that of the layers that have members. Received: members={members}, {layer.members} in {layer.name}"
            )
    if not chosen:
        raise ValueError(
            "There must be a BatchNormalization layer, or a head, to get members. Received: a model without"
        )
    return chosen


def _with_members(layer, members):
    cls = _WITH_MEMBERS[type(layer)]
    required = {"units": layer.units} if cls is Dense else {}
    config, default, known = (
        layer.get_config(),
        type(layer)(**required).get_config(),
        cls(members=members, **required).get_config(),
    )
    lacking = {
        key: value
        for key, value in config.items()
        if key not in known and value != default.get(key)
    }
    if lacking:
        options = ", ".join(f"{key}={value!r}" for key, value in lacking.items())
        raise ValueError(
            f"{layer.name} cannot get members: {cls.__name__} with members has no such option. Received: {options}"
        )
    return cls.from_config(
        {**{key: value for key, value in config.items() if key in known}, "members": members}
    )


def has_graph(model):
    """Whether a model's layers, and how they are called, are known one by one."""
    return isinstance(model, keras.Sequential) or is_functional(model)


def require_graph(model):
    if not has_graph(model):
        raise ValueError(
            f"`model` must be Sequential or Functional, whose layers are known one by one. Received: {type(model).__name__}"
        )
    if not model.built:
        raise ValueError(
            "`model` must be built: call it once, or give it an Input. Received: one without weights"
        )


def _copy(model, replace):
    """A copy of `model` with its state, and the pairs (layer, its copy) at any depth.

    Where `replace(layer)` is a layer, it takes the layer's place; of one inside another layer only
    if that one's config has it.
    """
    require_graph(model)
    made = []

    def clone(layer):
        if not isinstance(layer, keras.Layer):  # an operation of a Functional model
            return layer.__class__.from_config(layer.get_config())
        other = replace(layer) or _remade(layer, replace)
        made.append((layer, other))
        return other

    # Keras would compile the copy with this model's optimizer, which has been built for other weights.
    compiled, model.compiled = model.compiled, False
    try:
        copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
    finally:
        model.compiled = compiled
    pairs = [pair for layer, other in made for pair in _pairs(layer, other)]
    for layer, other in pairs:
        _copy_state(layer, other)
    return copy, pairs


def _remade(layer, replace):
    """The same layer without its state, with `replace` applied to the layers in its config."""
    config = layer.get_config()
    inner = {}  # what is serialised as (class, name) -> what takes its place
    for part in flatten_layers(layer, include_self=False):
        other = replace(part)
        if other is not None:
            inner[type(part).__name__, part.name] = keras.saving.serialize_keras_object(other)

    def exchanged(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(exchanged, value))
        if not isinstance(value, dict):
            return value
        if (
            isinstance(value.get("config"), dict)
            and (value.get("class_name"), value["config"].get("name")) in inner
        ):
            return {**value, **inner[value["class_name"], value["config"]["name"]]}
        return {key: exchanged(part) for key, part in value.items()}

    return layer.__class__.from_config(exchanged(config) if inner else config)


def _pairs(layer, other):
    """(layer, its copy) for a layer and those inside it; not for those inside a replaced one."""
    yield layer, other
    if type(layer) is type(other):
        inner, inner_others = inner_layers(layer), inner_layers(other)
        if len(inner) != len(inner_others):
            raise ValueError(
                f"`from_config(get_config())` of a layer must make the layers inside it. Received: {layer.path} with {len(inner)}, "
                f"its copy with {len(inner_others)}"
            )
        for pair in zip(inner, inner_others):
            yield from _pairs(*pair)


def _copy_state(layer, other):
    """Gives `other` what `layer` itself, without the layers inside it, has learned."""
    other.trainable = layer.trainable
    if isinstance(layer, MemberLayer) and not isinstance(other, MemberLayer):
        other.set_weights(layer.plain_weights())
    elif isinstance(other, MemberLayer) and not isinstance(layer, MemberLayer):
        other.set_weights(
            [np.repeat(w[np.newaxis], other.members, axis=0) for w in layer.get_weights()]
        )
    else:
        # What Keras does to save a layer and load it: it includes state that is no weight, and what is computed from the weights.
        store = {}
        layer.save_own_variables(store)
        other.load_own_variables(store)
        if hasattr(layer, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                other.load_assets(folder)
