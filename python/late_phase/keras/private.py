"""Every name of Keras and TensorFlow that late_phase uses although it is not public.

Any release may change these, so only releases of Keras are admitted with which
tests/python/keras/private_test.py passes. That test has a case per name, which says what to rework
here if the name is gone, and it allows no such name in any other file.
"""

import contextlib
import threading

import keras
import numpy as np
import tensorflow as tf

_RELEASES = ("3.15",)


def require_known_release(version=keras.__version__):
    """Raises ImportError unless the names below are known to fit this release of Keras."""
    if ".".join(version.split(".")[:2]) not in _RELEASES:
        raise ImportError(
            f"late_phase.keras works with Keras {' and '.join(_RELEASES)}. Received: Keras "
            f"{version}. To install one of those: pip install 'keras=={_RELEASES[0]}.*'"
        )


require_known_release()


def flatten_layers(layer, include_self=True):
    """The layer and all layers inside it, at any depth, each once."""
    return layer._flatten_layers(include_self=include_self)


def inner_layers(layer):
    """The layers directly inside a layer, in the order in which they were made."""
    return layer._flatten_layers(include_self=False, recursive=False)


def constructor_arguments(model):
    """What a model of one's own class was made with; None if that is more than plain values."""
    return None if model._auto_config is None else model._auto_config.config


class _Bare(keras.Model):
    """Has the attributes that Keras gives to every model of one's own class."""


def own_attributes(model):
    """By name, a model's attributes that are its class's own, not Keras's or TensorFlow's."""
    internal = vars(_Bare())
    return {
        name: value
        for name, value in vars(model).items()
        if name not in internal and not name.startswith("_self_")  # TensorFlow's, for checkpoints
    }


def layer_slots(model):
    """By place, the layers among a model's attributes, and in lists, tuples and dicts there."""
    found = {}
    for name, value in own_attributes(model).items():
        _map_layers(value, name, found.__setitem__)
    return found


def exchange_layers(model, layers):
    """Puts other layers, by the places of `layer_slots`, in place of a model's own."""
    tracker = model._tracker

    def exchanged(place, layer):
        if tracker.is_in_store("layers", layer):
            tracker.replace_tracked_value("layers", layer, layers[place])  # in the same order
        return layers[place]

    for name in dict.fromkeys(place.partition("/")[0] for place in layers):
        setattr(model, name, _map_layers(getattr(model, name), name, exchanged))


def _map_layers(value, place, function):
    """A structure with function(place, layer) in place of each layer."""
    if isinstance(value, keras.Layer):
        return function(place, value)
    if isinstance(value, dict):
        return {key: _map_layers(one, f"{place}/{key}", function) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_map_layers(one, f"{place}/{i}", function) for i, one in enumerate(value)]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def is_functional(model):
    """Whether a model is Functional, a class that Keras does not export, or of a class of these."""
    return any(cls.__name__ == "Functional" for cls in type(model).__mro__)


def producer(tensor):
    """Of a symbolic tensor: the operation that made it, the inputs, and which output it is."""
    operation, node, index = tensor._keras_history
    return operation, operation._inbound_nodes[node].input_tensors, index


def run_through_graph(model, inputs, call):
    """The outputs of a Functional model that calls its operations through `call`."""
    return model._run_through_graph(inputs, call_fn=call)


def outermost_layer(layer):
    """The layer, usually a model, whose call led to the call of `layer` that is running."""
    return layer._get_call_context().entry_layer


def is_first_use(layer, graph):
    """Whether no layer has asked yet in the outermost running call, of this replica and graph."""
    context = layer._get_call_context()
    graphs = context.get_value("late_phase_graphs", ())
    context.set_value("late_phase_graphs", (*graphs, graph))
    return not any(graph is other for other in graphs)


def mask_of(tensor):
    """The mask that a tensor carries from layer to layer; None if it has none."""
    return tensor._keras_mask if hasattr(tensor, "_keras_mask") else None


def carry_mask(tensor, mask):
    """Lets a tensor carry a mask."""
    # To private_test, an attribute that is set by name is our own.
    setattr(tensor, "_keras_mask", mask)  # noqa: B010


