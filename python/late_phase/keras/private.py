"""Every name of Keras and TensorFlow that late_phase uses although it is not public.

Any release may change these, so pyproject.toml admits only releases of Keras with which
tests/python/keras/private_test.py passes. That test has a case per name, which says what to rework
here if the name is gone, and it allows no such name in any other file.
"""

import keras
import tensorflow as tf


def flatten_layers(layer, include_self=True):
    """The layer and all layers inside it, at any depth, each once."""
    return layer._flatten_layers(include_self=include_self)


def inner_layers(layer):
    """The layers directly inside a layer, in the order in which they were made."""
    return layer._flatten_layers(include_self=False, recursive=False)


def is_functional(model):
    """Whether a model is Functional, a class that Keras does not export."""
    return type(model).__name__ == "Functional"


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


def own_variables(layer):
    """A layer's own variables, without those of inner layers, in the order of saving."""
    return layer._trainable_variables + layer._non_trainable_variables


def learning_rate_of(optimizer):
    """The source of the learning rate: a variable, function or schedule, not its value."""
    return optimizer._learning_rate


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
