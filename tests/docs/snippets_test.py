"""The pages' fragments of Python run, their signatures are the real ones, and the commands they
name exist.

A fragment is a ```python block that is not a file's (those are tests/docs/docs_test.py's). PRELUDES
has what a reader would have made before it.
"""

import ast
import glob
import importlib
import inspect
import os
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.checkpoint
import late_phase.keras
from late_phase_cli import main

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/*.md"))]


def read(path):
    with open(path) as file:
        return file.read()


def fragments(page):
    """The page's ```python blocks that are not a file's."""
    return re.findall(r"(?<! -->\n)^```python\n(.*?)^```$", read(page), re.M | re.S)


def signature_of(code):
    """The call that is all of `code`, if it shows a signature: late_phase.NAME(argument,
    option=default).
    """
    statements = ast.parse(code).body
    call = (
        getattr(statements[0], "value", None)
        if len(statements) == 1 and isinstance(statements[0], ast.Expr)
        else None
    )
    return (
        call
        if isinstance(call, ast.Call)
        and all(isinstance(argument, ast.Name) for argument in call.args)
        else None
    )


ALL = [(page, code) for page in PAGES for code in fragments(page)]
SIGNATURES = [(page, code) for page, code in ALL if signature_of(code)]
CODE = [(page, code) for page, code in ALL if not signature_of(code)]


def small_model(activation=None):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(4, activation=activation),
        ]
    )


X, Y = np.random.default_rng(0).normal(size=(40, 8, 8, 1)).astype("float32"), np.arange(40) % 4
LOGITS_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def lstm_weights(monkeypatch):
    shapes = {
        "x": (5, 2, 3),
        "kernel": (3, 16),
        "recurrent_kernel": (4, 16),
        "bias": (16,),
        "u": (10, 4),
        "v": (10, 16),
    }
    return {name: tf.ones(shape) for name, shape in shapes.items()}


def model_with_members(monkeypatch):
    """As a run's: members that are there, and differ."""
    model = late_phase.keras.convert(small_model(), members=10)
    for weight in model.layers[-1].weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    return {"model": model, "before": model.layers[-1].kernel.numpy()}


def training_loop(monkeypatch):
    model = late_phase.keras.convert(small_model(), members=10)
    optimizer = late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=10)
    return {"model": model, "optimizer": optimizer, "loss_function": LOGITS_LOSS, "x": X, "y": Y}


def attention_blocks(monkeypatch):
    def block(name):
        inputs = keras.Input((6, 4))
        attended = keras.layers.MultiHeadAttention(2, 8, name="attention")(inputs, inputs)
        outputs = keras.layers.LayerNormalization(name="norm")(inputs + attended)
        return keras.Model(inputs, outputs, name=name)

    return {"transformer_block": block("block"), "backbone": block("backbone")}


def watched_members(monkeypatch):
    names = training_loop(monkeypatch)
    names["model"].compile(names["optimizer"], LOGITS_LOSS, metrics=["accuracy"])
    return {**names, "x_val": X[:20], "y_val": Y[:20]}


def several_devices(monkeypatch):
    return {"model": small_model(), "loss": LOGITS_LOSS, "x": X, "y": Y}


def imagenet(monkeypatch):
    """A small network in the place of ResNet-50, which takes a download and minutes;
    tests/python/keras/layers_test.py converts that one.
    """
    monkeypatch.setattr(keras.applications, "ResNet50", lambda weights: small_model("softmax"))
    return {"training": tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)}


# Page and the number of its fragment -> what makes the names that it uses, and what must hold of
# them afterwards.
PRELUDES = {
    ("docs/using.md", 0): (lstm_weights, lambda names: names["h"].shape == (5, 2, 4)),
    ("docs/keras.md", 0): (
        attention_blocks,
        lambda names: (
            {
                weight.shape[0]
                for weight in names["backbone"].trainable_weights
                if "lora" in weight.path
            }
            == {10}
        ),
    ),
    ("docs/keras.md", 1): (training_loop, lambda names: int(names["optimizer"].member) == 1),
    ("docs/keras.md", 2): (
        watched_members,
        lambda names: (
            names["metrics"].history["member_spread"][-1] > 0 and os.path.exists("members.png")
        ),
    ),
    ("docs/keras.md", 3): (several_devices, lambda names: names["model"].optimizer.members == 10),
    ("docs/keras.md", 4): (
        model_with_members,
        lambda names: (
            names["model"].train_on_batch(X, Y) > 0
            and np.array_equal(
                names["model"].layers[-1].kernel.numpy()[1:], names["before"][1:]
            )  # not spawned again
            and not np.array_equal(names["model"].layers[-1].kernel.numpy()[0], names["before"][0])
        ),
    ),
    ("docs/tutorial.md", 0): (imagenet, lambda names: int(names["optimizer"].iterations) == 40),
}


def numbered():
    """(page, number, code) of the fragments that are not signatures."""
    return [(page, [c for p, c in CODE if p == page].index(code), code) for page, code in CODE]


def test_every_fragment_has_a_prelude():
    assert {(page, number) for page, number, _ in numbered()} == set(PRELUDES)


@pytest.mark.filterwarnings("ignore:.*Training ended before `start`")
@pytest.mark.parametrize("page, number, code", numbered())
def test_fragment_runs(page, number, code, tmp_path, monkeypatch):
    prelude, holds = PRELUDES[page, number]
    monkeypatch.chdir(tmp_path)
    names = {"keras": keras, "tf": tf, "np": np, "late_phase": late_phase, **prelude(monkeypatch)}
    exec(compile(code, f"{page}, fragment {number}", "exec"), names)
    assert holds(names)


@pytest.mark.parametrize("page, code", SIGNATURES)
def test_signature_is_the_real_one(page, code):
    call = signature_of(code)
    path = ast.unparse(call.func)
    module, _, name = path.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    documented = [(argument.id, inspect.Parameter.empty) for argument in call.args]
    documented += [
        (option.arg, eval(ast.unparse(option.value), {"Epoch": late_phase.keras.Epoch}))
        for option in call.keywords
        if option.arg
    ]
    real = [(p.name, p.default) for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
    # A guide may leave out `name`, which every Keras object has; the reference has all.
    assert documented == (
        real if page == "docs/api.md" else [entry for entry in real if entry[0] != "name"]
    )


def test_signatures_were_found():
    assert {page for page, _ in SIGNATURES} == {"docs/api.md", "docs/keras.md"} and len(
        SIGNATURES
    ) >= 20


def commands():
    """What the driver can do: COMMAND -> the words that may follow it, if they are fixed."""
    found = {command: set() for command in main.make_parser().commands}
    return found | {"train": {*main.TRAINED}, "sweep": {*main.TRAINED}, "bench": {*main.BENCHMARKS}}


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_a_page_exist(page):
    known = commands()
    for command, word in re.findall(r"tools/latephase ([a-z-]+)(?: ([a-z0-9]+)\b)?", read(page)):
        assert command in known, f"{page}: tools/latephase {command}"
        if known[command] and word:
            assert word in known[command], f"{page}: tools/latephase {command} {word}"


def test_commands_were_found():
    assert {"train", "eval", "python", "wheel"} <= set(commands()) and {
        "enwik8",
        "cifar",
    } == commands()["train"]
