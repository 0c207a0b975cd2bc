"""SWA on a late-phase network: the average is lent to the model, and then taken back."""

import keras
import numpy as np
from sklearn.datasets import load_digits

import late_phase.keras

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(64),
        late_phase.keras.BatchNormalization(members=5),
        keras.layers.ReLU(),
        late_phase.keras.Dense(10, members=5),
    ]
)
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.SGD(0.1), members=5, start=100, sigma=0.1
)
model.compile(
    optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)

# BatchNorm statistics come from the images of `dataset`.
swa = late_phase.keras.SWA(start=late_phase.keras.Epoch(8), dataset=x[:1000])
model.fit(x[:1000], y[:1000], batch_size=50, epochs=12, verbose=0, callbacks=[swa])
print(f"last weights:          {model.evaluate(x[1000:], y[1000:], verbose=0)[1]:.3f}")
with swa.averaged():  # whatever happens in here, the last weights come back
    print(
        f"average of {swa.samples} epochs:   {model.evaluate(x[1000:], y[1000:], verbose=0)[1]:.3f}"
    )
    probabilities = late_phase.keras.ensemble(model, activation="softmax").predict(
        x[1000:], verbose=0
    )
    print(f"its members' ensemble: {np.mean(probabilities.argmax(axis=1) == y[1000:]):.3f}")
    plain = late_phase.keras.collapse(model)  # the averaged network, to be saved
