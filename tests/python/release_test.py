"""The library in a release of TensorFlow: it is the one built for it, has every op, and trains.

tools/test runs this for each supported release; `tools/test --tensorflow RELEASE` runs everything.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase
import late_phase.keras
from late_phase import loader

OPS = 18


def test_the_library_is_the_one_for_this_release():
    assert loader.build_info()["tensorflow"] == tf.__version__


def test_it_has_every_op():
    names = [name for name in dir(late_phase.raw_ops) if name.startswith("late_phase_")]
    assert len([name for name in names if not name.endswith("_eager_fallback")]) == OPS, names


def model_with_members(layers):
    return keras.Sequential([keras.Input((5, 4)), *layers, late_phase.keras.Dense(3, members=2)])


def every_layer():
    return [
        late_phase.keras.Rank1LSTM(6, members=2, return_sequences=True),
        late_phase.keras.BatchNormalization(members=2),
        keras.layers.Flatten(),
    ]


@pytest.mark.parametrize(
    "layers, jit_compile",
    # XLA compiles for a minute what has all layers.
    [(every_layer, False), (lambda: [keras.layers.Flatten()], True)],
    ids=["plain", "xla"],
)
def test_a_model_trains_and_collapses(layers, jit_compile):
    """From before `start` until after it."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x = random.normal(size=[64, 5, 4]).astype("float32")
    y = (x.sum((1, 2)) > 0).astype("int32")
    model = model_with_members(layers())
    model.compile(
        late_phase.keras.LatePhaseOptimizer(
            keras.optimizers.Adam(0.02), members=2, start=16, sigma=0.05
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    losses = model.fit(x, y, batch_size=8, epochs=8, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0], losses
    plain = late_phase.keras.collapse(model)
    assert not any("late_phase" in type(layer).__module__ for layer in plain.layers)
    predicted = np.argmax(plain.predict(x, verbose=0), axis=1)
    assert np.mean(predicted == y) > 0.8
