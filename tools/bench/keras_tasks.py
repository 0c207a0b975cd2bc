"""The three tasks of tools/bench/keras_evidence.py: their data, networks, optimizers, and the
settings that validation may choose from.

What is compared on them, and how, is in keras_evidence.py.
"""

import dataclasses
import json
import math
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from late_phase_cli import enwik8_data


@dataclasses.dataclass(frozen=True)
class Data:
    """What one seed trains with and is judged by."""

    batches: Callable  # epoch -> int [steps, batch]: what `inputs` takes, one row per minibatch
    inputs: Callable  # int [batch] -> (x, y) of a minibatch
    training: np.ndarray | None  # from which BatchNorm statistics are re-estimated
    splits: dict  # "validation", "test" -> (x, y)


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its data and its training. An epoch is the time between two samples of SWA."""

    name: str
    data: Callable  # seed -> Data
    network: Callable  # () -> a plain Keras model with logits as outputs
    optimizer: Callable  # (rate, **Keras options) -> a Keras optimizer
    sizes: dict  # of the data, for the record
    late_weights: str  # what gets members, as `convert` takes it
    loss_in_bits: bool  # bits per character rather than NLL and accuracy
    start: int  # epochs of plain training, to the state that every method starts from
    epochs: int  # in all
    rates: tuple
    ema_momenta: tuple
    late_phases: tuple  # (K, sigma, gamma)
    choosing_seeds: tuple = (100, 101, 102)
    test_seeds: tuple = (0, 1, 2, 3, 4)

    def describe(self):
        """What a record is of, as JSON has it."""
        left_out = ("data", "network", "optimizer")
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in left_out
        }
        return json.loads(json.dumps(values))


# Images: scikit-learn's 1,797 digits.

# Test images are the last ones: no seed trains or is chosen on them. A seed shuffles the rest; what
# is not for training is for validation.
IMAGE_SIZES = {"training": 800, "test": 600, "batch": 10}


def digits(wrong_labels, training, test, batch):
    """seed -> Data of the digits; a part of the training labels is replaced by other digits.

    A training image is shifted by at most a pixel in any direction, differently in each epoch:
    otherwise a few epochs would fit all images exactly, and leave no noise.
    """

    def load(seed):
        random = np.random.default_rng(seed)
        x, y = load_digits(return_X_y=True)
        x = x.reshape(-1, 8, 8, 1).astype("float32") / 8 - 1
        order = random.permutation(len(x) - test)
        trained, validation = order[:training], order[training:]
        images, labels = x[trained], y[trained].copy()
        wrong = random.permutation(training)[: round(wrong_labels * training)]
        labels[wrong] = (labels[wrong] + random.integers(1, 10, len(wrong))) % 10
        padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-1)
        moved = np.stack(
            [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)], axis=1
        )
        moved, labels = tf.constant(moved.reshape(-1, 8, 8, 1)), tf.constant(labels)  # [9 images]

        def batches(epoch):
            random = np.random.default_rng([seed, epoch])
            image = random.permutation(training)
            return (9 * image + random.integers(9, size=training)).reshape(-1, batch)

        def inputs(index):
            return tf.gather(moved, index), tf.gather(labels, index // 9)

        splits = {"validation": (x[validation], y[validation]), "test": (x[-test:], y[-test:])}
        return Data(batches, inputs, images, splits)

    return load


def conv_net():
    layers = [keras.Input((8, 8, 1))]
    for width in (16, 32):
        layers += [
            keras.layers.Conv2D(width, 3, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
        ]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def sgd(rate, **options):
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, **options)


# Text: characters of enwik8, each predicted from those before it in its window.

SYMBOLS = 256  # bytes
# An epoch has `steps` minibatches of `batch` windows.
TEXT_SIZES = {"training": 4_000_000, "judged": 65_536, "window": 64, "batch": 8, "steps": 40}


def text(path, training, judged, window, batch, steps):
    """seed -> Data of enwik8: windows from anywhere in its first `training` characters.

    Validation and test are the first `judged` characters of what docs/enwik8.md calls so.
    """

    def load(seed):
        file = np.memmap(enwik8_data.find(path), np.uint8, "r")
        characters = tf.constant(np.array(file[:training], np.int32))
        offsets = tf.range(window + 1)

        def batches(epoch):
            return np.random.default_rng([seed, epoch]).integers(
                training - window, size=(steps, batch), dtype=np.int32
            )

        def inputs(index):
            windows = tf.gather(characters, index[:, None] + offsets)
            return windows[:, :-1], windows[:, 1:]

        def part(percent):
            begin = len(file) * percent // 100
            found = np.array(file[begin : begin + judged + 1], np.int32)
            return found[:-1].reshape(-1, window), found[1:].reshape(-1, window)

        return Data(batches, inputs, None, {"validation": part(90), "test": part(95)})

    return load


@keras.saving.register_keras_serializable("keras_tasks")
class Positions(keras.layers.Layer):
    """Adds a vector for each place in the window."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=shape[1:], initializer="uniform", name="vectors")

    def call(self, x):
        return x + self.vectors


