"""A Keras model with late-phase weights: convert it, train it, collapse it to a plain model."""

import keras
from sklearn.datasets import load_digits

import late_phase.keras

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
layers = [keras.layers.Dense(64), keras.layers.BatchNormalization(), keras.layers.ReLU()]
model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, "softmax")])

model = late_phase.keras.convert(model, members=5)  # BatchNorm and the last layer get members
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.SGD(0.05, momentum=0.9), members=5, start=600, sigma=0.1
)
model.compile(optimizer, "sparse_categorical_crossentropy")
model.fit(x[:1000], y[:1000], batch_size=25, epochs=30, verbose=0)  # 1,200 steps: 600 with members

plain = late_phase.keras.collapse(model)  # Keras's own layers; saved, it loads without late_phase
plain.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
print(f"test accuracy: {plain.evaluate(x[1000:], y[1000:], verbose=0)[1]:.3f}")
