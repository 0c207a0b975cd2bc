"""From a plain Keras model to one with members, and back."""

import tempfile

import keras
import numpy as np

from late_phase.keras import own_models
from late_phase.keras.any_layer import Members, enable_lora, lora_of, places
from late_phase.keras.choice import Choice
from late_phase.keras.layers import BatchNormalization, Dense
from late_phase.keras.members import MemberLayer, activations_named, array_of, check_members
from late_phase.keras.own_models import has_graph
from late_phase.keras.private import flatten_layers, inner_layers, own_variables
from late_phase.keras.probe import check_same_outputs
from late_phase.keras.reestimation import reestimate_batch_norm

# What the layers with members take over from Keras's layer of their name.
_WITH_MEMBERS = {keras.layers.BatchNormalization: BatchNormalization, keras.layers.Dense: Dense}


def collapse(model, dataset=None, steps=None, probe=None, member=None, batch_norm=None):
    """A copy of `model` with Keras's own layers and the mean of the members' weights.

    Every late-phase layer is replaced by the Keras layer of its name, so a saved copy loads without
    late_phase. The mean computes what `model` computes in inference; this is checked on a small
    batch.

    Example:

    >>> import keras, late_phase.keras
    >>> model = keras.Sequential([keras.Input((8,)), late_phase.keras.Dense(4, members=10)])
    >>> plain = late_phase.keras.collapse(model)
    >>> type(plain.layers[0]) is keras.layers.Dense
    True

    Args:
      model: a Keras model, of whatever kind `convert` takes.
      dataset: data to re-estimate the statistics of BatchNormalization from, as in
        `reestimate_batch_norm`.
      steps: how many batches of `dataset` to use; None: all.
      probe: inputs for `model`, on which it is compared with the copy; None: random ones made from
        its input signature. If that is impossible (strings, inputs that the model rejects), there
        is a warning and no comparison.
      member: whose weights the copy gets, from 0; None: the members' mean.
      batch_norm: how BatchNormalization is collapsed. `"mean"`: scale, offset and moving statistics
        are the members' means. `"affine"`: the layer's output is the mean of the members' outputs;
        the copy has the mean of the statistics, so that it can be trained further, and scale and
        offset make up for the rest, also where the layer had none. `"reestimated"`: as `"mean"`,
        and the copy's statistics are estimated from `dataset` for its own weights. None:
        `"reestimated"` if there is a `dataset`, else `"mean"`.

    Returns:
      A model of the same kind, not compiled.

    Raises:
      ValueError: a late-phase layer is created inside another layer, which cannot be taken apart;
        or the copy's outputs differ from those of `model`, which happens if `get_config` of a layer
        of your own leaves out something that its outputs depend on; or arguments contradict each
        other.
    """
    batch_norm = _check_batch_norm(batch_norm, dataset, steps, member)
    is_affine = batch_norm == "affine"

    def plain(layer):
        if is_affine and isinstance(layer, BatchNormalization):
            return layer.affine_layer()
        return layer.plain_layer() if isinstance(layer, MemberLayer) else None

    copy, pairs = _copy(model, plain)
    for layer, other in pairs:
        if isinstance(other, MemberLayer):
            raise ValueError(
                "Layers with members must be layers of the model, or in the config of its layers, "
                f"to be collapsed. Received: {layer.path}, which another layer makes itself"
            )
    check_same_outputs(model, copy, pairs, probe)
    if member is not None:
        _take_member(model, pairs, member)
    for layer, other in pairs:
        if is_affine and isinstance(layer, BatchNormalization):
            other.set_weights(layer.affine_weights())
    if batch_norm == "reestimated":
        reestimate_batch_norm(copy, dataset, steps)
    return copy


_BATCH_NORM = ("mean", "affine", "reestimated")