def transformer(window=TEXT_SIZES["window"], width=64, heads=4, blocks=2):
    layers = keras.layers
    tokens = keras.Input((window,), dtype="int32")
    # Not an Embedding, whose sparse gradients Keras's Adam squares one by one: what follows the
    # start must not differ in that.
    x = layers.Dense(width, use_bias=False)(keras.ops.one_hot(tokens, SYMBOLS))
    x = Positions()(x)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    return keras.Model(tokens, layers.Dense(SYMBOLS)(layers.LayerNormalization()(x)))


def adam(rate, **options):
    return keras.optimizers.Adam(rate, **options)


def metrics(model, split, in_bits):
    """What a model is judged by: {"accuracy" in %, "nll"}, or {"bpc"}."""
    x, y = split
    logits = model.predict(x, batch_size=256, verbose=0).astype(np.float64)
    nll = float(np.mean(keras.ops.sparse_categorical_crossentropy(y, logits, from_logits=True)))
    if in_bits:
        return {"bpc": nll / math.log(2)}
    return {"accuracy": 100 * float(np.mean(logits.argmax(axis=-1) == y)), "nll": nll}


def image_task(name, wrong_labels, rates, ema_momenta):
    return Task(
        name=name,
        data=digits(wrong_labels, **IMAGE_SIZES),
        sizes={**IMAGE_SIZES, "wrong_labels": wrong_labels},
        network=conv_net,
        optimizer=sgd,
        late_weights="batch_norm + head",
        loss_in_bits=False,
        start=20,
        epochs=40,
        rates=rates,
        ema_momenta=ema_momenta,
        late_phases=tuple(
            (members, sigma, gamma)
            for members in (5, 10)
            for sigma in (0.0, 0.1)
            for gamma in (1.0, 1 / members)
        ),
    )


def text_task(enwik8):
    return Task(
        name="text",
        data=text(enwik8, **TEXT_SIZES),
        sizes=TEXT_SIZES,
        network=transformer,
        optimizer=adam,
        late_weights="normalization + head",
        loss_in_bits=True,
        start=40,
        epochs=70,
        rates=(2e-3, 4e-3, 8e-3),
        ema_momenta=(0.99, 0.995, 0.998),
        late_phases=((5, 0.0, 1.0), (5, 0.1, 1.0), (5, 0.0, 0.2), (10, 0.0, 1.0)),
    )


def tasks(enwik8=None):
    """Name -> Task; `enwik8` is the path of the text, if it is not that of the cache."""
    found = [
        image_task("digits", 0.0, (0.01, 0.02, 0.05, 0.1), (0.98, 0.99, 0.995)),
        image_task(
            "noisy-digits", 0.3, (0.005, 0.01, 0.02, 0.05), (0.98, 0.99, 0.995, 0.998, 0.999)
        ),
        text_task(enwik8),
    ]
    return {task.name: task for task in found}
