"""Weights with a row per member, and which row a minibatch uses.

A late-phase variable is [K, ...]. All its rows are equal until the optimizer spawns the members, so
that the mean of the rows is what inference wants at any time.
"""

import contextlib
import functools
import inspect
import threading
import weakref

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras.private import (
    carry_mask,
    flatten_layers,
    is_first_use,
    mask_of,
    outermost_layer,
    own_variables,
    watch,
)
from late_phase.keras.wrapped_updates import write_rows

_PACKAGE = "late_phase"


def register(cls):
    """Makes a class known to Keras's saving as late_phase>Name."""
    return keras.saving.register_keras_serializable(_PACKAGE)(cls)


@contextlib.contextmanager
def activations_named(layer):
    """Lets `get_config` work where an activation was set to None, which Keras cannot serialise."""
    without = [x for x in flatten_layers(layer) if getattr(x, "activation", x) is None]
    for inner in without:
        inner.activation = keras.activations.linear
    try:
        yield
    finally:
        for inner in without:
            inner.activation = None


def check_members(members):
    if isinstance(members, bool) or not isinstance(members, (int, np.integer)) or members < 1:
        raise ValueError(
            f"`members` must be an integer of at least 1. Received: members={members!r}"
        )
    return int(members)


class EqualRows(keras.initializers.Initializer):
    """The rows of a [K, ...] variable, all of them what `row` gives for one."""

    def __init__(self, row):
        self._row = keras.initializers.get(row)

    def __call__(self, shape, dtype=None):
        return tf.repeat(keras.ops.expand_dims(self._row(shape[1:], dtype), 0), shape[0], axis=0)


def mean_of_rows(variable):
    """[K, ...] -> [...]: the mean of the members; of equal rows it is exactly that row."""
    return _mean_of_rows(tf.convert_to_tensor(variable.value))


@tf.custom_gradient
def _mean_of_rows(rows):
    def gradient(of_mean):
        # Names its rows, so that the optimizer can tell it from the gradient of one member.
        members, of_mean = rows.shape[0], tf.convert_to_tensor(of_mean)  # a table's may be sparse
        return tf.IndexedSlices(
            tf.repeat(of_mean[tf.newaxis] / members, members, axis=0),
            tf.range(members),
            tf.constant(rows.shape.as_list()),
        )

    return rows[0] + tf.reduce_mean(rows - rows[0], axis=0), gradient


_only = threading.local()


@contextlib.contextmanager
def only_member(member):
    """In this thread, inference uses the rows of one member in place of the mean."""
    before = getattr(_only, "member", None)
    _only.member = member
    try:
        yield
    finally:
        _only.member = before


def the_only_member():
    """That of `only_member`; None outside of it."""
    return getattr(_only, "member", None)


def inference_row(variable):
    """[K, ...] -> [...]: what inference uses, the mean of the members or the only one."""
    member = the_only_member()
    return (
        mean_of_rows(variable) if member is None else tf.convert_to_tensor(variable.value)[member]
    )


class _Parts:
    """The parts of a tensor, one per member, as one leaf of a structure."""

    def __init__(self, tensors):
        self.tensors = tensors


def each_member(layer, members, inputs, *args, mask=None, takes_mask=None, **kwargs):
    """A layer in inference, run once for each member on its part of the batch.

    [K*N, ...] -> [K*N, ...], member 0 first. The layer has members, or layers inside it do. The
    mask is passed on if `call` of the layer, or of `takes_mask` if that is given, has a `mask`.
    """
    for inner in flatten_layers(layer):
        if getattr(inner, "stateful", False):
            raise ValueError(
                "A pass over all members has no states to keep. "
                f"Received: stateful=True in {inner.path}"
            )
    if mask is not None and "mask" in inspect.signature((takes_mask or layer).call).parameters:
        kwargs["mask"] = mask
    if "training" in inspect.signature(layer.call).parameters:
        kwargs["training"] = False

    def split(x):
        if isinstance(x, tf.SparseTensor):
            return _Parts(tf.sparse.split(x, members, axis=0))
        if not tf.is_tensor(x):
            return x
        parts = tf.split(x, members)
        own = mask_of(x) if mask is None or x is not inputs else mask
        if own is not None:  # which layers inside may look for, whatever their arguments
            for part, of_part in zip(parts, tf.split(own, members)):
                carry_mask(part, of_part)
        return _Parts(parts)

    parts, outputs = keras.tree.map_structure(split, (inputs, args, kwargs)), []
    for k in range(members):
        own_inputs, own_args, own_kwargs = keras.tree.map_structure(
            lambda part: part.tensors[k] if isinstance(part, _Parts) else part, parts
        )
        with only_member(k):
            outputs.append(layer(own_inputs, *own_args, **own_kwargs))
    return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)


