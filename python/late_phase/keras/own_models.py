"""Models with a `call` of one's own, whose layers are attributes: what copying them takes.

How the layers are called is known to `call` alone. So a copy is made by the class, from the config,
and each of its layers is then exchanged for that of the copy's own kind.
"""

import functools
import inspect

import keras
import numpy as np

from late_phase.keras.private import (
    constructor_arguments,
    exchange_layers,
    flatten_layers,
    is_functional,
    layer_slots,
    own_attributes,
)

_PLAIN = (bool, float, int, str, type(None), np.number)


def has_graph(model):
    """Whether a model's layers, and how they are called, are known one by one."""
    return isinstance(model, keras.Sequential) or is_functional(model)


def signature(model):
    """The inputs of a model that was called or built: symbolic, structured as `call` takes them.

    Their dtype is not known: floats, or integers where the model takes no floats.

    Raises:
      ValueError: `call` has other arguments, too, or takes neither.
    """
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is None or len(_inputs_of(model)) != 1:
        raise ValueError(
            "A model of a class of your own must have been called, and `call` must take all inputs "
            "as its first argument, as `fit` gives them. "
            f"Received: {type(model).__name__}, call{inspect.signature(model.call)}"
        )
    problem = None
    for dtype in ("float32", "int32"):
        inputs = _map_shapes(
            lambda one, dtype=dtype: keras.Input(batch_shape=(None, *one[1:]), dtype=dtype), shape
        )
        try:
            model(inputs)
        except Exception as error:  # of whatever kind, as it is the model's own
            problem = problem or error
        else:
            return inputs
    raise ValueError(
        "A model of a class of your own must take symbolic inputs, of floats or integers. "
        f"Received: {type(model).__name__}, with inputs of shape {shape}: {problem}"
    ) from problem


def outputs(model):
    """Symbolic outputs, which know the layers that made them.

    Raises:
      ValueError: `call` does more than call layers and operations of Keras.
    """
    inputs = signature(model)
    try:
        return keras.tree.flatten(model.call(inputs))
    except Exception as error:  # of whatever kind, as it is the model's own
        raise ValueError(
            "The head is found in a class of your own if its `call` uses only layers and "
            "keras.ops; choose it by its name, as `summary` prints it. "
            f"Received: {type(model).__name__}: {error}"
        ) from error


def remake(model, clone):
    """A model of the same class and config, whose layers are `clone(layer)` of those of `model`.

    Returns:
      The copy, which is built.

    Raises:
      ValueError: the class cannot be made from its config, or makes other layers; or its `call`
        does more with the layers than call them.
    """
    name = type(model).__name__
    # The class's config, as that of an instance may have been taken away.
    copy = made_again(model, _config(model))
    slots, copied = layer_slots(model), layer_slots(copy)
    if slots.keys() != copied.keys():
        raise ValueError(
            "A class of models must make all its layers in the constructor, as attributes or in "
            f"lists and dicts of these, to be copied. Received: {name} with {', '.join(slots)}, "
            f"its copy with {', '.join(copied) or 'none'}"
        )
    clone = functools.cache(clone)  # a layer in two places stays one
    made = {place: clone(layer) for place, layer in slots.items()}
    if any(_kinds(made[place]) != _kinds(layer) for place, layer in copied.items()):
        _save_weights_alone(copy)
    exchange_layers(copy, made)
    try:
        copy(signature(model))
    except Exception as error:  # of whatever kind, as it is the model's own
        raise ValueError(
            "`call` of a class of models must only call the layers that get or lose members, and "
            f"use none of their attributes. Received: {name}: {error}"
        ) from error
    return copy


def _config(model):
    try:
        return type(model).get_config(model)
    except NotImplementedError as error:
        raise _not_from_config(model, error) from error


def _not_from_config(model, error):
    return ValueError(
        "A class of models must have a `get_config` from which `from_config` makes it, to be "
        f"copied. Received: {type(model).__name__}: {error}"
    )


def made_again(layer, config):
    """Another layer of the class, or a model with a `call` of its own, from its config.

    Raises:
      ValueError: the class of a model cannot be made from its config.
    """
    if not isinstance(layer, keras.Model) or has_graph(layer):
        return type(layer).from_config(config)
    try:
        copy = type(layer).from_config(config)
    except Exception as error:  # of whatever kind, as it is the class's own
        arguments = constructor_arguments(layer)
        if arguments is None:
            raise _not_from_config(layer, error) from error
        copy = type(layer)(**arguments)  # does not take all that is in a config
    # Keras's automatic config has the defaults of a model's constructor, not what it was given.
    for name, value in own_attributes(layer).items():
        if isinstance(value, _PLAIN) and name in vars(copy):
            setattr(copy, name, value)
    return copy


def require_training(model):
    """Refuses a model that `fit` would not tell that it is training."""
    if "training" not in inspect.signature(model.call).parameters:
        raise ValueError(
            "`call` of a class of models must have an argument `training`, by which its members "
            "know that they are trained. "
            f"Received: {type(model).__name__}, call{inspect.signature(model.call)}"
        )


def _kinds(layer):
    """The classes of the layers that do something: no models, nor the inputs of a Sequential."""
    return [
        type(inner)
        for inner in flatten_layers(layer)
        if not isinstance(inner, (keras.Model, keras.layers.InputLayer))
    ]


def _save_weights_alone(model):
    """Lets a model refuse to be saved as a whole: its class would make other layers."""

    def get_config():
        raise ValueError(
            "A model whose layers are not those that its constructor makes cannot be loaded from "
            "its config: use `save_weights`, and load them into a copy that was made alike; or "
            f"save `collapse` of a converted model. Received: {type(model).__name__}"
        )

    model.get_config = get_config


def _inputs_of(model):
    """The names of the arguments of `call` that are inputs."""
    return [
        name
        for name, parameter in inspect.signature(model.call).parameters.items()
        if name not in ("training", "mask") and parameter.default is inspect.Parameter.empty
    ]


def _map_shapes(function, shape):
    """`function` of each shape in a structure of these."""
    if isinstance(shape, dict):
        return {key: _map_shapes(function, one) for key, one in shape.items()}
    if all(one is None or isinstance(one, int) for one in shape):
        return function(tuple(shape))
    return [_map_shapes(function, one) for one in shape]
