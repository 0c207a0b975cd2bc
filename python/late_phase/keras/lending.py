"""Weights that are lent to a model for a while."""

import contextlib


def copies(model, variable):
    """A variable's copies, one per replica of tf.distribute; those of statistics may differ."""
    return model.distribute_strategy.experimental_local_results(variable.value)


@contextlib.contextmanager
def restored(model, variables):
    """At the end, also after an exception, the variables have their values again, bit for bit."""
    own = [(copy, copy.read_value()) for v in variables for copy in copies(model, v)]
    try:
        yield
    finally:
        for copy, value in own:
            copy.assign(value)
