"""Two spirals: a small network with late-phase weights, trained by model.fit, then made plain."""

import keras
import numpy as np

import late_phase.keras

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
turn = np.sqrt(random.uniform(size=1000)) * 3 * np.pi
side = random.integers(0, 2, 1000)
angle = turn + np.pi * side
x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1).astype("float32") / 5
x = x + random.normal(0, 0.05, x.shape)

members = 5
model = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(64),
        late_phase.keras.BatchNormalization(members=members),
        keras.layers.ReLU(),
        keras.layers.Dense(64),
        late_phase.keras.BatchNormalization(members=members),
        keras.layers.ReLU(),
        late_phase.keras.Dense(2, members=members),
    ]
)
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), members=members, start=600, sigma=0.1
)
model.compile(
    optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
model.fit(x[:800], side[:800], batch_size=32, epochs=40, verbose=0)  # members from epoch 24 on

plain = late_phase.keras.collapse(model)  # Keras's own layers, the members' mean
plain.compile(loss=model.loss, metrics=["accuracy"])
print(f"test accuracy of the plain model: {plain.evaluate(x[800:], side[800:], verbose=0)[1]:.2f}")
print("layers:", ", ".join(type(layer).__name__ for layer in plain.layers))
