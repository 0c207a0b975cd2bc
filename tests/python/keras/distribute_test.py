"""Late-phase layers and optimizer on replicas: two CPU devices of a process, and two processes."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K, START, STEPS, BATCH = 3, 4, 12, 8
LOSS = keras.losses.SparseCategoricalCrossentropy
PROGRAM = os.path.abspath("docs/examples/keras_workers.py")

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def data():
    random = np.random.default_rng(0)
    return random.normal(1, 2, (STEPS * BATCH, 5)).astype("float32"), random.integers(
        0, 4, STEPS * BATCH
    )


def make_model(synchronized=True):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(
                7, use_bias=False
            ),  # before a normalisation its gradient would be rounding, which Adam scales up
            late_phase.keras.BatchNormalization(members=K, synchronized=synchronized),
            keras.layers.ReLU(),
            late_phase.keras.Dense(4, members=K),
        ]
    )


OPTIMIZERS = {
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(
        0.01, weight_decay=0.1, global_clipnorm=0.5
    ),  # not fused
}


def late_phase_optimizer(name, start=START):
    return late_phase.keras.LatePhaseOptimizer(
        OPTIMIZERS[name](), members=K, start=start, sigma=0.1, base_scale=0.5
    )


def fit(strategy, name, start=START, synchronized=True, callbacks=()):
    with strategy.scope():
        model = make_model(synchronized)
        model.compile(late_phase_optimizer(name, start), LOSS(from_logits=True))
    x, y = data()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def own_loop(strategy, name):
    """The same training, step by step."""
    with strategy.scope():
        model, optimizer = make_model(), late_phase_optimizer(name)
        optimizer.build(model.trainable_variables)
    loss = LOSS(from_logits=True, reduction=None)

    @tf.function
    def step(x, y):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(loss(y, model(x, training=True))) / BATCH
            optimizer.apply_gradients(
                zip(tape.gradient(value, model.trainable_variables), model.trainable_variables)
            )

        strategy.run(replica_step, args=(x, y))

    for x, y in strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
    ):
        step(x, y)
    return model, optimizer


@functools.cache
def two_devices():
    """One for all tests: the collectives of two strategies of one process would meet."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def expect_replicas_in_step(variables):
    for variable in variables:
        first, second = (copy.numpy() for copy in variable.value.values)
        np.testing.assert_array_equal(first, second, err_msg=variable.path)


def expect_equal(model, expected, tolerance=1e-5):
    for variable, other in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(
            variable.numpy(), other.numpy(), rtol=0, atol=tolerance, err_msg=variable.path
        )


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_sparse_gradients_on_two_devices_are_those_of_one(name):
    def trained(strategy):
        with strategy.scope():
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    keras.layers.Embedding(9, 4),
                    keras.layers.GlobalAveragePooling1D(),
                    late_phase.keras.Dense(4, members=K),
                ]
            )
            optimizer = OPTIMIZERS.get(name, lambda: keras.optimizers.SGD(0.1))()
            optimizer = late_phase.keras.LatePhaseOptimizer(optimizer, members=K, start=START)
            model.compile(optimizer, LOSS(from_logits=True))
        tokens = np.random.default_rng(0).integers(0, 9, (STEPS * BATCH, 5))
        model.fit(tokens, data()[1], batch_size=BATCH, shuffle=False, verbose=0)
        return model

    one, two = trained(tf.distribute.get_strategy()), trained(two_devices())
    expect_equal(two, one)
    expect_replicas_in_step([*two.weights, *two.optimizer.variables])


@pytest.mark.parametrize("start", ["33%", None])
def test_other_starts_on_two_devices_are_their_step(start):
    class Spawn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if start is None and batch == START - 1:
                self.model.optimizer.spawn()

    one = fit(tf.distribute.get_strategy(), "adam")
    two = fit(two_devices(), "adam", start, callbacks=[Spawn()])
    expect_equal(two, one)
    expect_replicas_in_step([*two.weights, *two.optimizer.variables])
    assert two.optimizer.start == START


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit_on_two_devices_is_that_of_one_with_the_joint_minibatch(name):
    one, two = fit(tf.distribute.get_strategy(), name), fit(two_devices(), name)
    expect_equal(two, one)
    expect_replicas_in_step([*two.weights, *two.optimizer.variables])
    assert (
        int(two.optimizer.iterations.numpy()) == STEPS
        and int(two.optimizer.member.numpy()) == (STEPS - START) % K
    )
    head = two.layers[-1].kernel.numpy()
    assert len({row.tobytes() for row in head}) == K


@pytest.mark.parametrize("name", ["nesterov", "adamw"])
def test_a_loop_on_two_devices_is_fit(name):
    model, optimizer = own_loop(two_devices(), name)
    expect_equal(model, fit(tf.distribute.get_strategy(), name))
    expect_replicas_in_step([*model.weights, *optimizer.variables])


