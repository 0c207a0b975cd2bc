"""Fine-tunes a trained Keras model with late-phase weights, step by step: docs/tutorial.md."""

# [pretrain]
import os
import subprocess
import sys
import tempfile

import keras
import numpy as np
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)  # 1,797 handwritten digits of 8×8 pixels
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order].reshape(-1, 8, 8, 1).astype("float32") / 8 - 1, y[order]
training, test = (x[:600], y[:600]), (x[600:], y[600:])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
folder = tempfile.mkdtemp()

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, use_bias=False),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.ReLU(),
        keras.layers.Conv2D(32, 3, use_bias=False),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.ReLU(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), loss)
model.fit(*training, batch_size=25, epochs=20, verbose=0)
model.save(os.path.join(folder, "pretrained.keras"))


def report(name, model):
    logits = model.predict(test[0], verbose=0)
    accuracy = np.mean(logits.argmax(axis=1) == test[1])
    print(f"{name:<32} accuracy {100 * accuracy:.2f} %, NLL {loss(test[1], logits):.4f}")


report("pretrained", model)

# [convert]
import late_phase.keras

members = 5
pretrained = keras.models.load_model(os.path.join(folder, "pretrained.keras"))
late = late_phase.keras.convert(pretrained, members=members)
report("with members, not yet trained", late)
for layer in late.layers:
    if hasattr(layer, "members"):
        weights = [f"{weight.name} {tuple(weight.shape)}" for weight in layer.trainable_weights]
        print(f"{type(layer).__name__}: {', '.join(weights)}")

# [tune]
epochs, steps_per_epoch = 20, 24


def sgd():
    rate = keras.optimizers.schedules.PiecewiseConstantDecay(
        [epochs // 2 * steps_per_epoch], [1e-2, 1e-3]
    )
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)


optimizer = late_phase.keras.LatePhaseOptimizer(
    sgd(), members=members, start=0, sigma=0.0, base_scale=1 / members
)
swa = late_phase.keras.SWA(start="50%", dataset=training)  # for BatchNorm's statistics
late.compile(optimizer, loss)
late.fit(*training, batch_size=25, epochs=epochs, verbose=0, callbacks=[swa])

# [compare]
plain = late_phase.keras.collapse(late)  # Keras's own layers, the members' mean
pretrained.compile(sgd(), loss)
pretrained.fit(*training, batch_size=25, epochs=epochs, verbose=0)
report("fine-tuned plainly", pretrained)
report("fine-tuned with members", plain)
with swa.averaged():  # afterwards the model has its own weights again
    report(f"… averaged over {swa.samples} epochs", late_phase.keras.collapse(late))

# [deploy]
path = os.path.join(folder, "plain.keras")
plain.save(path)
program = f"""
import sys, keras
model = keras.models.load_model({path!r})
print("loaded:", ", ".join(type(layer).__name__ for layer in model.layers))
print("late_phase imported:", "late_phase" in sys.modules)
"""
run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
print(run.stdout, end="")
