"""All members' predictions, averaged, from one pass with the members folded into the batch.

A tensor is per member, [K*N, ...] with the rows of member 0 first, from the first layer with
members on; what comes before is computed once.
"""

import functools
import inspect

import keras
import tensorflow as tf

from late_phase.keras import own_models
from late_phase.keras.conversion import require_built
from late_phase.keras.members import MemberLayer, each_member, register, split_members
from late_phase.keras.own_models import has_graph
from late_phase.keras.private import flatten_layers, run_through_graph


def ensemble(model, activation=None):
    """A model whose output is the mean of the predictions of the members of `model`.

    Each member has its own weights and statistics; all of them run in one pass. The ensemble shares
    the layers of `model`, so it follows its training; it is for inference. `collapse` costs less
    and is what late-phase weights are for; an ensemble shows how much the members differ. Keras
    saves it like any model, unless a nested model with members is called both on what depends on
    members and on what does not.

    A member's statistics in BatchNormalization cover a K-th of the minibatches, and are noisier
    than their mean, which `collapse` uses. `reestimate_batch_norm(ensemble(model), dataset)`
    estimates each member's from the whole dataset. It writes them to the layers of `model`.

    Example:

    >>> import keras, late_phase.keras
    >>> head = late_phase.keras.Dense(4, members=10)  # returns logits
    >>> model = keras.Sequential([keras.Input((8,)), head])
    >>> ensemble = late_phase.keras.ensemble(model, activation="softmax")
    >>> probabilities = ensemble.predict(keras.ops.ones((2, 8)), verbose=0)
    >>> probabilities.shape, probabilities.sum(axis=1).round(5).tolist()
    ((2, 4), [1.0, 1.0])

    Args:
      model: a model with layers that have members, also inside nested models. Sequential and
        Functional ones run once for all members; one with a `call` of your own runs once per
        member, and so do other layers with such layers inside, such as `Bidirectional`.
      activation: applied to each member's output before the mean. A model that returns logits needs
        its "softmax" or "sigmoid" here, so that probabilities are averaged, not logits.

    Returns:
      A Functional model with the inputs of `model`, not compiled.

    Raises:
      ValueError: there are no members, or layers differ in their number; when it is called, if a
        layer is stateful.
    """
    require_built(model)
    layers = [layer for layer in flatten_layers(model) if isinstance(layer, MemberLayer)]
    members = sorted({layer.members for layer in layers})
    if len(members) != 1:
        raise ValueError(
            f"`model` must have layers with members, all with the same number of members. "
            f"Received: members={members}"
        )
    fold = _Fold(members[0])
    inputs, like = _inputs(model)
    outputs = keras.tree.map_structure(
        lambda x: MeanOfMembers(
            members[0], activation, dtype="float64" if x.dtype == "float64" else "float32"
        )(x),
        keras.tree.pack_sequence_as(like, fold.run(model, inputs)),
    )
    return keras.Model(inputs, outputs, name=f"{model.name}_ensemble")


def _inputs(model):
    """New inputs of a model, in the structure that it takes, and the structure of its outputs."""
    if not has_graph(model):
        inputs = own_models.signature(model)
        return inputs, model(inputs)
    made = [keras.Input(batch_shape=x.shape, dtype=x.dtype, name=x.name) for x in model.inputs]
    if isinstance(model, keras.Sequential):
        return made[0], model.outputs[0]
    return keras.tree.pack_sequence_as(model.input, made), model.output


