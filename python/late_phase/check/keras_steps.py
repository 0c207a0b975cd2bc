"""A training step of Keras with the network of a run of the training programs: with members, and
plain, with Keras's own layers and optimizer, which are TensorFlow's own ops.

Both by their kernels and compiled by XLA, which is what Keras chooses on a GPU; all four in turn.
"""

import time

import keras
import numpy as np
import tensorflow as tf

import late_phase.checkpoint
import late_phase.keras
from late_phase.checkpoint.runs import find_run

KINDS = ("late_phase", "Keras", "late_phase, XLA", "Keras, XLA")
WARM_UP = 3  # steps after the first one, in which the model is traced


class NotCompiled(Exception):
    """Keras has turned `jit_compile=True` off."""


def messages(device, run, rounds):
    """Yields that each kind of step begins; then the `seconds` of the steps of each kind, their
    first `losses`, and the `problems` of those that could not be run.
    """
    steps, losses, problems = {}, {}, {}
    with tf.device(device):
        for kind in KINDS:
            yield {"begins": f"{kind}: the first steps"}
            try:
                losses[kind], step = make_step(run, kind)
                for _ in range(WARM_UP):
                    step()
            except NotCompiled as error:
                if kind.startswith("late_phase"):  # Keras's LSTM on a GPU, by cuDNN, never is
                    problems[kind] = str(error)
            except Exception as error:  # the other kinds must be seen too
                problems[kind] = f"{type(error).__name__}: {str(error).strip()[:1000]}"
            else:
                steps[kind] = step
        yield {"begins": "timing"}
        seconds = {kind: [] for kind in steps}
        order = np.random.default_rng(0)
        for _ in range(rounds):
            for kind in order.permutation(list(steps)):
                begin = time.perf_counter()
                steps[kind]()
                seconds[kind].append(round(time.perf_counter() - begin, 7))
    yield {"seconds": seconds, "losses": losses, "problems": problems}


def make_step(run, kind):
    """The loss of a first minibatch, and a function that trains another one, as `fit` does."""
    _, config = find_run(run)
    model = late_phase.checkpoint.keras_model(run)
    optimizer = make_optimizer(config)
    if kind.startswith("late_phase"):
        optimizer = late_phase.keras.LatePhaseOptimizer(
            optimizer, members=config["members"], start=0, sigma=0.1
        )
    else:
        model = late_phase.keras.collapse(model)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=kind.endswith("XLA"),
    )
    if kind.endswith("XLA") and not model.jit_compile:
        raise NotCompiled("Keras refuses to compile it")
    x, y = minibatch(model, config)
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    loss = float(model.train_on_batch(x, y))  # also makes the function of a step
    # The result is waited for.
    return loss, lambda: float(model.train_function(batches)["loss"])


def make_optimizer(config):
    """Of the kind that the program uses."""
    if config["program"] == "enwik8":
        return keras.optimizers.Adam(config["learning_rate"])
    return keras.optimizers.SGD(config["learning_rate"], momentum=config["momentum"])


def minibatch(model, config):
    """Random inputs and labels, of the program's shapes."""
    random = np.random.default_rng(0)
    classes = model.output_shape[-1]
    if config["program"] == "enwik8":
        shape = (config["batch"], config["sequence"])
        return random.integers(0, classes, shape, np.int32), random.integers(0, classes, shape)
    images = random.normal(size=(config["batch"], *model.input_shape[1:])).astype(np.float32)
    return images, random.integers(0, classes, config["batch"])