def _check_batch_norm(batch_norm, dataset, steps, member):
    if steps is not None and dataset is None:
        raise ValueError(
            f"`steps` must be None without `dataset`. Received: steps={steps!r}, dataset=None"
        )
    if batch_norm is None:
        return "mean" if dataset is None else "reestimated"
    if batch_norm not in _BATCH_NORM:
        raise ValueError(
            f"`batch_norm` must be one of {', '.join(_BATCH_NORM)}, or None. "
            f"Received: batch_norm={batch_norm!r}"
        )
    if (batch_norm == "reestimated") != (dataset is not None):
        raise ValueError(
            '`dataset` must be given for batch_norm="reestimated", and for no other. '
            f"Received: batch_norm={batch_norm!r}, dataset={'None' if dataset is None else 'given'}"
        )
    if batch_norm == "affine" and member is not None:
        raise ValueError(
            '`member` must be None for batch_norm="affine", a mean of members. '
            f"Received: member={member!r}"
        )
    return batch_norm


def _take_member(model, pairs, member):
    """Gives a collapsed copy the weights of one member."""
    members = max(
        (layer.members for layer in flatten_layers(model) if isinstance(layer, MemberLayer)),
        default=0,
    )
    if isinstance(member, bool) or not isinstance(member, (int, np.integer)):
        raise ValueError(f"`member` must be an integer, or None. Received: member={member!r}")
    if not 0 <= member < members:
        raise ValueError(
            f"`member` must be in [0, {members}), as there are {members} members. "
            f"Received: member={member!r}"
        )
    for layer, other in pairs:
        if isinstance(layer, MemberLayer):
            other.set_weights(layer.plain_weights(member))
        elif any(hasattr(v, "late_phase_members") for v in own_variables(layer)):
            _copy_rows(layer, other, member)


def convert(model, members, weights="batch_norm + head", probe=None):
    """A copy of `model` with members, all of which start with what its layers have learned.

    BatchNormalization and Dense layers that are chosen as a whole become those of late_phase.keras,
    also inside nested models, `TimeDistributed` and other wrappers whose config holds them. Any
    other layer with chosen weights is wrapped: `Members(layer, members, weights)`; so are layers of
    your own that make the chosen layers themselves, whose BatchNormalization then has statistics
    that the members share. `summary` lists what has members.

    A model may be converted again, to give members to other weights, too.

    Example:

    >>> import keras, late_phase.keras
    >>> layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    >>> model = keras.Sequential([keras.Input((8,)), *layers])
    >>> model = late_phase.keras.convert(model, members=10)
    >>> [(type(layer).__name__, layer.members) for layer in model.layers]
    [('BatchNormalization', 10), ('Dense', 10)]

    Args:
      model: a Keras model, trained or not. A Functional one may be of your own class, with a
        `train_step` of your own, if it is made from inputs and outputs as Functional models are.
        One with a `call` of your own must have a `training` argument there, and make its layers in
        the constructor, as attributes or in lists and dicts of these.
      members: K.
      weights: what gets members. `"batch_norm"`: all BatchNormalization layers. `"head"`: the last
        layer with weights of each output, Dense, EinsumDense or convolutional. `"normalization"`:
        all normalisations. Anything else is a regular expression that matches the path of a
        trained weight, as `summary` prints it. Several are joined by " + ", or are a list. Or a
        function that takes a variable and returns a bool.
      probe: inputs for `model`, on which it is compared with the copy; None: random ones made from
        its input signature. If that is impossible (strings, inputs that the model rejects), there
        is a warning and no comparison.

    Returns:
      A model of the same kind, not compiled, whose outputs are those of `model`. One with a `call`
      of your own is not saved as a `.keras` file, whose constructor would make it without members:
      it has `save_weights`, and `collapse`.

    Raises:
      ValueError: a layer has an option that the layer with members does not support, there is
        nothing to convert, or what is chosen has members already; or the copy's outputs differ from
        those of `model`, which happens if `get_config` of a layer of your own leaves out something
        that its outputs depend on; or a class of your own cannot be copied, which is explained.
    """
    members = check_members(members)
    require_built(model)
    if not has_graph(model):
        own_models.require_training(model)
    choice = Choice(model, weights)
    _require_free(model, choice, members)
    native = [layer for layer in flatten_layers(model) if _is_native(layer, choice)]
    copy, pairs = _copy(
        model,
        lambda layer: _with_members(layer, members) if layer in native else None,
        lambda layer, other: _wrapped(layer, other, native, choice, members),
    )
    left = [
        variable.path
        for layer, other in [(model, copy), *pairs]
        if not isinstance(other, MemberLayer)
        for variable, made in zip(own_variables(layer), own_variables(other))
        if choice.has(variable) and not hasattr(made, "late_phase_members")
    ]
    if left:
        raise ValueError(
            "Chosen weights must be of layers that can be copied one by one, or inside of them. "
            f"Received: {', '.join(dict.fromkeys(left))}, to which no members could be given"
        )
    check_same_outputs(model, copy, pairs, probe)
    return copy