def own_variables(layer):
    """A layer's own variables, without those of inner layers, in the order of saving."""
    return layer._trainable_variables + layer._non_trainable_variables


def learning_rate_of(optimizer):
    """The source of the learning rate: a variable, function or schedule, not its value."""
    return optimizer._learning_rate


def minibatches_of(optimizer):
    """How many minibatches an optimizer has seen; `iterations` counts updates."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    return int(optimizer._iterations.numpy())


def strategy_of(optimizer):
    """The tf.distribute strategy under which an optimizer was made."""
    return optimizer._distribution_strategy


def variable_key(optimizer, variable):
    """What identifies a variable: the same for all its copies under a strategy."""
    return optimizer._var_key(variable)


def has_decay(optimizer, variable):
    """Whether a variable was not excluded from weight decay."""
    return optimizer._use_weight_decay(variable)


def require_known(optimizer, variables):
    """Raises a ValueError if an optimizer was built without one of the variables."""
    optimizer._check_variables_are_known(variables)


def track(optimizer, variable):
    """Makes a variable part of the optimizer's state, which is saved and restored."""
    optimizer._track_variable(variable)


def merge_call(update, strategy, *args):
    """Calls update(strategy, *args) once for all replicas, whose `args` it is given together."""
    tf.__internal__.distribute.interim.maybe_merge_call(update, strategy, *args)


class _WatchedVariable(keras.Variable):
    def assign(self, value):
        value = super().assign(value)
        self.after_assignment()
        return value

    def _restore_from_tensors(self, restored_tensors):
        restored = super()._restore_from_tensors(restored_tensors)
        self.after_assignment()
        return restored


def watch(variable, after_assignment):
    """Calls `after_assignment()` whenever a Keras variable is assigned, loaded or restored."""
    variable.__class__ = _WatchedVariable
    variable.after_assignment = after_assignment


_lent = threading.local()  # as each replica of tf.distribute has a thread


class _MemberVariable(_WatchedVariable):
    """[K, ...] to all but the layer that it was made by, to which a call lends one row, [...]."""

    # Rows are cast, not all of them at once.
    _autocast = property(lambda self: self._row() is not None and vars(self)["_autocast"])

    def _row(self):
        return getattr(_lent, "rows", {}).get(id(self))

    @property
    def value(self):
        row = self._row()
        return super().value if row is None else self._maybe_autocast(row)

    @property
    def shape(self):
        row = self._row()
        return super().shape if row is None else row.shape

    @property
    def ndim(self):
        return len(self.shape)

    def assign(self, value):
        if self._row() is not None:
            raise ValueError(
                "A weight with members must not be assigned by its layer in a call. "
                f"Received: an assignment to {self.path}"
            )
        return super().assign(value)


def add_rows(variable, members, equal_rows, after_assignment):
    """Makes a Keras variable [...] one of [members, ...], in place, with equal rows.

    Args:
      variable: the variable, which a layer has made and refers to.
      members: the number of rows.
      equal_rows: a function of an initializer of [...] to that of [members, ...].
      after_assignment: as in `watch`.
    """
    if variable._value is None:  # made in a symbolic call, at whose end it gets its value
        variable._initializer = equal_rows(variable._initializer)
    else:
        strategy = getattr(variable._value, "distribute_strategy", tf.distribute.get_strategy())
        with tf.init_scope(), strategy.scope():
            if not variable._value.is_initialized():
                raise ValueError(
                    "A layer must be built before a training step is traced for its weights to get "
                    "members: call the model once, or give it an Input. "
                    f"Received: {variable.path}, without a value yet"
                )
            variable._initialize(np.repeat(variable.numpy()[np.newaxis], members, axis=0))
    variable._shape = (members, *variable._shape)
    variable._ndim += 1
    variable.__class__ = _MemberVariable
    variable.after_assignment = after_assignment


@contextlib.contextmanager
def rows_lent(pairs):
    """Lets variables of `add_rows` be the given rows: (variable, row), in this thread."""
    before = getattr(_lent, "rows", {})
    _lent.rows = {**before, **{id(variable): row for variable, row in pairs}}
    try:
        yield
    finally:
        _lent.rows = before