def array_of(rows, member=None):
    """Of an array [K, ...] a member's row, or the mean."""
    return rows.mean(axis=0, dtype=np.float64) if member is None else rows[member]


def split_members(x, members):
    """[K*N, ...], member 0 first -> [K, N, ...]."""
    shape = tf.shape(x)
    split = tf.reshape(x, tf.concat([[members, shape[0] // members], shape[1:]], axis=0))
    split.set_shape([members, None, *x.shape[1:]])
    return split


def join_members(x):
    """[K, N, ...] -> [K*N, ...]."""
    joined = tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], axis=0))
    joined.set_shape([None, *x.shape[2:]])
    return joined


def along_members(variable, x):
    """[K, C] -> [K, 1, ..., 1, C], to go with x [K, N, ..., C]."""
    return tf.reshape(
        variable.value, [variable.shape[0], *[1] * (len(x.shape) - 2), variable.shape[1]]
    )


def load_rows(layer, store):
    """Loads what `keras.layers.Layer.save_own_variables` has saved of a layer's own weights."""
    for i, variable in enumerate(own_variables(layer)):
        saved = store[str(i)].shape if str(i) in store else None
        members = getattr(variable, "late_phase_members", None)
        if saved and members and len(saved) == len(variable.shape) and saved[0] != members:
            raise ValueError(
                "`members` must be that of the saved weights. "
                f"Received: members={members} in {variable.path}, {saved[0]} saved"
            )
    keras.layers.Layer.load_own_variables(layer, store)


def _rows_changed(layer):
    """Rows of a weight of `layer()` have been assigned, by whoever is not training it."""
    if layer() is not None and layer()._optimizer() is not None:
        layer()._optimizer().rows_changed()


class MemberLayer(keras.layers.Layer):
    """A layer some of whose weights have a row per member: the base of layers of your own.

    `build` makes weights with `add_member_weight`, and `call` reads them with `row`. For
    `collapse`, the class attribute `plain_class` names the layer that it then becomes: one with the
    same weights in the same order, made from the same config without what `own_options` lists.

    Example:

    >>> import keras, late_phase.keras
    >>> class Scale(late_phase.keras.MemberLayer):
    ...     def build(self, shape):
    ...         self.scale = self.add_member_weight((shape[-1],), "ones", name="scale")
    ...     def call(self, inputs, training=False):
    ...         return inputs * self.row(self.scale, training)
    >>> layer = Scale(members=10)
    >>> print(layer(keras.ops.ones((2, 8))).shape, layer.scale.shape)
    (2, 8) (10, 8)

    Args:
      members: K, the number of members.
      **kwargs: the options of every Keras layer: `name`, `dtype`, `trainable`.

    Raises:
      ValueError: `members` is not a positive integer, or `dtype` is quantized.
    """

    plain_class = None
    own_options = ("members",)

    def __init__(self, members, **kwargs):
        super().__init__(**kwargs)
        self.members = check_members(members)
        if self.quantization_mode is not None:
            raise ValueError(
                f"`dtype` must be without quantization in {type(self).__name__} with members. "
                f"Received: dtype={self.dtype_policy.name}"
            )
        self._optimizer = lambda: None  # a weak reference, once an optimizer is attached
        self._last_training = False  # of the calls of `row`

    def add_member_weight(self, shape, initializer, regularizer=None, constraint=None, **kwargs):
        """Makes a weight [K, *shape].

        Args:
          shape: the shape of one row.
          initializer: for one row; all members start equal.
          regularizer: applied to the row that a call uses: a member's in training, the mean in
            inference.
          constraint: applied to a member after each of its updates.
          **kwargs: the other arguments of `add_weight`.

        Returns:
          The variable.
        """
        # Not cast as a whole in mixed precision: a call reads one row.
        variable = self.add_weight(
            shape=(self.members, *shape),
            initializer=EqualRows(initializer),
            constraint=constraint,
            autocast=False,
            **kwargs,
        )
        self.adopt(variable, keras.regularizers.get(regularizer))
        watch(variable, self.rows_changed())
        return variable

    def adopt(self, variable, regularizer):
        """Makes a variable [K, ...] one of this layer's weights with members."""
        variable.late_phase_members, variable.late_phase_layer = self.members, weakref.ref(self)
        if regularizer is not None:
            variable.regularizer = lambda _: regularizer(
                variable.late_phase_layer()._row_of_last_call(variable)
            )

    def rows_changed(self):
        """What is to be called when rows have been assigned, by whoever is not training them."""
        return functools.partial(_rows_changed, weakref.ref(self))

    def member_variables(self):
        """The variables [K, ...] of this layer."""
        return [v for v in own_variables(self) if hasattr(v, "late_phase_members")]

    def attach(self, optimizer):
        """Lets `optimizer` choose the member of a minibatch. `model.compile` calls this."""
        self._optimizer = weakref.ref(optimizer)

    def attached_optimizer(self):
        """The optimizer that chooses the member; None outside of training."""
        model = outermost_layer(self)
        optimizer = getattr(model, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
        if optimizer is None or optimizer is self._optimizer():
            return self._optimizer()
        if hasattr(optimizer, "attach"):
            optimizer.attach(model)
        elif self.members > 1:
            raise ValueError(
                "A model with members must be compiled with late_phase.keras.LatePhaseOptimizer, "
                f"which trains them in turn. Received: members={self.members} in {self.path}, "
                f"{type(optimizer).__name__} as the optimizer"
            )
        return self._optimizer()

    def row(self, variable, training):
        """The row of a weight that this call uses: its member's in training, else the mean.

        Args:
          variable: a weight made by `add_member_weight`.
          training: the argument of `call`.
        """
        self._last_training = self.is_training(training)
        if self._last_training:
            self._prepare_rows()
        return self._row_of_last_call(variable)

    def is_training(self, training):
        """Whether a call with this argument trains a member; not in a pass over all of them."""
        return bool(training) and the_only_member() is None

    def _prepare_rows(self):
        """Lets the optimizer prepare all rows of a training call before the first is read."""
        optimizer = self.attached_optimizer()
        if optimizer is None or not is_first_use(self, tf.compat.v1.get_default_graph()):
            return
        layers = [
            layer
            for layer in flatten_layers(outermost_layer(self))
            if isinstance(layer, MemberLayer)
        ]
        optimizer.plan(outermost_layer(self))
        optimizer.prepare_rows([v for layer in layers for v in layer.member_variables()])

    def _row_of_last_call(self, variable):
        """As `row` in the last call; also outside a call, where Keras asks for losses."""
        if not self._last_training:
            return inference_row(variable)
        optimizer = self._optimizer()
        if optimizer is None:
            member = tf.constant(0)
        else:
            member = optimizer.current_member()
        return tf.gather(variable.value, member)  # its gradient is the row's alone

    def dtype_for(self, inputs):
        """The dtype of a call: `compute_dtype`, or that of wider inputs from a wrapper."""
        return keras.backend.result_type(inputs.dtype, self.compute_dtype)

    def write_rows(self, pairs):
        """Writes the current member's row of each (state, row); all rows before `start`.

        Replicas write the mean of theirs.
        """
        rows = [row for _, row in pairs]
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            rows = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, rows)
        optimizer = self.attached_optimizer()
        indices = tf.range(self.members) if optimizer is None else optimizer.rows()
        for (variable, _), row in zip(pairs, rows):
            write_rows(variable.value, indices, row)

    # Not super's: Keras's Dense and Conv2D, from which some of these layers inherit, save kernel
    # and bias alone.

    def save_own_variables(self, store):
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store):
        load_rows(self, store)

    def call_members(self, inputs, *args, mask=None, **kwargs):
        """Inference with all members, each on its part of the batch: [K*N, ...] -> [K*N, ...].

        Here `call` runs once per member. A layer of your own may do it at once; it takes the mask
        and the states that its `call` takes.

        Args:
          inputs: those of member 0 come first.
          *args: further arguments of `call`.
          mask: as in `call`.
          **kwargs: further arguments of `call`.
        """
        return each_member(self, self.members, inputs, *args, mask=mask, **kwargs)

    def quantize(self, *args, **kwargs):
        raise NotImplementedError(
            "A layer with members cannot be quantized: collapse the model first. "
            f"Received: {self.name}"
        )

    def plain_layer(self):
        """The Keras layer without members that does what this one does in inference."""
        if self.plain_class is None:
            raise ValueError(
                "To be collapsed, the class of a layer with members must name in `plain_class` the "
                f"layer that it becomes. Received: plain_class=None in {type(self).__name__}"
            )
        return self.plain_class.from_config(
            {key: value for key, value in self.get_config().items() if key not in self.own_options}
        )

    def plain_weights(self, member=None):
        """The arrays with which `plain_layer` does so, or does what one member does.

        Here every weight has members.
        """
        return [array_of(weight, member) for weight in self.get_weights()]

    def get_config(self):
        return {**super().get_config(), "members": self.members}
