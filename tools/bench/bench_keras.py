"""tools/latephase bench keras: a Keras training step with ten late-phase members against the plain
model with its Keras optimizer.

Both run the step that `model.fit` runs, in one process, in random order, each ten times in a row: a
cycle of the members, with the update of the base weights at its end. The plain model runs twice, as
a control. Some networks also run compiled by XLA (`jit_compile=True`), plain and with
members, among the others. First it is checked that all train alike as long as there is one member.

The first call of a model, in which Keras traces its step, is timed in a process of its own, of
plain and late-phase models in turn.
"""

import math
import os
import subprocess
import sys
import time

import numpy as np

from tools.bench import bench_report

MEMBERS = 10
VOCABULARY = 8192  # of tokens
START = 10  # the step at which members are spawned: after the check, before the timing
# Text of a row, network, optimizer, target of the ratio.
ROWS = [
    ("ConvNet, SGD with Nesterov momentum", "convnet", "nesterov", 1.05),
    ("ConvNet, Adam", "convnet", "adam", 1.05),
    ("two dense layers, SGD with Nesterov momentum", "dense", "nesterov", 1.05),
    ("two dense layers, Adam", "dense", "adam", 1.05),
    ("two dense layers, AdamW (not fused)", "dense", "adamw", None),
    ("Transformer, Adam", "transformer", "adam", 1.05),
    ("Transformer with an Embedding, Adam", "embedding", "adam", 1.05),
    ("LSTM, rank-1 factors, Adam", "lstm", "adam", 1.05),
]
COMPILED = [("dense", "adam"), ("convnet", "nesterov"), ("lstm", "adam")]
TRACING_TARGET = 1.2  # of the first call of MobileNetV2


