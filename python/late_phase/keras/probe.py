"""Whether a copy of a model gives the model's outputs, tried on a small batch."""

import warnings

import keras
import numpy as np

from late_phase.keras import own_models
from late_phase.keras.own_models import has_graph
from late_phase.keras.private import flatten_layers
from late_phase.keras.reestimation import calls_replaced

_BATCH = 2
# Of dimensions that the signature leaves open, the first that the model takes. The largest comes
# first because TensorFlow's convolutions on the CPU (oneDNN's) do not refuse images smaller than
# their filters: they return memory that nobody has written.
_SIZES = (128, 32, 8)
_MOST_ELEMENTS = 2**20  # of an input; a model takes moments for as many
_DRAWS = (
    lambda random, shape: random.normal(size=shape),
    # For floats that stand for tokens, or may not be negative.
    lambda random, shape: random.integers(0, 2, shape),
)

# The largest difference that rounding explains, relative to the largest value: some 1e4 units in
# the last place of 32 bits and 30 of 16, which deep networks stay far below. In 64 bits the fused
# BatchNorm's epsilon, a float, is most of it.
_TOLERANCE = {"float64": 1e-7, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.2}


def check_same_outputs(model, copy, pairs, probe=None):
    """Raises a ValueError unless `copy` gives the outputs of `model` in inference.

    The state of neither changes. If no inputs can be made and none are given, or if outputs are
    random, there is a warning instead.

    Args:
      model: a Sequential or Functional model.
      copy: of `model`, with the same inputs.
      pairs: (layer of `model`, its copy), to say where a difference comes from.
      probe: inputs; None: random ones of the model's input signature.
    """
    # Of weights too: Keras makes the factors of LoRA in 32 bits in a layer of 64.
    types = [layer.compute_dtype for layer in flatten_layers(model)]
    types += [weight.dtype for weight in model.weights]
    tolerance = max(_TOLERANCE.get(dtype, 0) for dtype in types)
    # The scope keeps what calls assign from the variables: states of stateful layers and of random
    # numbers.
    with keras.StatelessScope():
        tried = _made_inputs(model) if probe is None else [(probe, _values(model, probe), None)]
        are_random = False
        for inputs, expected, problem in tried:
            if problem:
                continue
            actual = _values(copy, inputs)
            if _difference(expected, actual) <= tolerance:
                return
            if _difference(expected, _values(model, inputs)) <= tolerance:
                raise ValueError(
                    "A copy must give the outputs of its model; the config of a layer of your own "
                    "must have all that its outputs depend on. Received: outputs that differ by "
                    f"{_difference(expected, actual):.2g} of the largest, "
                    f"because of {_origin(model, copy, pairs, inputs, tolerance)}"
                )
            are_random = True
        if are_random:
            _warn("they are random in inference, too. Received: other outputs in a second call")
        else:
            _warn(
                "no inputs could be made from the signature. Pass `probe`, inputs for the model. "
                f"Received: {problem}"
            )


def _warn(reason):
    warnings.warn(
        f"The outputs of the copy have not been compared with those of the model: {reason}",
        stacklevel=4,
    )


def _values(model, inputs):
    """The model's outputs, and the inputs of its last layer, as a softmax may hide a lot."""
    layers = model.layers[-1:] if has_graph(model) else []
    outputs, calls = _call(model, inputs, layers)
    return _arrays(outputs) + [array for arguments, _ in calls for array in _arrays(arguments)]


def _call(model, inputs, layers):
    """The outputs of `model`; and of each of `layers` (arguments, outputs) of its last call."""
    for layer in flatten_layers(model):
        if getattr(layer, "stateful", False):
            layer.reset_state()
    calls = dict.fromkeys(layers)

    def noting(layer, call):
        def noting_call(*args, **kwargs):
            calls[layer] = (args, kwargs), call(*args, **kwargs)
            return calls[layer][1]

        return {"call": noting_call}

    with calls_replaced({layer: noting(layer, layer.call) for layer in calls}):
        outputs = model(inputs, training=False)
    return outputs, [calls[layer] for layer in layers]


def _arrays(tensors):
    return [
        keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(tensors) if hasattr(y, "shape")
    ]


def _made_inputs(model):
    """Yields (inputs, the finite values there, None), or (None, None, the problem), per try."""
    signature = _signature(model)
    specs = keras.tree.flatten(signature)
    sizes = [size for size in _SIZES if all(_elements(x, size) <= _MOST_ELEMENTS for x in specs)]
    open_dimensions = any(None in x.shape[1:] for x in specs)
    for size in (sizes if open_dimensions else []) or _SIZES[-1:]:
        for draw in _DRAWS:
            random = np.random.default_rng(0)
            try:
                inputs = keras.tree.map_structure(
                    lambda spec: _input(spec, size, draw, random), signature
                )
                values = _values(model, inputs)
            except Exception as error:  # whatever a layer raises for inputs that it does not take
                yield None, None, f"{type(error).__name__}: {error}"
                continue
            if all(np.isfinite(np.float64(y)).all() for y in values if _is_float(y)):
                yield inputs, values, None
            else:
                yield None, None, "outputs that are not finite"


def _signature(model):
    if not has_graph(model):
        return own_models.signature(model)
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _shape(spec, size):
    batch = _BATCH if spec.shape[0] is None else spec.shape[0]
    return [batch, *(size if n is None else n for n in spec.shape[1:])]


def _elements(spec, size):
    return int(np.prod(_shape(spec, size)))


def _input(spec, size, draw, random):
    if spec.dtype == "string":
        raise ValueError(f"{spec.name} takes strings")
    if not keras.backend.is_float_dtype(spec.dtype):
        draw = _DRAWS[1]
    return keras.ops.cast(draw(random, _shape(spec, size)), spec.dtype)


def _is_float(y):
    return y.dtype.name.startswith(("float", "bfloat"))


def _difference(expected, actual):
    """The largest difference of an array, relative to its largest value."""
    largest = 0.0
    for y, other in zip(expected, actual):
        if y.shape != other.shape or not _is_float(y):
            difference = 0.0 if np.array_equal(y, other) else np.inf
        else:
            y, other = np.float64(y), np.float64(other)
            difference = np.abs(y - other).max(initial=0) / max(
                np.abs(y).max(initial=0), np.finfo(np.float32).tiny
            )
        largest = max(largest, np.inf if np.isnan(difference) else difference)
    return largest


def _origin(model, copy, pairs, inputs, tolerance):
    """The path of the first layer that gives other outputs for the same arguments."""
    calls = [_call(some, inputs, layers)[1] for some, layers in zip((model, copy), zip(*pairs))]
    for (layer, _), expected, actual in zip(pairs, *calls):
        if expected and actual:
            arguments, outputs = (
                _difference(_arrays(e), _arrays(a)) > tolerance for e, a in zip(expected, actual)
            )
            if outputs and not arguments:
                return layer.path
    return "an unknown layer"