def _require_free(model, choice, members):
    """Refuses a choice of what has members already."""
    for layer in choice.layers:
        if isinstance(layer, MemberLayer):
            raise _converted(layer.name, layer.members)
    for variable in choice.variables:
        if hasattr(variable, "late_phase_members"):
            raise _converted(variable.path, variable.late_phase_members)
    for layer in flatten_layers(model):
        if isinstance(layer, MemberLayer) and layer.members != members:
            raise ValueError(
                "`members` must be the number of members that layers already have. "
                f"Received: members={members}, {layer.members} in {layer.name}"
            )


def _converted(name, members):
    return ValueError(
        "`model` must be without members in the layers to convert; this one has been converted "
        f"already, or built with members. Received: {name} with members={members}"
    )


def _is_native(layer, choice):
    """Whether a layer becomes the one of late_phase.keras of its name."""
    if type(layer) not in _WITH_MEMBERS or getattr(layer, "lora_enabled", False):
        return False
    trained = layer.trainable_variables
    return layer in choice.layers or bool(trained) and all(map(choice.has, trained))


def _wrapped(layer, other, native, choice, members):
    """`other`, the copy of a layer, if all chosen weights in it have members; else a `Members`."""
    variables = [v for v in layer.trainable_variables if choice.has(v)]
    inside = [inner for inner in flatten_layers(layer) if inner in native]
    made = [inner for inner in flatten_layers(other) if isinstance(inner, MemberLayer)]
    reached = {id(v) for inner in inside for v in inner.variables}
    if not variables or (len(made) == len(inside) and all(id(v) in reached for v in variables)):
        return other
    if isinstance(layer, Members):
        variables, layer = [*layer.member_variables(), *variables], layer.layer
    plain = own_models.made_again(layer, layer.get_config())
    chosen = places(layer, variables)
    return Members.with_lora(plain, lora_of(layer), members=members, weights=chosen)


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
            f"{layer.name} cannot get members: {cls.__name__} with members has no such option. "
            f"Received: {options}"
        )
    return cls.from_config(
        {**{key: value for key, value in config.items() if key in known}, "members": members}
    )


# What a class of models may do in its own way, which a copy of another class would not.
_METHODS = ("call", "compute_loss", "compute_metrics", "predict_step", "test_step", "train_step")


def require_built(model):
    if not isinstance(model, keras.Model) or not model.built:
        received = type(model).__name__
        received += " without weights" if isinstance(model, keras.Model) else ""
        raise ValueError(
            "`model` must be a Keras model that is built: call it once, or give it an Input. "
            f"Received: {received}"
        )


def _require_same_class(model, copy):
    own = [name for name in _METHODS if getattr(type(model), name) is not getattr(type(copy), name)]
    if own:
        raise ValueError(
            "A class of models must be made from inputs and outputs alone, as Functional ones are, "
            "to be copied: its constructor must be that of keras.Model. "
            f"Received: {type(model).__name__}, whose {', '.join(own)} the copy would lack"
        )


