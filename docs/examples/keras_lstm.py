"""A character model whose LSTM has late-phase rank-1 factors, trained, then made a plain model."""

import keras
import numpy as np

import late_phase.keras

keras.utils.set_random_seed(0)
sentence = b"late in training a few weights become many; at the end they are one again. "
text = np.frombuffer(sentence * 41, np.uint8)
vocab, tokens = np.unique(text, return_inverse=True)
x = np.eye(len(vocab))[tokens[:3000].reshape(100, 30)]  # [sequences, time, symbols], one-hot
y = tokens[1:3001].reshape(100, 30)  # the symbols that follow

members = 5
model = keras.Sequential(
    [
        keras.Input((None, len(vocab))),
        late_phase.keras.Rank1LSTM(64, members=members, return_sequences=True),
        keras.layers.Dense(len(vocab)),
    ]
)
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.Adam(1e-2), members=members, start=200, sigma=0.1, base_scale=1 / members
)
model.compile(
    optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
model.fit(x, y, batch_size=10, epochs=30, verbose=0)  # 10 steps an epoch: members from 20 on

plain = late_phase.keras.collapse(model)  # keras.layers.LSTM, with the mean factors in its kernel
plain.compile(loss=model.loss, metrics=["accuracy"])
print(f"accuracy of the plain model: {plain.evaluate(x, y, verbose=0)[1]:.2f}")
print("layers:", ", ".join(type(layer).__name__ for layer in plain.layers))
