"""Training with `jit_compile=True`: the weights of a training without it, and no warning."""

import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import LatePhaseOptimizer

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
K, BATCH, SAMPLES = 3, 8, 64
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
LABELS = np.random.default_rng(1).integers(0, 4, SAMPLES)


def dense():
    return [
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        late_phase.keras.Rank1Dense(16, members=K),
        late_phase.keras.Dense(4, members=K),
    ]


def convolutional():
    return [
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(4, 3, use_bias=False),
        late_phase.keras.BatchNormalization(members=K),
        keras.layers.ReLU(),
        late_phase.keras.Rank1Conv2D(4, 3, members=K),
        keras.layers.Flatten(),
        late_phase.keras.Dense(4, members=K),
    ]


def recurrent():
    return [
        keras.Input((6,), dtype="int32"),
        keras.layers.Embedding(11, 8),
        late_phase.keras.Rank1LSTM(7, members=K),
        late_phase.keras.Dense(4, members=K),
    ]


def wrapped():
    return [keras.Input((8,)), late_phase.keras.Members(keras.layers.Dense(4), members=K)]


def inputs(model):
    shape = (SAMPLES, *model.input_shape[1:])
    generator = np.random.default_rng(2)
    if model.inputs[0].dtype == "int32":
        return generator.integers(0, 11, shape)
    return generator.normal(size=shape).astype(np.float32)


def train(layers, optimizer, jit_compile, **options):
    """Two epochs, of which members train from the fifth minibatch on."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(layers())
    optimizer = LatePhaseOptimizer(
        optimizer(), members=K, start=4, sigma=0.1, base_scale=0.5, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile(optimizer, LOSS, jit_compile=jit_compile)
        model.fit(inputs(model), LABELS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return model


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),  # of Keras's own updates
    "clipped": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.5),
}


@pytest.mark.parametrize(
    "layers, optimizer",
    [
        (dense, "sgd"),
        (dense, "clipped"),
        (convolutional, "momentum"),
        (recurrent, "sgd"),
        (recurrent, "adam"),
        (wrapped, "rmsprop"),
    ],
)
def test_training_equals_that_without_xla(layers, optimizer):
    plain, compiled = (train(layers, OPTIMIZERS[optimizer], jit) for jit in (False, True))
    assert compiled.jit_compile and not plain.jit_compile
    for weight, expected in zip(compiled.weights, plain.weights):
        # 16 steps; rules that divide by the size of a gradient enlarge roundings of small ones.
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-3, err_msg=weight.path)
    kernel = compiled.layers[-1].weights[0].numpy()
    assert len({row.tobytes() for row in kernel}) == K
    x = inputs(plain)
    np.testing.assert_allclose(
        compiled.predict(x, verbose=0), plain.predict(x, verbose=0), atol=5e-3
    )


@pytest.mark.parametrize(
    "layers, optimizer", [(convolutional, "momentum"), (recurrent, "adam"), (wrapped, "rmsprop")]
)
def test_a_step_is_compiled_once(layers, optimizer):
    """Before `start`, at it, and for every member alike."""
    model = train(layers, OPTIMIZERS[optimizer], True)
    batches = iter(tf.data.Dataset.from_tensors((inputs(model)[:BATCH], LABELS[:BATCH])).repeat())
    model.train_function(batches)
    before = time.process_time()
    for _ in range(2 * K):
        model.train_function(batches)
    # Compiling takes half a second, such a step some milliseconds.
    assert time.process_time() - before < 0.2 * 2 * K


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "layers, optimizer", [(convolutional, "momentum"), (wrapped, "rmsprop"), (dense, "clipped")]
)
def test_training_on_another_device(layers, optimizer, jit_compile):
    """As on a GPU, all that XLA uses must be on its device: a second CPU stands for one."""
    with tf.device("CPU:1"):
        model = train(layers, OPTIMIZERS[optimizer], jit_compile)
    assert {weight.value.device[-5:] for weight in model.weights} == {"CPU:1"}
    assert {variable.value.device[-5:] for variable in model.optimizer.variables} == {"CPU:1"}


@pytest.mark.parametrize("layers", [dense, convolutional, recurrent, wrapped])
def test_auto_takes_the_fused_kernels_on_a_cpu(layers):
    """Keras compiles nothing where there is only a CPU."""
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    model = train(layers, OPTIMIZERS["momentum"], "auto")
    assert not model.jit_compile


@pytest.mark.parametrize("layers", [dense, convolutional, recurrent, wrapped])
def test_auto_would_compile_the_layers_on_a_gpu(layers, monkeypatch):
    """Keras's own LSTM looks for a GPU when it is made, and then prefers cuDNN to XLA."""
    physical = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    logical = tf.config.LogicalDevice("/device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda *_: [logical])
    made = layers()
    monkeypatch.undo()
    model = keras.Sequential(made)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [physical])
    assert model.jit_compile
