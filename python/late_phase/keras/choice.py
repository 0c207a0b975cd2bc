"""Which weights of a model `convert` gives members: by names of parts, patterns, or a function."""

import keras

from late_phase.keras import own_models
from late_phase.keras.any_layer import matcher, patterns_of
from late_phase.keras.members import MemberLayer
from late_phase.keras.own_models import has_graph
from late_phase.keras.private import flatten_layers, inner_layers, is_functional, producer

_NORMALIZATIONS = (
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)
_HEADS = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)


class Choice:
    """What is to get members.

    Attributes:
      layers: those that are chosen as a whole.
      variables: the trained weights, of these layers and others.
    """

    def __init__(self, model, weights):
        self.layers, self.variables = [], []
        if callable(weights):
            self._add_variables(model, weights, weights)
        else:
            for part in patterns_of(weights):
                for name in part.split(" + "):
                    if not name.strip():  # which as a regular expression is found everywhere
                        raise ValueError(
                            "`weights` must name weights before and after each ' + '. "
                            f"Received: weights={part!r}"
                        )
                    self._add(model, name.strip())
        self.layers = list(dict.fromkeys(self.layers))
        for layer in self.layers:
            self.variables += layer.trainable_variables
        self._ids = {id(v) for v in self.variables}
        if not self.layers and not self.variables:
            raise ValueError(
                "`weights` must choose weights that the model has. "
                f"Received: weights={weights!r}, which chooses none"
            )

    def has(self, variable):
        return id(variable) in self._ids

    def _add(self, model, name):
        layers = flatten_layers(model, include_self=False)
        if name == "head":
            self.layers += heads(model)
        elif name in ("batch_norm", "normalization"):
            self.layers += [x for x in layers if _is_batch_norm(x)]
            if name == "normalization":
                for layer in layers:
                    if isinstance(layer, _NORMALIZATIONS):
                        self.variables += layer.trainable_variables
        else:
            self._add_variables(model, matcher(name), name)

    def _add_variables(self, model, chooses, weights):
        chosen = [v for v in model.trainable_variables if chooses(v)]
        if not chosen:
            frozen = [v.path for v in model.weights if chooses(v)]
            found = f"none but {frozen[0]}, which is frozen" if frozen else "none"
            raise ValueError(
                '`weights` must be "batch_norm", "head", "normalization", regular expressions that '
                "are found in paths of trained weights, or a function; several are joined by "
                f"' + '. Received: weights={weights!r}, which chooses {found}; `summary(model)` "
                "lists the paths"
            )
        self.variables += chosen


def _is_batch_norm(layer):
    return type(layer).__name__ == "BatchNormalization" or isinstance(
        layer, keras.layers.BatchNormalization
    )


def heads(model):
    """The layer that makes each output, apart from layers without weights that follow it."""
    if isinstance(model, keras.Sequential):
        return [_head_of_chain(model, model.layers)]
    outputs = model.outputs if has_graph(model) else own_models.outputs(model)
    return [_head_of_output(model, x) for x in outputs]


def _head_of_chain(model, layers):
    for layer in reversed(layers):
        if layer.weights:
            return _head_of_layer(model, layer, 0)
    raise _no_head(model, "no layer with weights")


def _head_of_output(model, tensor):
    operation, inputs, index = producer(tensor)
    while not getattr(operation, "weights", ()):
        if len(inputs) != 1:
            raise _no_head(model, f"{operation.name}, {type(operation).__name__}")
        operation, inputs, index = producer(inputs[0])
    return _head_of_layer(model, operation, index)


def _head_of_layer(model, layer, index):
    if is_functional(layer):
        return _head_of_output(model, layer.outputs[index])
    if isinstance(layer, keras.Sequential):
        return _head_of_chain(model, layer.layers)
    if isinstance(layer, _HEADS) or isinstance(layer, MemberLayer):
        return layer
    if isinstance(layer, keras.layers.RNN) or not inner_layers(layer):
        raise _no_head(model, f"{layer.name}, {type(layer).__name__}")
    return _head_of_layer(model, inner_layers(layer)[-1], 0)  # of a wrapper, or a block


def _no_head(model, received):
    return ValueError(
        "The head must be a Dense, EinsumDense or convolutional layer, which only layers without "
        f"weights follow; choose other weights by their names. Received: {received}, at the end of "
        f"{model.name}"
    )
