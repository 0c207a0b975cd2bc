"""Models of Keras with BatchNorm and data for them: what the tests of SWA train."""

import keras
import numpy as np

import late_phase.keras

MEMBERS = 3


def late_norm(**options):
    return late_phase.keras.BatchNormalization(members=MEMBERS, **options)


def data(count=100, seed=1):
    random = np.random.default_rng(seed)
    return random.normal(1, 2, (count, 4)).astype("float32"), random.integers(0, 3, count)


def state(model):
    """Every bit of a model and of its optimizer."""
    optimizer = model.optimizer.variables if model.compiled else []
    return [np.array(v).tobytes() for v in [*model.variables, *optimizer]]


def stock_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def fit(model, callbacks, epochs=6, **options):
    """Five steps an epoch."""
    return model.fit(
        *data(),
        batch_size=20,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        **options,
    )


def failing(batches):
    yield from batches
    raise OSError("disk gone")
