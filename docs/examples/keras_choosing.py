"""What base_scale and base_rate_scale do to the base weights: a noisy linear regression, K = 10."""

import keras
import numpy as np
import tensorflow as tf

import late_phase.keras

K, WEIGHTS, BATCH, STEPS = 10, 100, 8, 8000
target = tf.random.stateless_normal([WEIGHTS, 1], [0, 0])


def errors(optimizer, offset, start=0, **options):
    """The squared error of the kernel, whose weights are the base's, after each minibatch."""
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(1)
    layer.build((None, WEIGHTS))
    layer.kernel.assign(target + offset)
    members = options.pop("members", K)
    if members > 1:
        layer = late_phase.keras.Members(layer, members=members, weights="bias")
    model = keras.Sequential([keras.Input((WEIGHTS,)), layer])
    optimizer = late_phase.keras.LatePhaseOptimizer(
        optimizer, members=members, start=start, **options
    )
    optimizer.build(model.trainable_variables)
    kernel = model.trainable_variables[0]

    @tf.function
    def train():
        found = tf.TensorArray(tf.float32, STEPS)
        for t in tf.range(STEPS):
            x = tf.random.stateless_normal([BATCH, WEIGHTS], [1, t])
            y = x @ target + 10 * tf.random.stateless_normal([BATCH, 1], [2, t])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y)) / 2
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            found = found.write(t, tf.reduce_mean(tf.square(kernel.value - target)))
        return found.stack()

    return train().numpy()


def adam():
    return keras.optimizers.Adam(0.005)


def sgd():
    return keras.optimizers.SGD(0.005)


def row(name, make, **options):
    """Noise: the error that stays. Time: minibatches until an offset has halved."""
    noise = errors(make(), 0.0, **options)[STEPS // 2 :].mean()
    halved = np.argmax(errors(make(), 2.0, **options) < 1.0 + noise) + 1
    return name, noise, halved


for make, rows in (
    (adam, [("gamma = 1", {}), ("gamma = 1/K", dict(base_scale=1 / K)),
            ("rate x sqrt(K)", dict(base_rate_scale=K**0.5)),
            ("rate x K", dict(base_rate_scale=K))]),
    (sgd, [("gamma = 1", {}), ("gamma = 1/K", dict(base_scale=1 / K))]),
):  # fmt: skip
    _, noise, halved = row("", make, members=1)
    for name, options in rows:
        _, of_row, time = row(name, make, **options)
        print(
            f"{make.__name__:<5}{name:<16}noise {of_row / noise:5.2f}   time {time / halved:5.2f}"
        )