def _copy(model, replace, wrap=lambda layer, other: other):
    """A copy of `model` with its state, and the pairs (layer, its copy) at any depth.

    Where `replace(layer)` is a layer, it takes the layer's place; of one inside another layer only
    if that one's config has it. `wrap(layer, other)` has the last word on the copy of a layer that
    is no model.
    """
    require_built(model)
    made = []

    def clone(layer):
        if not isinstance(layer, keras.Layer):  # an operation of a Functional model
            return layer.__class__.from_config(layer.get_config())
        other = wrap(layer, replace(layer) or _remade(layer, replace))
        made.append((layer, other))
        return other

    def clone_graph(model):
        # Keras would compile the copy with the model's optimizer, built for other weights.
        compiled, model.compiled = model.compiled, False
        try:
            copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
        finally:
            model.compiled = compiled
        _require_same_class(model, copy)
        return copy

    with activations_named(model):
        if has_graph(model):
            copy = clone_graph(model)
        else:
            copy = own_models.remake(
                model, lambda layer: clone_graph(layer) if has_graph(layer) else clone(layer)
            )
            _copy_state(model, copy)
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

    return own_models.made_again(layer, exchanged(config) if inner else config)


def _pairs(layer, other):
    """(layer, its copy) for a layer and those inside it; not for those inside a replaced one."""
    if isinstance(layer, Members) != isinstance(other, Members):
        layer, other = (x.layer if isinstance(x, Members) else x for x in (layer, other))
    yield layer, other
    if type(layer) is type(other):
        inner, inner_others = inner_layers(layer), inner_layers(other)
        if len(inner) != len(inner_others):
            raise ValueError(
                "`from_config(get_config())` of a layer must make the layers inside it. Received: "
                f"{layer.path} with {len(inner)}, its copy with {len(inner_others)}"
            )
        for pair in zip(inner, inner_others):
            yield from _pairs(*pair)


def _copy_state(layer, other):
    """Gives `other` what `layer` itself, without the layers inside it, has learned."""
    other.trainable = layer.trainable
    if isinstance(layer, BatchNormalization) and len(other.weights) > len(layer.weights):
        other.set_weights(layer.affine_weights(of_mean=True))
    elif isinstance(layer, MemberLayer) and not isinstance(other, MemberLayer):
        other.set_weights(layer.plain_weights())
    elif isinstance(other, MemberLayer) and not isinstance(layer, MemberLayer):
        other.set_weights([_equal_rows(w, other.members) for w in layer.get_weights()])
    elif getattr(layer, "lora_enabled", False) or any(
        hasattr(v, "late_phase_members") for x in (layer, other) for v in own_variables(x)
    ):
        # Keras would save a kernel with its LoRA factors merged into it.
        _copy_rows(layer, other)
    else:
        # As Keras saves a layer and loads it: that includes state that is not a weight, and what is
        # computed from the weights.
        store = {}
        layer.save_own_variables(store)
        other.load_own_variables(store)
        if hasattr(layer, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                other.load_assets(folder)
        _copy_trainable(layer, other)


def _copy_rows(layer, other, member=None):
    """Of layers with LoRA, or inside of `Members`, or of what was or becomes such a layer."""
    enable_lora(other, lora_of(layer))
    for variable, copy in zip(own_variables(layer), own_variables(other), strict=True):
        members = getattr(variable, "late_phase_members", None)
        others = getattr(copy, "late_phase_members", None)
        value = variable.numpy()
        if members and not others:
            value = array_of(value, member)
        elif others and not members:
            value = _equal_rows(value, others)
        copy.assign(value)
    _copy_trainable(layer, other)


def _copy_trainable(layer, other):
    """Weight by weight: LoRA freezes a layer's own kernel, for instance."""
    for variable, copy in zip(own_variables(layer), own_variables(other), strict=True):
        copy.trainable = variable.trainable


def _equal_rows(value, members):
    return np.repeat(value[np.newaxis], members, axis=0)
