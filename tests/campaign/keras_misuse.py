"""Wrong uses in the middle of a random program. Each must be an error that names what was given."""

import os
import re

import keras
import numpy as np
import tensorflow as tf

import late_phase.keras

_NUMBERS = [-1.0, float("nan"), float("inf"), "0.1", None]
# Of constructors, by argument: values that must be refused.
_OPTIMIZER = {
    "members": [0, -1, 1.5, True, "3", None],
    "start": [-1, 1.5, True, "60", "0%", "100%", "x%", "-5%", "nan%", [3]],
    "sigma": _NUMBERS,
    "base_scale": [0.0, 1.5, *_NUMBERS],
    "base_rate_scale": [0.0, *_NUMBERS],
    "seed": ["x", 1.5, None, 2**70],
    "learning_rate": [0.1],
}
_SWA = {
    "start": [None, -1, "x", 1.5],
    "frequency": [0, -1, 1.5, "2"],
    "window": [0, -2, 1.5, "2"],
    "weights": ["x", 1.5, 0.0, None],
}
_PLATEAU = {"patience": [0, 1.5, "2"], "min_delta": [-1.0, float("nan")], "mode": ["x", None]}
_BASES = [
    lambda: "sgd",
    lambda: None,
    lambda: late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1)),
    lambda: keras.optimizers.SGD(0.1, use_ema=True),
    lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
    lambda: _built(keras.optimizers.SGD(0.1)),
]


def complaint(wrong):
    """What is wrong with how a wrong use ends: "" if nothing."""
    try:
        wrong()
    except (ValueError, TypeError, NotImplementedError, tf.errors.InvalidArgumentError) as error:
        message = str(error)
        if getattr(wrong, "of_keras", False) or re.search(r"Received:\s+\S", message):
            return ""
        return f"{type(error).__name__}, which does not say what was given: {message}"
    except Exception as error:
        if isinstance(error, getattr(wrong, "passed_on", ())):
            return ""
        return f"{type(error).__name__} instead of an error for users: {error}"
    return "accepted, but it must be refused"


def draw(training, number):
    """A wrong use: its name, and a function that commits it."""
    random = np.random.default_rng(number)
    makers = [_of_constructors, _of_convert, _of_copies, _of_gradients, _of_data]
    name, wrong = makers[random.integers(len(makers))](training, random)
    return name, wrong


def _one(random, values):
    return values[int(random.integers(len(values)))]


def _built(optimizer):
    optimizer.build([keras.Variable(np.zeros(2))])
    return optimizer


def _of_keras(wrong):
    """Marks what Keras itself must refuse, in its own words."""
    wrong.of_keras = True
    return wrong


def _of_constructors(training, random):
    sgd = keras.optimizers.SGD
    optimizer = late_phase.keras.LatePhaseOptimizer
    kind = _one(random, ["optimizer", "optimizer", "base", "swa", "plateau", "epoch", "member"])
    if kind == "base":
        base = _one(random, _BASES)()
        argument = _one(random, ["base", "member"])
        options = {"base": sgd(0.1), argument: base} if base is not None else {"base": None}
        return f"{argument}={base}", lambda: optimizer(**options)
    if kind == "member":
        one = sgd(0.1)
        return "member=base", lambda: optimizer(one, one)
    if kind == "epoch":
        value = _one(random, [0, -1, 1.5, True, "3", None])
        return f"Epoch({value!r})", lambda: late_phase.keras.Epoch(value)
    arguments = {"optimizer": _OPTIMIZER, "swa": _SWA, "plateau": _PLATEAU}[kind]
    argument = _one(random, list(arguments))
    value = _one(random, arguments[argument])
    make = {
        "optimizer": lambda **options: optimizer(sgd(0.1), **options),
        "swa": lambda **options: late_phase.keras.SWA(**{"start": 0, **options}),
        "plateau": late_phase.keras.StartOnPlateau,
    }[kind]
    return f"{kind}({argument}={value!r})", lambda: make(**{argument: value})


def _of_convert(training, random):
    convert, model, K = late_phase.keras.convert, training.model, training.settings.members
    late = [w for w, _ in training.pairs if w.late and w.kind == "trained"]
    path = re.escape(_one(random, late).path.split("/", 1)[-1])
    name, arguments = _one(random, [
        ("a pattern that nothing matches", (model, K, "no_such_weight")),
        ("a function that chooses nothing", (model, K, lambda variable: False)),
        ("weights of no kind", (model, K, 5)),
        ("an empty list of weights", (model, K, [])),
        ("a list of numbers as weights", (model, K, [3])),
        ("half a regular expression", (model, K, "(")),
        ("what has members already", (model, K, path)),
        ("no members", (model, 0)),
        ("half a member", (model, 2.5)),
        ("a model that is not built", (keras.Sequential([keras.layers.Dense(2)]), K)),
        ("no model", ("model", K)),
    ])  # fmt: skip
    return f"convert: {name}", lambda: convert(*arguments)


