"""Members in any Keras layer: of all its trained weights, or of those that are chosen by name."""

import functools
import re
import types

import keras

from late_phase.keras.members import EqualRows, MemberLayer, each_member, load_rows, register
from late_phase.keras.own_models import made_again
from late_phase.keras.private import (
    add_rows,
    flatten_layers,
    inner_layers,
    own_variables,
    rows_lent,
)


def patterns_of(weights):
    """`weights`, a pattern or several, as a list."""
    patterns = [weights] if isinstance(weights, str) else weights
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(p, str) for p in patterns):
        raise ValueError(
            "`weights` must be None, a regular expression, a list of these, or a function of a "
            f"variable. Received: weights={weights!r}"
        )
    return patterns


def matcher(weights):
    """A function of a variable: whether `weights` (None, patterns, or a function) chooses it."""
    if weights is None:
        return lambda variable: True
    if callable(weights):
        return weights
    patterns = patterns_of(weights)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`weights` must be a regular expression. Received: weights={pattern!r}: {error}"
            ) from error
    return lambda variable: any(re.search(pattern, variable.path) for pattern in patterns)


def places(layer, variables):
    """The variables' indices in `layer.weights`: the same in a copy, where names may differ."""
    chosen = {id(variable) for variable in variables}
    return [i for i, variable in enumerate(layer.weights) if id(variable) in chosen]


def _are_places(weights):
    return isinstance(weights, (list, tuple)) and all(type(one) is int for one in weights)


def lora_of(layer):
    """Where inside a layer LoRA is enabled, which its config may not have: [index, rank, alpha]."""
    return [
        [index, inner.lora_rank, inner.lora_alpha]
        for index, inner in enumerate(flatten_layers(layer))
        if getattr(inner, "lora_enabled", False)
    ]


def enable_lora(layer, lora):
    """Enables LoRA inside a built layer where `lora_of` a like one says so."""
    layers = flatten_layers(layer)
    for index, rank, alpha in lora:
        if not layers[index].lora_enabled:
            layers[index].enable_lora(rank, lora_alpha=alpha)
        layers[index].lora_alpha = alpha  # which Keras's Dense loses when it is built with LoRA