def test_members_from_the_first_step_on():
    two = fit(two_devices(), "nesterov", start=0)
    expect_equal(two, fit(tf.distribute.get_strategy(), "nesterov", start=0))
    expect_replicas_in_step(two.weights)


def test_without_synchronisation_replicas_normalise_alone_and_move_statistics_together():
    strategy = two_devices()
    with strategy.scope():
        layer = late_phase.keras.BatchNormalization(members=K, momentum=0.75)
        layer.build((None, 5))
    x = data()[0][:8].astype("float64")
    parts = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(np.split(x, 2)[context.replica_id_in_sync_group], tf.float32)
    )
    outputs = strategy.experimental_local_results(
        tf.function(lambda: strategy.run(lambda x: layer(x, training=True), args=(parts,)))()
    )
    halves = np.split(x, 2)
    for output, half in zip(outputs, halves):
        np.testing.assert_allclose(
            output,
            (half - half.mean(axis=0)) / np.sqrt(half.var(axis=0) + layer.epsilon),
            rtol=0,
            atol=1e-5,
        )
    mean, variance = (
        np.mean([h.mean(axis=0) for h in halves], axis=0),
        np.mean([h.var(axis=0) for h in halves], axis=0),
    )
    for row in layer.moving_mean.numpy():
        np.testing.assert_allclose(row, 0.25 * mean, rtol=0, atol=1e-5)
    for row in layer.moving_variance.numpy():
        np.testing.assert_allclose(row, 0.75 + 0.25 * variance, rtol=0, atol=1e-5)
    expect_replicas_in_step(layer.weights)


def test_synchronisation_makes_a_difference():
    """Or the equalities above would say nothing about it."""
    together, alone = (
        fit(two_devices(), "nesterov"),
        fit(two_devices(), "nesterov", synchronized=False),
    )
    assert np.abs(together.layers[0].kernel.numpy() - alone.layers[0].kernel.numpy()).max() > 1e-3
    expect_replicas_in_step([*alone.weights, *alone.optimizer.variables])


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Workers:
    """Processes of the example, with a folder for their checkpoints."""

    def __init__(self, folder, count, epochs):
        os.makedirs(folder, exist_ok=True)
        addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.folder, self.logs = folder, [os.path.join(folder, f"errors-{i}") for i in range(count)]
        self.processes = []
        for i, log in enumerate(self.logs):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
            with open(log, "w") as errors:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, PROGRAM, folder, str(epochs)],
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        env={
                            **os.environ,
                            "TF_CONFIG": json.dumps(config),
                            "TF_CPP_MIN_LOG_LEVEL": "3",
                            "CUDA_VISIBLE_DEVICES": "",
                        },
                    )
                )

    def finish(self):
        """The first one's lines; all must end well."""
        lines = self.processes[0].stdout.read().splitlines()
        for process, log in zip(self.processes, self.logs):
            if process.wait(timeout=120) != 0:
                with open(log) as file:
                    raise AssertionError(file.read())
        return lines

    def kill_after(self, line_start):
        """Kills the last worker once the first has printed that; the others fail and end."""
        for line in self.processes[0].stdout:
            if line.startswith(line_start):
                break
        self.processes[-1].send_signal(signal.SIGKILL)
        for process in self.processes:
            assert process.wait(timeout=120) != 0

    def weights(self):
        """Of the last step, and averaged over the epochs."""
        models = [
            keras.models.load_model(os.path.join(self.folder, name))
            for name in ("plain.keras", "averaged.keras")
        ]
        return [weight.numpy() for model in models for weight in model.weights]


def test_two_workers_are_one_with_the_joint_minibatch_and_survive_a_kill(tmp_path):
    one, two = (
        Workers(str(tmp_path / "one"), 1, epochs=16),
        Workers(str(tmp_path / "two"), 2, epochs=16),
    )
    one.finish()
    lines = two.finish()
    assert [line.split(":")[0] for line in lines] == [f"epoch {i}" for i in range(1, 17)]
    for weight, expected in zip(two.weights(), one.weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-3)  # after 128 steps

    killed = Workers(str(tmp_path / "killed"), 2, epochs=16)
    killed.kill_after("epoch 2:")
    reached = int(
        tf.train.load_checkpoint(killed.folder).get_tensor("epoch/.ATTRIBUTES/VARIABLE_VALUE")
    )
    again = Workers(killed.folder, 2, epochs=16)
    lines = again.finish()
    assert 2 <= reached < 16 and [line.split(":")[0] for line in lines] == [
        f"epoch {i}" for i in range(reached + 1, 17)
    ]
    for weight, expected in zip(again.weights(), two.weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
