"""Five ways to a better network with the same recipe, on handwritten digits: docs/comparison.md."""

# [recipe]
import keras
import numpy as np
from sklearn.datasets import load_digits

import late_phase.keras

x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1).astype("float32") / 8 - 1
training, test = (x[:500], y[:500]), (x[500:], y[500:])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
epochs, steps_per_epoch = 10, 20


def conv_net(conv=keras.layers.Conv2D, **options):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            conv(16, 3, use_bias=False, **options),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            conv(32, 3, use_bias=False, **options),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def trained(model, optimizer, **options):
    model.compile(optimizer, loss)
    model.fit(*training, batch_size=25, epochs=epochs, verbose=0, **options)
    return model


def report(name, probabilities):
    print(f"{name:<22} accuracy {100 * np.mean(probabilities.argmax(axis=1) == test[1]):.2f} %")


def probabilities_of(model):
    return keras.ops.softmax(model.predict(test[0], verbose=0)).numpy()


keras.utils.set_random_seed(0)
report("plain", probabilities_of(trained(conv_net(), keras.optimizers.SGD(0.05, momentum=0.9))))

# [ema]
optimizer = keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.98)
model = trained(conv_net(), optimizer)  # `fit` ends by assigning the average
late_phase.keras.reestimate_batch_norm(model, training)  # its statistics were the last weights'
report("EMA", probabilities_of(model))

# [swa]
# BatchNorm statistics come from the images of `dataset`.
swa = late_phase.keras.SWA(start=late_phase.keras.Epoch(6), dataset=training)
model = trained(conv_net(), keras.optimizers.SGD(0.05, momentum=0.9), callbacks=[swa])
with swa.averaged():
    report("SWA", probabilities_of(model))

# [late]
model = late_phase.keras.convert(conv_net(), members=5)  # BatchNorm and the last layer
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.SGD(0.05, momentum=0.9), members=5, start=6 * steps_per_epoch
)
report("late-phase", probabilities_of(late_phase.keras.collapse(trained(model, optimizer))))

# [batch_ensemble]
model = conv_net(late_phase.keras.Rank1Conv2D, members=5)
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.SGD(0.05, momentum=0.9), members=5, start=0, sigma=0.5
)
trained(model, optimizer)
report(
    "rank-1 members",
    late_phase.keras.ensemble(model, activation="softmax").predict(test[0], verbose=0),
)

# [ensemble]
models = [trained(conv_net(), keras.optimizers.SGD(0.05, momentum=0.9)) for _ in range(5)]
report("deep ensemble", np.mean([probabilities_of(model) for model in models], axis=0))
