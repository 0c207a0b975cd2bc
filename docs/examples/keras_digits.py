"""Handwritten digits: a ConvNet trained plainly, with late-phase weights (LPBN), and with SWA too.

    tools/latephase python docs/examples/keras_digits.py [--seeds 3]

The images are scikit-learn's own; nothing is downloaded. All three trainings see the same number
of minibatches.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import late_phase.keras

TRAINING_IMAGES, BATCH, EPOCHS = 500, 25, 20
MEMBERS, LATE_EPOCH, SWA_EPOCH = 5, 10, 14
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def digits(seed):
    """(x, y) to train with and (x, y) to test with; which image is where depends on the seed."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order].reshape(-1, 8, 8, 1).astype("float32") / 8 - 1, y[order]
    return (x[:TRAINING_IMAGES], y[:TRAINING_IMAGES]), (x[TRAINING_IMAGES:], y[TRAINING_IMAGES:])


def conv_net():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.Conv2D(32, 3, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def fit(model, optimizer, data, final_rate, callbacks=()):
    """The rate falls linearly to `final_rate`, from the start of the members to that of SWA."""
    rate = keras.callbacks.LearningRateScheduler(
        lambda epoch, _: float(np.interp(epoch, [LATE_EPOCH, SWA_EPOCH], [0.1, final_rate]))
    )
    model.compile(optimizer, LOSS)
    model.fit(*data, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[rate, *callbacks])


def score(model, data):
    """(test accuracy in percent, test NLL)."""
    logits = np.array(model(data[0]))
    return 100 * np.mean(logits.argmax(axis=1) == data[1]), float(LOSS(data[1], logits))


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)


def late_phase_sgd():
    start = LATE_EPOCH * TRAINING_IMAGES // BATCH  # in minibatches
    return late_phase.keras.LatePhaseOptimizer(sgd(), members=MEMBERS, start=start, sigma=0.1)


def run(seed):
    """The scores of the three ways."""
    training, test = digits(seed)
    keras.utils.set_random_seed(seed)
    base = conv_net()
    # Members of the same initial weights.
    late, averaged = (late_phase.keras.convert(base, members=MEMBERS) for _ in range(2))
    fit(base, sgd(), training, final_rate=0.001)
    fit(late, late_phase_sgd(), training, final_rate=0.001)
    # SWA needs a rate that stays high.
    swa = late_phase.keras.SWA(start=late_phase.keras.Epoch(SWA_EPOCH), dataset=training)
    fit(averaged, late_phase_sgd(), training, final_rate=0.05, callbacks=[swa])
    swa.apply()
    # One plain network each.
    return [
        score(model, test)
        for model in (base, late_phase.keras.collapse(late), late_phase.keras.collapse(averaged))
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="how many trainings of each kind (at least 2)"
    )
    seeds = parser.parse_args().seeds
    scores = np.array([run(seed) for seed in range(seeds)])  # [seeds, ways, 2]
    mean, error = scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(seeds)
    print(f"{seeds} seeds, mean ± standard error    test accuracy, %       test NLL")
    for way, (accuracy, nll), (accuracy_error, nll_error) in zip(
        ["base", "LPBN", "LPBN + SWA"], mean, error
    ):
        print(f"{way:<35} {accuracy:6.2f} ± {accuracy_error:4.2f}   {nll:8.4f} ± {nll_error:6.4f}")
