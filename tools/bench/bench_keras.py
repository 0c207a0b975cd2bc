"""tools/latephase bench keras: a Keras training step with ten late-phase members against the plain model with its Keras optimizer.

Both run the step that `model.fit` runs, in one process, in alternating order; the plain model runs twice, as a control. First it is checked
that both train alike as long as there is one member.
"""

import time

import numpy as np

from tools.bench import bench_report

MEMBERS = 10
START = 10  # the step at which members are spawned: after the check, before the timing
# Text of a row, network, optimizer, target of the ratio.
ROWS = [
    ("ConvNet, SGD with Nesterov momentum", "convnet", "nesterov", 1.05),
    ("ConvNet, Adam", "convnet", "adam", 1.05),
    ("two dense layers, SGD with Nesterov momentum", "dense", "nesterov", 1.05),
    ("two dense layers, Adam", "dense", "adam", 1.05),
    ("two dense layers, AdamW (not fused)", "dense", "adamw", None),
]


def make_network(name):
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
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


def make_optimizer(name):
    import keras

    return {
        "nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(1e-4),
        "adamw": lambda: keras.optimizers.AdamW(1e-4, weight_decay=0.01),
    }[name]()


def make_step(model, optimizer, x, y):
    """A function that trains one minibatch as `fit` does, and returns its loss."""
    import keras
    import tensorflow as tf

    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.make_train_function()
    model._symbolic_build(data_batch=(x, y))
    minibatches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    return lambda: float(model.train_function(minibatches)["loss"])


def measure_row(network, optimizer, pairs):
    """Seconds [[plain, plain again, late-phase], ...] of rounds, and the largest difference of the losses before the members."""
    import keras
    import tensorflow as tf

    import late_phase.keras

    random = np.random.default_rng(0)
    plain = make_network(network)
    x = tf.constant(random.normal(size=(32, *plain.input_shape[1:])), tf.float32)
    y = tf.constant(random.integers(0, 10, 32))
    late = late_phase.keras.convert(make_network(network), members=MEMBERS)
    late_optimizer = late_phase.keras.LatePhaseOptimizer(
        make_optimizer(optimizer), members=MEMBERS, start=START, sigma=0.1
    )
    steps = [
        make_step(plain, make_optimizer(optimizer), x, y),
        make_step(make_network(network), make_optimizer(optimizer), x, y),
        make_step(late, late_optimizer, x, y),
    ]
    losses = np.array(
        [[step() for _ in range(START)] for step in steps]
    )  # that of a step is Keras's mean so far
    difference = np.abs(losses[2] - losses[0]).max()
    if not difference <= 1e-3:
        raise SystemExit(
            f"bench keras: {network}, {optimizer}: losses before the members are not those of Keras: {losses[[0, 2]].tolist()}"
        )
    for step in steps:
        for _ in range(MEMBERS):
            step()
    rounds = np.zeros((pairs, 3))
    for row in rounds:
        for i in random.permutation(3):
            begin = time.perf_counter()
            steps[i]()
            row[i] = time.perf_counter() - begin
    keras.backend.clear_session()
    return rounds.round(7).tolist(), float(difference)


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
    return results


def render(results):
    """The report, as lines of text."""
    rng = np.random.default_rng(0)
    pairs = len(next(iter(results["rows"].values())))
    lines = [
        f"A training step of model.fit, batches of 32, {MEMBERS} members in batch normalisation and head against the plain Keras model",
        f"{bench_report.machine_line(results)}, {results['versions']}",
        f"checked: losses before the members differ from Keras's by {max(results['differences'].values()):.1e} at most",
        "",
        f"{pairs} rounds in random order: median of the ratios within a round, bootstrap 95 % interval",
        f"{'':46}{'Keras, ms':>10}{'control':>9}{'late_phase':>12}",
    ]
    for text, network, optimizer, target in ROWS:
        rounds = np.array(results["rows"][f"{network} {optimizer}"])
        control = float(np.median(rounds[:, 1] / rounds[:, 0]))
        median, low, high = bench_report.interval(rounds[:, 2] / rounds[:, 0], rng)
        verdict = (
            f"   target <= {target}: " + ("met" if median <= target else "MISSED") if target else ""
        )
        lines.append(
            f"{text:46}{np.median(rounds[:, 0]) * 1e3:10.2f}{control:9.3f}{median:12.3f}   {low:.3f} to {high:.3f}{verdict}"
        )
    return lines


def check(options):
    return (
        None if options.pairs >= 1 else f"--pairs must be >= 1. Received: --pairs {options.pairs}"
    )


if __name__ == "__main__":
    parser = bench_report.parser("keras", __doc__)
    parser.add_argument("--pairs", type=int, default=200, help="rounds of a row (default 200)")
    bench_report.main(parser, check, measure, render)