class _Fold:
    """Calls layers on symbolic tensors, of which it knows which are per member."""

    def __init__(self, members):
        self._members = members
        self._per_member = {}  # id -> the tensor; holding it keeps the id its own
        self._replicas = {}  # id -> (the tensor, its replicas), of tensors that are not per member
        # Of a layer with members; or of a nested model and which of its inputs are per member.
        self._stand_ins = {}

    def run(self, model, inputs):
        """The outputs of `model`, flat, all per member."""
        if isinstance(model, keras.Sequential):
            outputs = inputs
            for layer in model.layers:
                outputs = self._call(layer, outputs)
        elif has_graph(model):
            outputs = run_through_graph(model, inputs, self._call)
        else:
            outputs = self._call(model, inputs)
        return [self._for_members(x) for x in keras.tree.flatten(outputs)]

    def _call(self, layer, *args, **kwargs):
        tensors = [
            x for x in keras.tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)
        ]
        if _has_members(layer) and has_graph(layer):
            flags = tuple(id(x) in self._per_member for x in tensors)
            outputs = self._stand_in((layer, flags), lambda: self._nested(layer, flags))(
                *args, **kwargs
            )
            return self._mark(outputs)
        elif _has_members(layer):
            stand_in = self._stand_in(
                layer, lambda: AllMembers(layer, self._members, name=layer.name)
            )
        elif any(id(x) in self._per_member for x in tensors):
            stand_in = layer
        else:
            return layer(*args, **kwargs)
        args, kwargs = keras.tree.map_structure(
            lambda x: self._for_members(x) if isinstance(x, keras.KerasTensor) else x,
            (args, kwargs),
        )
        return self._mark(stand_in(*args, **kwargs))

    def _nested(self, model, per_member):
        inputs = [
            keras.Input(batch_shape=(None, *x.shape[1:]), dtype=x.dtype) for x in model.inputs
        ]
        self._mark([x for x, flag in zip(inputs, per_member, strict=True) if flag])
        if isinstance(model, keras.Sequential):
            return keras.Model(inputs[0], self.run(model, inputs[0])[0])
        packed = keras.tree.pack_sequence_as(model.input, inputs)
        return keras.Model(
            packed, keras.tree.pack_sequence_as(model.output, self.run(model, packed))
        )

    def _stand_in(self, key, make):
        if key not in self._stand_ins:
            self._stand_ins[key] = make()
        return self._stand_ins[key]

    def _mark(self, tensors):
        self._per_member.update((id(x), x) for x in keras.tree.flatten(tensors))
        return tensors

    def _for_members(self, x):
        if id(x) in self._per_member:
            return x
        if id(x) not in self._replicas:
            self._replicas[id(x)] = x, self._mark(Replicas(self._members)(x))
        return self._replicas[id(x)][1]


def _has_members(layer):
    return isinstance(layer, keras.Layer) and any(
        isinstance(inner, MemberLayer) for inner in flatten_layers(layer)
    )


@register
class Replicas(keras.layers.Layer):
    """[N, ...] -> [K*N, ...]: the same for each member."""

    def __init__(self, members, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.members = members
        self.supports_masking = True
        self.built = True

    def call(self, inputs):
        return tf.concat([inputs] * self.members, axis=0)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else keras.ops.concatenate([mask] * self.members, axis=0)

    def compute_output_spec(self, inputs):
        batch = inputs.shape[0]
        return keras.KerasTensor(
            (None if batch is None else self.members * batch, *inputs.shape[1:]), inputs.dtype
        )

    def get_config(self):
        return {**super().get_config(), "members": self.members}


@register
class AllMembers(keras.layers.Layer):
    """A layer with members, or with such layers in it, each member on its part of [K*N, ...]."""

    def __init__(self, layer, members, **kwargs):
        super().__init__(**{"dtype": layer.dtype_policy, **kwargs})
        self.layer, self.members = layer, members
        self.supports_masking = layer.supports_masking
        self.supports_jit = layer.supports_jit
        self._takes_mask = "mask" in inspect.signature(self._pass()).parameters

    def _pass(self):
        """The layer's pass over all members; wrappers, and blocks of one's own, have none."""
        general = functools.partial(each_member, self.layer, self.members)
        return getattr(self.layer, "call_members", general)

    def build(self, input_shape):
        if not self.layer.built:
            self.layer.build(input_shape)
        self.built = True

    def call(self, inputs, *args, mask=None, **kwargs):
        masks = {"mask": mask} if self._takes_mask else {}
        return self._pass()(inputs, *args, **kwargs, **masks)

    def compute_mask(self, inputs, mask=None):
        return self.layer.compute_mask(inputs, mask)

    def compute_output_spec(self, inputs, *args, mask=None, **kwargs):
        return self.layer.compute_output_spec(inputs, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "layer": keras.saving.serialize_keras_object(self.layer),
            "members": self.members,
        }

    @classmethod
    def from_config(cls, config):
        layer = keras.saving.deserialize_keras_object(config["layer"])
        # Models of 0.1.0 have no `members`: then it is the layer's.
        return cls(**{"members": getattr(layer, "members", None), **config, "layer": layer})


@register
class MeanOfMembers(keras.layers.Layer):
    """[K*N, ...] -> [N, ...]: the mean over the members, each after `activation`."""

    def __init__(self, members, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.members = members
        self.activation = keras.activations.get(activation)
        self.supports_masking = True
        self.built = True

    def call(self, inputs):
        return tf.reduce_mean(split_members(self.activation(inputs), self.members), axis=0)

    def compute_mask(self, inputs, mask=None):
        return (
            None if mask is None else keras.ops.split(mask, self.members, axis=0)[0]
        )  # all members have the same

    def compute_output_shape(self, input_shape):
        return (
            None if input_shape[0] is None else input_shape[0] // self.members,
            *input_shape[1:],
        )

    def get_config(self):
        return {
            **super().get_config(),
            "members": self.members,
            "activation": keras.activations.serialize(self.activation),
        }