def _of_copies(training, random):
    collapse, model, K = late_phase.keras.collapse, training.model, training.settings.members
    data = np.zeros((2, 2))
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    name, wrong = _one(random, [
        ("member=K", lambda: collapse(model, member=K)),
        ("member=-1", lambda: collapse(model, member=-1)),
        ("member=True", lambda: collapse(model, member=True)),
        ("member='0'", lambda: collapse(model, member="0")),
        ("batch_norm='x'", lambda: collapse(model, batch_norm="x")),
        ("no dataset", lambda: collapse(model, batch_norm="reestimated")),
        ("a dataset for the mean", lambda: collapse(model, batch_norm="mean", dataset=data)),
        ("steps without a dataset", lambda: collapse(model, steps=3)),
        ("a member's affine maps", lambda: collapse(model, member=0, batch_norm="affine")),
        ("no model", lambda: collapse("model")),
        ("ensemble without members", lambda: late_phase.keras.ensemble(plain)),
        ("members=0", lambda: late_phase.keras.Dense(2, members=0)),
        ("units=0", lambda: late_phase.keras.Dense(0, members=2)),
        ("renorm", lambda: late_phase.keras.BatchNormalization(members=2, renorm=True)),
        ("momentum=2", lambda: late_phase.keras.BatchNormalization(members=2, momentum=2.0)),
        ("groups=2", lambda: late_phase.keras.Rank1Conv2D(2, 2, members=2, groups=2)),
        ("Members of no layer", lambda: late_phase.keras.Members("layer", members=2)),
        ("no member of a layer", lambda: late_phase.keras.Members(keras.layers.ReLU(), 2)(data)),
        (
            "Members of BatchNormalization",
            lambda: late_phase.keras.Members(keras.layers.BatchNormalization(), 2),
        ),
    ])  # fmt: skip
    return f"copies and layers: {name}", wrong


def _of_gradients(training, random):
    optimizer, variables = training.optimizer, training.model.trainable_variables
    training.build()
    gradients = [tf.zeros(v.shape, v.dtype) for v in variables]
    last = [*gradients[:-1], tf.zeros([*variables[-1].shape, 2], variables[-1].dtype)]
    stranger = keras.Variable(np.zeros(2))
    other = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.1), members=training.settings.members + 1
    )
    uses = [
        ("one gradient too few", lambda: optimizer.apply(gradients[:-1], variables)),
        ("no gradient at all", lambda: optimizer.apply([None] * len(variables), variables)),
        ("a gradient of another shape", lambda: optimizer.apply(last, variables)),
        ("a stranger's gradient", _of_keras(lambda: optimizer.apply([tf.zeros(2)], [stranger]))),
        ("layers of other members", lambda: other.build(variables)),
        ("exclusions too late", lambda: optimizer.exclude_from_weight_decay(var_names=["bias"])),
    ]
    reference, settings = training.reference, training.settings
    if settings.members == 1 or isinstance(settings.start, int) or reference.is_late():
        uses.append(("spawn", optimizer.spawn))
    if settings.members > 1:
        uses.append(("gradients of the mean", lambda: _inference_gradients(training)))
        ones = [tf.ones(v.shape, v.dtype) for v in variables]
        uses.append(("gradients of all members", lambda: optimizer.apply(ones, variables)))
    name, wrong = _one(random, uses)
    return f"optimizer: {name}", wrong


def _inference_gradients(training):
    x, _ = training.data(2)
    variables = training.model.trainable_variables
    with tf.GradientTape() as tape:
        outputs = keras.tree.flatten(training.model(x, training=False))
        loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in outputs])
    training.optimizer.apply(tape.gradient(loss, variables), variables)


def _of_data(training, random):
    model, K = training.model, training.settings.members
    x, y = training.data(4)
    small = keras.Sequential([keras.Input((2,)), late_phase.keras.Dense(2, members=K + 1)])

    def fit_with_another_optimizer():
        small.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        small.fit(np.zeros((2, 2)), np.zeros((2, 2)), verbose=0)

    def percentage_without_fit():
        optimizer = late_phase.keras.LatePhaseOptimizer(
            keras.optimizers.SGD(0.1), members=K + 1, start="50%"
        )
        small.compile(optimizer, "mse", run_eagerly=True)
        small.train_on_batch(np.zeros((2, 2)), np.zeros((2, 2)))

    def failing():
        yield x
        raise OSError("disk gone")

    def reestimate():
        late_phase.keras.reestimate_batch_norm(model, failing())

    reestimate.passed_on = (OSError, tf.errors.UnknownError)
    uses = [
        ("arrays of other lengths", _of_keras(lambda: model.fit(x, [one[:-1] for one in y]))),
        ("no weights", _of_keras(lambda: model.set_weights([]))),
        ("another optimizer", fit_with_another_optimizer),
        ("a percentage without fit", percentage_without_fit),
    ]
    if training.network.inputs in ("vector", "image", "sequence"):
        wide = np.concatenate([x, x], axis=-1)
        target = y if len(y) > 1 else y[0]
        uses.append(
            ("inputs of another size", _of_keras(lambda: model.train_on_batch(wide, target)))
        )
    if any(w.kind == "statistic" for w, _ in training.pairs):
        uses.append(("a dataset that fails", reestimate))
        uses.append((
            "an empty dataset",
            lambda: late_phase.keras.reestimate_batch_norm(model, []),
        ))  # fmt: skip
    if training.network.inputs == "tied" and training.network.weights is not None:
        path = os.path.join(training.folder, "whole.keras")
        uses.append(("a file of a converted class of one's own", lambda: model.save(path)))
    name, wrong = _one(random, uses)
    return f"data: {name}", wrong