@register
class Members(MemberLayer):
    """Any Keras layer, with members in its trained weights, or in some of them.

    The weights that are chosen get a row per member, [K, ...]; the others are base weights. In a
    training call the layer sees the row of one member, chosen by `LatePhaseOptimizer`; in inference
    it sees the mean of the members. So every small part of a network can be late-phase: the scales
    of normalisations, biases, attention, prompt vectors, LoRA factors. The layer may be a block of
    layers, or a model, and may have been trained before: all members start with its weights.

    Only trained weights have members. Statistics, as of BatchNormalization inside a block, are
    shared by the members and follow every minibatch; `late_phase.keras.BatchNormalization` has its
    own for each member.

    LoRA is enabled before (`layer.enable_lora(rank)`), on the layer itself or inside of it;
    `Members(layer, members=K, weights="lora")` then gives members to the factors.

    Example:

    >>> import keras, late_phase.keras
    >>> norm = late_phase.keras.Members(keras.layers.LayerNormalization(), members=10)
    >>> print(norm(keras.ops.ones((2, 8))).shape, norm.layer.gamma.shape)
    (2, 8) (10, 8)
    >>> attention = keras.layers.MultiHeadAttention(2, 4)
    >>> attention = late_phase.keras.Members(attention, members=10, weights="bias")
    >>> x = keras.ops.ones((2, 3, 8))
    >>> print(attention(x, x).shape, len(attention.member_variables()))
    (2, 3, 8) 4

    Args:
      layer: a Keras layer, without members.
      members: K, the number of members.
      weights: which of the layer's trained weights have members: a regular expression that matches
        their path, as `summary` prints it; a list of these, of which one matches; a function that
        takes a variable and returns a bool; None: all.
      **kwargs: the options of every Keras layer. `name`, `dtype` and `trainable` are those of
        `layer`, unless given.

    Call arguments:
      inputs: the first argument of `layer`. Further ones follow, as in `layer`.
      training: whether to use the weights of one member.

    Raises:
      ValueError: `layer` has members already, or is a BatchNormalization of which all weights are
        chosen; or `weights` chooses nothing.
    """

    def __init__(self, layer, members, weights=None, **kwargs):
        if not isinstance(layer, keras.Layer):
            raise ValueError(f"`layer` must be a Keras layer. Received: layer={layer!r}")
        if type(layer) is keras.layers.BatchNormalization and weights is None:
            raise ValueError(
                "`layer` must not be BatchNormalization, whose statistics need members, too: use "
                f"late_phase.keras.BatchNormalization. Received: layer={layer.name}"
            )
        for inner in flatten_layers(layer):
            if isinstance(inner, MemberLayer):
                raise ValueError(
                    "`layer` must be without members. "
                    f"Received: layer={layer.name}, with members in {inner.name}"
                )
        own = {"name": layer.name, "dtype": layer.dtype_policy, "trainable": layer.trainable}
        super().__init__(members, autocast=False, **{**own, **kwargs})
        self.layer = layer
        self.supports_masking = layer.supports_masking
        # In a namespace, because Keras would count variables in an attribute's list once more.
        self._parts = types.SimpleNamespace(
            weights=weights,
            chooses=None if _are_places(weights) else matcher(weights),
            variables=[],
            lora=(),
        )
        # One that was loaded claims to be built before its layers are.
        if layer.built and (layer.weights or not self._is_built_by_calls()):
            self._give_members()

    def _give_members(self):
        """Once the layer has its weights."""
        parts = self._parts
        enable_lora(self.layer, parts.lora)
        trained = self.layer.trainable_variables
        if parts.chooses is None:
            parts.variables = [self.layer.weights[place] for place in parts.weights]
        else:
            parts.variables = [v for v in trained if parts.chooses(v)]
        if not parts.variables:
            raise ValueError(
                "`weights` must choose a trained weight of the layer. "
                f"Received: weights={parts.weights!r} for "
                f"{', '.join(v.path for v in trained) or f'{self.layer.name}, which has none'}"
            )
        for inner in flatten_layers(self.layer):
            if isinstance(inner, keras.layers.SpectralNormalization) and any(
                variable is inner.kernel for variable in parts.variables
            ):
                raise ValueError(
                    "SpectralNormalization assigns the weight that it normalises in every training "
                    "call, so that weight cannot have members; choose others by `weights`. "
                    f"Received: weights={parts.weights!r} for {inner.kernel.path}"
                )
        for variable in parts.variables:
            add_rows(variable, self.members, EqualRows, self.rows_changed())
            self.adopt(variable, variable.regularizer)
        # A layer that saves its weights in its own way, such as a kernel with LoRA merged into it,
        # does not expect rows.
        for layer in flatten_layers(self.layer):
            if any(hasattr(v, "late_phase_members") for v in own_variables(layer)):
                base = keras.layers.Layer.save_own_variables
                layer.save_own_variables = functools.partial(base, layer)
                layer.load_own_variables = functools.partial(load_rows, layer)
                layer.quantize = self.quantize
        self.built = True

    def __call__(self, *args, **kwargs):
        if not self.built:
            # On symbols, for whatever arguments the layer takes.
            args_like, kwargs_like = keras.tree.map_structure(_like, (args, kwargs))
            self.layer(*args_like, **kwargs_like)
            self._give_members()
        return super().__call__(*args, **kwargs)

    def build(self, input_shape):
        if not self.built:
            if self._is_built_by_calls():
                self.layer(keras.KerasTensor(input_shape, self.compute_dtype))
            else:
                self.layer.build(input_shape)
            self._give_members()

    def build_from_config(self, config):
        if not self._is_built_by_calls():  # else by that with which its model is made again
            super().build_from_config(config)

    def _is_built_by_calls(self):
        """Whether the layer is a block without a `build`, so that a call makes its weights."""
        return type(self.layer).build is keras.layers.Layer.build and bool(inner_layers(self.layer))

    def member_variables(self):
        """The variables [K, ...] inside the layer."""
        return list(self._parts.variables)

    def call(self, inputs, *args, training=False, **kwargs):
        rows = [(v, self.row(v, training)) for v in self._parts.variables]
        with rows_lent(rows):
            return self.layer(inputs, *args, **kwargs)

    def call_members(self, inputs, *args, mask=None, **kwargs):
        return each_member(
            self, self.members, inputs, *args, mask=mask, takes_mask=self.layer, **kwargs
        )

    def compute_mask(self, inputs, previous_mask):
        return self.layer.compute_mask(inputs, previous_mask)

    def compute_output_spec(self, *args, **kwargs):
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # from `call`

    def compute_output_shape(self, *args, **kwargs):
        return self.layer.compute_output_shape(*args, **kwargs)

    def plain_layer(self):
        return made_again(self.layer, self.layer.get_config())

    def get_config(self):
        parts = self._parts
        weights = parts.weights
        if callable(weights):  # which a file cannot hold
            weights = places(self.layer, parts.variables)
        return {
            **super().get_config(),
            "layer": keras.saving.serialize_keras_object(self.layer),
            "weights": weights,
            "lora": lora_of(self.layer),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        layer, lora = keras.saving.deserialize_keras_object(config.pop("layer")), config.pop("lora")
        return cls.with_lora(layer, lora, **config)

    @classmethod
    def with_lora(cls, layer, lora, **kwargs):
        """`Members(layer, **kwargs)`, whose layer gets LoRA as `lora_of` gives it."""
        if layer.built:
            enable_lora(layer, lora)
        made = cls(layer, **kwargs)
        made._parts.lora = lora
        return made


def _like(x):
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        return x
    return keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype))
