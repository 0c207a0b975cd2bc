"""A character model with ten members: a step trains one member's factors and the shared weights."""

import numpy as np
import tensorflow as tf

import late_phase

tf.keras.utils.set_random_seed(1)
sentence = b"late in training a few weights become many; at the end they are one again. "
text = np.frombuffer(sentence * 40, np.uint8)
vocab, tokens = np.unique(text, return_inverse=True)
units, members, time, batch = 64, 10, 50, 10
streams = (
    tokens[: batch * (len(tokens) // batch)].reshape(batch, -1).T.astype(np.int32)
)  # [length, batch]

table = tf.Variable(tf.random.uniform([len(vocab), 4 * units], -0.1, 0.1))
recurrent_kernel = tf.Variable(tf.random.uniform([units, 4 * units], -0.1, 0.1))
u = tf.Variable(tf.random.uniform([members, units], 0.9, 1.1))
v = tf.Variable(tf.random.uniform([members, 4 * units], 0.9, 1.1))
output = tf.Variable(tf.random.uniform([units, len(vocab)], -0.1, 0.1))
weights = [table, recurrent_kernel, u, v, output]
optimizer = tf.keras.optimizers.Adam(3e-3)


@tf.function  # one graph serves all members: `member` is a tensor
def train_step(inputs, targets, member):
    with tf.GradientTape() as tape:
        h = late_phase.ops.rank1_lstm_tokens(inputs, table, recurrent_kernel, u, v, member).h
        logits = tf.tensordot(h, output, 1)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss / np.log(2)


for step in range(301):
    start = step * time % (len(streams) - time - 1)
    inputs, targets = streams[start : start + time], streams[start + 1 : start + time + 1]
    bpc = train_step(inputs, targets, tf.constant(step % members))
    if step % 100 == 0:
        print(f"step {step}: member {step % members}, {bpc.numpy():.2f} bits per character")