def make_transformer(embedding):
    import keras

    layers = keras.layers
    inputs = keras.Input((32,), dtype="int32") if embedding else keras.Input((32, 48))
    x = (layers.Embedding(VOCABULARY, 64) if embedding else layers.Dense(64))(inputs)
    for _ in range(2):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 16)(normed, normed)
        normed = layers.LayerNormalization()(x)
        x = x + layers.Dense(64)(layers.Dense(256, "gelu")(normed))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def make_network(name):
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    if name in ("transformer", "embedding"):
        return make_transformer(name == "embedding")
    if name == "lstm":
        return keras.Sequential([keras.Input((64, 32)), layers.LSTM(128), layers.Dense(10)])
    if name == "dense":  # little to compute: what the optimizer adds weighs most here
        stack = [keras.Input((64,))]
        for _ in range(2):
            stack += [layers.Dense(256), layers.BatchNormalization(), layers.ReLU()]
    else:
        stack = [keras.Input((32, 32, 3))]
        for width, stride in [(16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)]:
            stack += [
                layers.Conv2D(width, 3, stride, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
            ]
        stack.append(layers.GlobalAveragePooling2D())
    return keras.Sequential([*stack, layers.Dense(10)])


def make_late(name):
    """The same network, with members."""
    import keras

    import late_phase.keras

    plain = make_network(name)
    if name == "lstm":
        lstm = late_phase.keras.Rank1LSTM(128, members=MEMBERS)
        late = keras.Sequential([keras.Input((64, 32)), lstm, keras.layers.Dense(10)])
        for layer, other in zip(late.layers, plain.layers):
            layer.set_weights(other.get_weights())
        return late
    weights = "batch_norm + head" if name in ("dense", "convnet") else "normalization + head"
    return late_phase.keras.convert(plain, members=MEMBERS, weights=weights)


def make_optimizer(name):
    import keras

    return {
        "nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(1e-4),
        "adamw": lambda: keras.optimizers.AdamW(1e-4, weight_decay=0.01),
    }[name]()


def make_step(model, optimizer, x, y, jit_compile=False):
    """A function that trains one minibatch as `fit` does, and returns its loss."""
    import keras
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    model.make_train_function()
    model._symbolic_build(data_batch=(x, y))
    minibatches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    return lambda: float(model.train_function(minibatches)["loss"])


def make_late_optimizer(name):
    import late_phase.keras

    return late_phase.keras.LatePhaseOptimizer(
        make_optimizer(name), members=MEMBERS, start=START, sigma=0.1
    )


def measure_row(network, optimizer, pairs):
    """Seconds of a step, the mean of a cycle, [[plain, plain again, late-phase], ...] of rounds,
    with those of plain and late-phase by XLA behind them if the row is in COMPILED; and the largest
    difference of the losses before the members.
    """
    import keras
    import tensorflow as tf

    random = np.random.default_rng(0)
    plain = make_network(network)
    shape = (32, *plain.input_shape[1:])
    if network == "embedding":
        # No token twice: Keras's Adam squares the sparse gradients of each by itself, so losses
        # would differ.
        x = tf.constant(random.permutation(VOCABULARY)[: math.prod(shape)].reshape(shape), tf.int32)
    else:
        x = tf.constant(random.normal(size=shape), tf.float32)
    y = tf.constant(random.integers(0, 10, 32))
    steps = [
        make_step(plain, make_optimizer(optimizer), x, y),
        make_step(make_network(network), make_optimizer(optimizer), x, y),
        make_step(make_late(network), make_late_optimizer(optimizer), x, y),
    ]
    if (network, optimizer) in COMPILED:
        steps += [
            make_step(make_network(network), make_optimizer(optimizer), x, y, jit_compile=True),
            make_step(make_late(network), make_late_optimizer(optimizer), x, y, jit_compile=True),
        ]
    # The loss of a step is Keras's mean so far.
    losses = np.array([[step() for _ in range(START)] for step in steps])
    difference = np.abs(losses - losses[0]).max()
    if not difference <= 1e-3:
        raise SystemExit(
            f"bench keras: {network}, {optimizer}: losses before the members are not those of "
            f"Keras: {losses.tolist()}"
        )
    for step in steps:
        for _ in range(MEMBERS):
            step()
    rounds = np.zeros((pairs, len(steps)))
    for row in rounds:
        for i in random.permutation(len(steps)):
            begin = time.perf_counter()
            for _ in range(MEMBERS):
                steps[i]()
            row[i] = (time.perf_counter() - begin) / MEMBERS
    keras.backend.clear_session()
    return rounds.round(7).tolist(), float(difference)


def first_call(kind):
    """Seconds of the first training step of MobileNetV2, "plain" or "late"; in a process of its
    own.
    """
    import keras

    import late_phase.keras

    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(
        (96, 96, 3), weights=None, classes=10, classifier_activation=None
    )
    optimizer = make_optimizer("nesterov")
    if kind == "late":
        model = late_phase.keras.convert(model, members=MEMBERS)
        optimizer = late_phase.keras.LatePhaseOptimizer(
            optimizer, members=MEMBERS, start=START, sigma=0.1
        )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.zeros((2, 96, 96, 3), "float32"), np.array([1, 2])
    begin = time.perf_counter()
    model.train_on_batch(x, y)
    return time.perf_counter() - begin


def measure_tracing(rounds):
    """Seconds [[plain, late-phase], ...] of rounds."""
    code = (
        "import sys; from tools.bench import bench_keras; "
        "print(bench_keras.first_call(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def seconds(kind):
        run = subprocess.run(
            [sys.executable, "-c", code, kind], env=environment, capture_output=True, text=True
        )
        if run.returncode:
            raise SystemExit(f"bench keras: the first call of MobileNetV2, {kind}: {run.stderr}")
        return round(float(run.stdout), 4)

    return [[seconds("plain"), seconds("late")] for _ in range(rounds)]


def measure(options):
    import keras
    import tensorflow as tf

    results = {
        **bench_report.machine(),
        "versions": f"Keras {keras.__version__}, TensorFlow {tf.__version__}",
        "rows": {},
        "differences": {},
    }
    for _, network, optimizer, _ in ROWS:
        name = f"{network} {optimizer}"
        results["rows"][name], results["differences"][name] = measure_row(
            network, optimizer, options.pairs
        )
    results["tracing"] = measure_tracing(options.tracings)
    return results


def render(results):
    """The report, as lines of text."""
    rng = np.random.default_rng(0)
    pairs = len(next(iter(results["rows"].values())))
    lines = [
        f"A training step of model.fit, batches of 32, {MEMBERS} members in batch normalisation "
        "and head against the plain Keras model",
        f"{bench_report.machine_line(results)}, {results['versions']}",
        "checked: losses before the members differ from Keras's by "
        f"{max(results['differences'].values()):.1e} at most",
        "",
        f"{pairs} rounds of {MEMBERS} steps each, in random order: median of the ratios within a "
        "round, bootstrap 95 % interval",
        f"{'':46}{'Keras, ms':>10}{'control':>9}{'late_phase':>12}",
    ]
    for text, network, optimizer, target in ROWS:
        if f"{network} {optimizer}" not in results["rows"]:
            continue  # recorded before there was such a row
        rounds = np.array(results["rows"][f"{network} {optimizer}"])
        control = float(np.median(rounds[:, 1] / rounds[:, 0]))
        median, low, high = bench_report.interval(rounds[:, 2] / rounds[:, 0], rng)
        verdict = (
            f"   target <= {target}: " + ("met" if median <= target else "MISSED") if target else ""
        )
        lines.append(
            f"{text:46}{np.median(rounds[:, 0]) * 1e3:10.2f}{control:9.3f}{median:12.3f}   "
            f"{low:.3f} to {high:.3f}{verdict}"
        )
    lines += render_compiled(results["rows"])
    if results.get("tracing"):
        seconds = np.array(results["tracing"])
        ratio = float(np.median(seconds[:, 1] / seconds[:, 0]))
        verdict = "met" if ratio <= TRACING_TARGET else "MISSED"
        lines += [
            "",
            f"{len(seconds)} pairs of new processes: the first call of MobileNetV2, whose step is "
            "traced",
            f"Keras {np.median(seconds[:, 0]):.1f} s, late_phase {np.median(seconds[:, 1]):.1f} "
            f"s, median of the ratios {ratio:.2f}   target <= {TRACING_TARGET}: {verdict}",
        ]
    return lines


def render_compiled(rows):
    """The table of the rows that ran by XLA, too; none if they were recorded before they did."""
    lines = []
    for network, optimizer in COMPILED:
        rounds = np.array(rows.get(f"{network} {optimizer}", [[]]))
        if rounds.shape[1] < 5:
            continue
        [text] = [row[0] for row in ROWS if row[1:3] == (network, optimizer)]
        plain, _, late, plain_xla, late_xla = rounds.min(axis=0)
        lines.append(
            f"{text:46}"
            + "".join(f"{1 / one:12.1f}" for one in (plain, late, plain_xla, late_xla))
            + "".join(f"{ratio:12.3f}" for ratio in (plain / late, plain_xla / late_xla))
            + f"{late_xla / late:12.3f}"
        )
    above = "", "late_phase", "Keras", "late_phase", "late_phase", "both", "late_phase"
    below = "Keras", "", "by XLA", "by XLA", "to Keras", "by XLA", "to its XLA"
    head = [
        "",
        "with XLA (jit_compile=True): steps per second, by the shortest round, and ratios of "
        "speeds",
        *(f"{'':46}" + "".join(f"{one:>12}" for one in words) for words in (above, below)),
    ]
    return head + lines if lines else []


if __name__ == "__main__":
    parser = bench_report.parser("keras", __doc__)
    parser.add_argument("--pairs", type=int, default=50, help="rounds of a row (default 50)")
    parser.add_argument("--tracings", type=int, default=5, help="pairs of first calls (default 5)")
    bench_report.main(parser, bench_report.at_least(pairs=1, tracings=1), measure, render)
