"""Every name in late_phase/keras/private.py is there and does what is relied on.

No other file uses such a name.
"""

import ast
import glob
import re
import tomllib

import keras
import numpy as np
import pytest
import tensorflow as tf

from late_phase.keras import private

CPUS = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], CPUS)


def layer():
    made = keras.layers.Dense(1)
    made.build((None, 2))
    return made


def functional():
    x = keras.Input((2,), name="x")
    return keras.Model(
        x, keras.layers.Activation("relu", name="relu")(keras.layers.Dense(3, name="dense")(x))
    )


# Name -> (what has it, the function that uses it, what that function may do without it).
NAMES = {
    "_flatten_layers": (
        layer,
        "flatten_layers` and `inner_layers",
        "walk `layer.layers` and the layers among a layer's attributes",
    ),
    "_run_through_graph": (
        functional,
        "run_through_graph",
        "call `model.operations` in order, or clone the model with a `call_function`",
    ),
    "_keras_history": (
        lambda: functional().outputs[0],
        "producer",
        "note what makes each tensor while `run_through_graph` calls the operations",
    ),
    "_inbound_nodes": (
        layer,
        "producer",
        "note what each tensor is made of while `run_through_graph` calls the operations",
    ),
    "_get_call_context": (
        layer,
        "outermost_layer` and `is_first_use",
        "note the model in `LatePhaseOptimizer.attach`, before its first call",
    ),
    "_trainable_variables": (
        layer,
        "own_variables",
        "leave the variables of `flatten_layers(layer, include_self=False)` out of "
        "`layer.variables`",
    ),
    "_non_trainable_variables": (
        layer,
        "own_variables",
        "leave the variables of `flatten_layers(layer, include_self=False)` out of "
        "`layer.variables`",
    ),
    "_learning_rate": (
        keras.optimizers.SGD,
        "learning_rate_of",
        "deserialize the learning rate in `optimizer.get_config()`",
    ),
    "_iterations": (
        keras.optimizers.SGD,
        "minibatches_of",
        "multiply `optimizer.iterations` by `gradient_accumulation_steps`",
    ),
    "_distribution_strategy": (
        keras.optimizers.SGD,
        "strategy_of",
        "keep `tf.distribute.get_strategy()` in the constructor of LatePhaseOptimizer",
    ),
    "_var_key": (keras.optimizers.SGD, "variable_key", "use the id of the Keras variable"),
    "_use_weight_decay": (
        keras.optimizers.SGD,
        "has_decay",
        "override `exclude_from_weight_decay` and keep what it was given",
    ),
    "_check_variables_are_known": (
        keras.optimizers.SGD,
        "require_known",
        "compare with the variables that `build` was given",
    ),
    "_track_variable": (
        keras.optimizers.SGD,
        "track",
        "hold the variable in a public attribute, which Keras tracks",
    ),
    "_initialize": (
        lambda: keras.Variable(1.0),
        "add_rows",
        "make a new variable with rows and put it in the place of the layer's own",
    ),
    "_maybe_autocast": (
        lambda: keras.Variable(1.0),
        "add_rows",
        "cast the row in `_MemberVariable.value` to `dtype`",
    ),
    "_keras_mask": (
        lambda: keras.layers.Embedding(3, 2, mask_zero=True)(np.zeros((1, 2))),
        "mask_of` and `carry_mask",
        "call a layer whose `compute_mask` returns the mask",
    ),
    "_auto_config": (
        lambda: keras.Sequential(),
        "constructor_arguments",
        "do without: refuse classes of models that `from_config` does not make",
    ),
    "_tracker": (
        lambda: keras.Sequential(),
        "exchange_layers",
        "set the attributes alone, whose layers Keras then knows beside those that they replace",
    ),
    "__internal__": (
        lambda: tf,
        "merge_call",
        "use `tf.distribute.get_replica_context().merge_call`",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_name_is_there(name):
    owner, function, instead = NAMES[name]
    assert hasattr(owner(), name), (
        f"Keras {keras.__version__} with TensorFlow {tf.__version__} has no `{name}`. "
        f"Rework `{function}` in python/late_phase/keras/private.py: for example {instead}. "
        "Until then let pyproject.toml exclude this release."
    )


def private_names(path):
    """The private attributes that a file reads, and the names that it defines or sets."""
    read, own = set(), set()
    with open(path) as file:
        for node in ast.walk(ast.parse(file.read())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Load)
                and re.match(r"_[^_]|__internal__", node.attr)
                and node.attr != "_asdict"  # of Python's named tuples, and public
            ):
                read.add(node.attr)
            elif isinstance(node, ast.Attribute):
                own.add(node.attr)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                read.update(
                    part for part in (node.module or "").split(".") if part in ("src", "python")
                )  # keras.src, tensorflow.python
    return read, own


def test_private_names_are_in_one_file():
    files = {
        path: private_names(path) for path in glob.glob("python/late_phase/**/*.py", recursive=True)
    }
    assert len(files) > 15
    own = set().union(*(names for _, names in files.values()))
    foreign = {path: read - own for path, (read, _) in files.items() if read - own}
    assert foreign == {"python/late_phase/keras/private.py": set(NAMES)}, (
        "Use them through a function of private.py, and list them in NAMES."
    )


def test_the_tested_releases_are_the_admitted_ones():
    with open("pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    first, last = private._RELEASES[0], private._RELEASES[-1]
    bound = f"keras>={first},<3.{int(last.split('.')[1]) + 1}"
    assert bound in extras["tensorflow"] and bound in extras["tensorflow-cpu"]
    assert ".".join(keras.__version__.split(".")[:2]) in private._RELEASES


def test_flatten_layers_finds_each_at_any_depth_once():
    inner = keras.layers.Dense(2, name="inner")

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.parts = [
                inner,
                keras.Sequential([keras.layers.Dense(2, name="deep"), inner], name="nested"),
            ]

    block = Block()
    assert sorted(part.name for part in private.flatten_layers(block)) == [
        "block",
        "deep",
        "inner",
        "nested",
    ]
    assert sorted(part.name for part in private.flatten_layers(block, include_self=False)) == [
        "deep",
        "inner",
        "nested",
    ]


def test_inner_layers_are_in_the_order_of_their_making():
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.second, self.parts = layer(), [keras.Sequential([layer()], name="nested"), layer()]

    block = Block()
    model = functional()
    assert private.inner_layers(block) == [block.second, *block.parts]
    assert [inner.name for inner in private.inner_layers(model)] == ["x", "dense", "relu"]
    assert private.inner_layers(layer()) == []


def test_is_functional():
    class Own(keras.Model):
        pass

    class OwnFunctional(keras.Model):
        pass

    inputs = keras.Input((2,))
    assert private.is_functional(functional())
    assert private.is_functional(OwnFunctional(inputs, keras.layers.Dense(1)(inputs)))
    assert not private.is_functional(
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ) and not private.is_functional(Own())


def test_producer_is_the_operation_with_its_inputs():
    model = functional()
    operation, inputs, index = private.producer(model.outputs[0])
    assert operation is model.get_layer("relu") and index == 0
    operation, inputs, _ = private.producer(inputs[0])
    assert operation is model.get_layer("dense") and inputs[0] is model.inputs[0]


def test_run_through_graph_calls_every_operation_with_its_inputs():
    model, called = functional(), []

    def call(operation, *args, **kwargs):
        called.append(operation.name)
        return operation(*args, **kwargs)

    x = np.array([[1.0, -2.0]], "float32")
    np.testing.assert_array_equal(
        keras.tree.flatten(private.run_through_graph(model, [x], call))[0], model(x)
    )
    assert called == ["dense", "relu"]


def test_outermost_layer_is_the_called_model():
    seen = []

    class Inner(keras.layers.Layer):
        def call(self, x):
            seen.append(private.outermost_layer(self))
            return x

    model = keras.Sequential([keras.Sequential([Inner()])])
    model(np.ones((1, 2)))
    assert seen and seen[-1] is model


def test_first_use_is_once_in_an_outermost_call():
    seen = []

    class Inner(keras.layers.Layer):
        def call(self, x):
            seen.append(private.is_first_use(self, tf.compat.v1.get_default_graph()))
            return x

    model = keras.Sequential([keras.Input((2,)), Inner(), keras.Sequential([Inner()])])
    seen.clear()
    tf.function(model)(np.ones((1, 2)))
    assert seen == [True, False]
    tf.function(model)(np.ones((1, 2)))
    assert seen == [True, False, True, False]


def test_a_carried_mask_reaches_the_next_layer():
    x = tf.random.stateless_normal([2, 3, 4], [0, 0])
    mask = tf.constant([[True, False, False], [True, True, True]])
    lstm = keras.layers.LSTM(2)
    assert private.mask_of(x) is None
    expected = lstm(x, mask=mask)
    private.carry_mask(x, mask)
    assert private.mask_of(x) is mask
    np.testing.assert_array_equal(lstm(x), expected)


def test_own_variables_are_in_the_order_of_saving():
    class Block(keras.layers.Layer):
        def build(self, shape):
            self.state = self.add_weight(shape=(2,), trainable=False, name="state")
            self.weight = self.add_weight(shape=(3,), name="weight")
            self.inside = layer()

    block, store = Block(), {}
    block.build((None, 2))
    block.save_own_variables(store)
    assert private.own_variables(block) == [block.weight, block.state]
    assert [store[key].shape for key in sorted(store)] == [(3,), (2,)]


def test_learning_rate_of_is_what_was_given():
    def function():
        return 0.25

    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    rate = private.learning_rate_of(keras.optimizers.SGD(0.125))
    assert isinstance(rate, keras.Variable) and float(rate.numpy()) == 0.125
    assert (
        private.learning_rate_of(keras.optimizers.SGD(schedule)) is schedule
        and private.learning_rate_of(keras.optimizers.SGD(function)) is function
    )


@pytest.mark.parametrize("wrap", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_minibatches_are_counted_between_updates_too(wrap):
    optimizer = wrap(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    variable = keras.Variable(1.0)
    for _ in range(3):
        optimizer.apply([tf.constant(1.0)], [variable])
    assert private.minibatches_of(optimizer) == 3


def test_strategy_and_key_of_a_variable_with_copies():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        optimizer, variables = keras.optimizers.SGD(0.1), [keras.Variable(1.0), keras.Variable(2.0)]
    assert private.strategy_of(optimizer) is strategy
    keys = [private.variable_key(optimizer, v) for v in variables]
    copies = [strategy.experimental_local_results(v.value)[0] for v in variables]
    assert keys[0] != keys[1] and [private.variable_key(optimizer, copy) for copy in copies] == keys


def test_has_decay_unless_excluded():
    optimizer, variables = (
        keras.optimizers.SGD(0.1),
        [keras.Variable(1.0, name=name) for name in ("kernel", "bias", "gamma")],
    )
    optimizer.exclude_from_weight_decay(var_list=variables[:1], var_names=["bias"])
    assert [private.has_decay(optimizer, v) for v in variables] == [False, False, True]


def test_watch_sees_every_assignment(tmp_path):
    made, seen = layer(), []
    path = tf.train.Checkpoint(layer=made).save(tmp_path / "checkpoint")
    private.watch(made.kernel, lambda: seen.append(made.kernel.numpy().sum()))
    made.kernel.assign(np.ones((2, 1)))
    made.set_weights([2 * np.ones((2, 1)), np.zeros(1)])
    made.kernel.assign_add(np.ones((2, 1)))
    assert seen == [2, 4, 6]
    tf.train.Checkpoint(layer=made).restore(path)
    assert len(seen) == 4, (
        "TensorFlow restores a variable otherwise: let _WatchedVariable in private.py override "
        "what it calls."
    )


class Rows(keras.initializers.Initializer):
    def __init__(self, row):
        self.row = row

    def __call__(self, shape, dtype=None):
        return keras.ops.stack([self.row(shape[1:], dtype)] * shape[0])


def test_a_variable_with_rows_is_a_row_where_it_is_lent():
    made, seen = keras.layers.Dense(1, dtype="mixed_bfloat16"), []
    made.build((None, 2))
    before = made.kernel.numpy()
    private.add_rows(made.kernel, 3, Rows, lambda: seen.append(1))
    kernel = made.weights[0]  # the same object, of the same layer
    assert kernel.shape == (3, 2, 1) and kernel.ndim == 3 and kernel.value.shape == (3, 2, 1)
    np.testing.assert_array_equal(kernel.numpy(), [before] * 3)
    kernel.assign(np.arange(6.0).reshape(3, 2, 1))
    assert seen == [1]
    x = np.array([[1.0, 1.0]])
    with private.rows_lent([(kernel, tf.constant([[4.0], [5.0]]))]):
        assert kernel.shape == (2, 1) and kernel.ndim == 2
        assert made(x).dtype == tf.bfloat16 and float(made(x)[0, 0]) == 9.0
        with pytest.raises(ValueError, match="must not be assigned"):
            kernel.assign(np.zeros((2, 1)))
    assert kernel.shape == (3, 2, 1) and kernel.value.dtype == tf.float32


def test_a_variable_made_in_a_symbolic_call_gets_rows():
    class Block(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            y = self.dense(x)
            if self.dense.kernel.ndim == 2:
                private.add_rows(self.dense.kernel, 3, Rows, lambda: None)
            return y

    block = Block()
    block(keras.KerasTensor((4, 2)))
    rows = block.dense.kernel.numpy()
    assert rows.shape == (3, 2, 1) and rows.any()
    np.testing.assert_array_equal(rows, [rows[0]] * 3)


def test_rows_are_not_added_while_a_step_is_traced():
    @tf.function
    def step(x):
        made = keras.layers.Dense(1)
        made.build(x.shape)
        private.add_rows(made.kernel, 3, Rows, lambda: None)

    with pytest.raises(ValueError, match="must be built before a training step is traced"):
        step(tf.ones((1, 2)))


def test_require_known_refuses_others():
    optimizer, mine, other = keras.optimizers.SGD(0.1), keras.Variable(1.0), keras.Variable(1.0)
    optimizer.build([mine])
    private.require_known(optimizer, [mine])
    with pytest.raises(ValueError, match="Unknown variable"):
        private.require_known(optimizer, [mine, other])


def test_tracked_variable_is_saved():
    optimizer, variable, store = keras.optimizers.SGD(0.1), keras.Variable(7.0), {}
    private.track(optimizer, variable)
    assert any(v is variable for v in optimizer.variables)
    optimizer.save_own_variables(store)
    assert 7.0 in [float(np.array(value)) for value in store.values()]


def test_merge_call_is_made_once_with_what_all_replicas_have():
    strategy, calls = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), []

    def update(strategy, value):
        calls.append([float(v) for v in strategy.experimental_local_results(value)])

    strategy.run(
        lambda: private.merge_call(
            update,
            strategy,
            tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32),
        )
    )
    assert calls == [[0.0, 1.0]]


@pytest.mark.parametrize("version", ["3.14.2", "3.16.0.dev2026102704", "2.15.0"])
def test_a_release_of_keras_that_is_not_known_is_refused(version):
    with pytest.raises(ImportError, match=rf"Keras 3\.15\. Received: Keras {version}\..*pip"):
        private.require_known_release(version)


def test_patch_releases_of_a_known_release_are_taken():
    private.require_known_release("3.15.9")
