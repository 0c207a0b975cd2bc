"""Whether a copy of a model gives the model's outputs, tried on a small batch."""

import warnings

import keras
import numpy as np

from late_phase.keras.private import flatten_layers
from late_phase.keras.reestimation import calls_replaced

_BATCH = 2
_SIZES = (
    8,
    32,
    128,
)  # of dimensions that the signature leaves open: the first that the model takes
_DRAWS = (
    lambda random, shape: random.normal(size=shape),
    lambda random, shape: random.integers(
        0, 2, shape
    ),  # for floats that stand for tokens, or may not be negative
)

# The largest difference that rounding explains, relative to the largest value: some 1e4 units in the last place of 32 bits and 30 of 16,
# which deep networks stay far below. In 64 bits the fused BatchNorm's epsilon, a float, is most of it.
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
    with keras.StatelessScope():  # which keeps what calls assign from the variables: states of stateful layers and of random numbers
        inputs, expected, reason = (
            _made_inputs(model) if probe is None else (probe, _values(model, probe), None)
        )
        if reason:
            _warn(
                f"no inputs could be made from the signature. Pass `probe`, inputs for the model. Received: {reason}"
            )
            return
        actual = _values(copy, inputs)
        tolerance = max(_TOLERANCE.get(layer.compute_dtype, 0) for layer in flatten_layers(model))
        if _difference(expected, actual) <= tolerance:
            return
        if _difference(expected, _values(model, inputs)) > tolerance:
            _warn("they are random in inference, too. Received: other outputs in a second call")
            return
        raise ValueError(
            "A copy must give the outputs of its model; the config of a layer of your own must have all that its outputs depend on. "
            f"Received: outputs that differ by {_difference(expected, actual):.2g} of the largest, "
            f"because of {_origin(model, copy, pairs, inputs, tolerance)}"
        )


def _warn(reason):
    warnings.warn(
        f"The outputs of the copy have not been compared with those of the model: {reason}",
        stacklevel=4,
    )


def _values(model, inputs):
    """The model's outputs, and the inputs of its last layer, as a softmax may hide a lot."""
    outputs, ((arguments, _),) = _call(model, inputs, [model.layers[-1]])
    return _arrays(outputs) + _arrays(arguments)


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
    """(inputs with finite outputs, the values there, None), or (None, None, the reason)."""
    signature = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    open_dimensions = any(None in x.shape[1:] for x in model.inputs)
    for size in _SIZES if open_dimensions else _SIZES[:1]:
        for draw in _DRAWS:
            random = np.random.default_rng(0)
            try:
                inputs = keras.tree.map_structure(
                    lambda spec: _input(spec, size, draw, random), signature
                )
                values = _values(model, inputs)
            except Exception as error:  # whatever a layer raises for inputs that it does not take
                reason = f"{type(error).__name__}: {error}"
                continue
            if all(np.isfinite(np.float64(y)).all() for y in values if _is_float(y)):
                return inputs, values, None
            reason = "outputs that are not finite"
    return None, None, reason


def _input(spec, size, draw, random):
    shape = [
        _BATCH if spec.shape[0] is None else spec.shape[0],
        *(size if n is None else n for n in spec.shape[1:]),
    ]
    if spec.dtype == "string":
        raise ValueError(f"{spec.name} takes strings")
    return keras.ops.cast(
        draw(random, shape)
        if keras.backend.is_float_dtype(spec.dtype)
        else random.integers(0, 2, shape),
        spec.dtype,
    )


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
