"""A small Transformer on handwritten digits; its norms and head have members: docs/tutorial.md."""

# [transformer]
import keras
import numpy as np
from sklearn.datasets import load_digits

import late_phase.keras

x, y = load_digits(return_X_y=True)  # 1,797 digits of 8×8 pixels
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order].reshape(-1, 8, 8).astype("float32") / 8 - 1, y[order]
rows = np.broadcast_to(np.eye(8, dtype="float32"), x.shape)
x = np.concatenate([x, rows], axis=2)  # a sequence of eight rows: the pixels, and which row it is
training, test = (x[:600], y[:600]), (x[600:], y[600:])


def block(inputs):
    """Attention and a feed-forward part, each normalised first and added."""
    normed = keras.layers.LayerNormalization()(inputs)
    inputs = inputs + keras.layers.MultiHeadAttention(4, 8)(normed, normed)
    normed = keras.layers.LayerNormalization()(inputs)
    return inputs + keras.layers.Dense(32)(keras.layers.Dense(64, "gelu")(normed))


keras.utils.set_random_seed(0)
inputs = keras.Input(x.shape[1:])
features = block(block(keras.layers.Dense(32)(inputs)))
features = keras.layers.LayerNormalization()(keras.layers.GlobalAveragePooling1D()(features))
model = keras.Model(inputs, keras.layers.Dense(10)(features))

# [members]
members = 5
late = late_phase.keras.convert(model, members, weights="normalization + head")
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.Adam(2e-3),
    members=members,
    start="60%",
    sigma=0.1,
    base_rate_scale=members**0.5,
)
swa = late_phase.keras.SWA("60%")
metrics = late_phase.keras.MemberMetrics(test, swa=swa)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
late.compile(optimizer, loss, metrics=["accuracy"])
history = late.fit(*training, batch_size=25, epochs=15, verbose=0, callbacks=[swa, metrics])

# [figures]
for name in ("member_0", "collapsed", "swa"):
    last = {m: history.history[f"val_{name}_{m}"][-1] for m in ("accuracy", "loss")}
    print(f"{name:<10} accuracy {100 * last['accuracy']:.1f} %, loss {last['loss']:.3f}")
print(f"spread of the members: {history.history['member_spread'][-1]:.2f}")

# [plain]
with swa.averaged():
    plain = late_phase.keras.collapse(late)
print("layers:", ", ".join(sorted({type(layer).__name__ for layer in plain.layers})))
