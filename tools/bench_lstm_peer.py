"""One peer of the LSTM benchmark, in a process of its own. tools/bench_lstm.py starts it and tells it when to run.

    python bench_lstm_peer.py NAME WEIGHTS.npz THREADS

The peers compute what the op computes, embedding and input product included: h [T,N,H] and the gradients of all weights for a
given gradient of h. Protocol: prints its version; then for each line on standard input, "check FILE.npz" saves h and gradients,
"run N" prints the seconds of each of N steps as JSON.
"""

import json
import sys
import time

import numpy as np


def keras_peer(weights, threads, rank1):
    """Keras, compiled by tf.function: its own LSTM layer, or an RNN over a cell with rank-1 factors, as a user would write it."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    units = weights["R"].shape[0]

    class Rank1Cell(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.state_size = [units, units]

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 4 * units), name="kernel")
            self.recurrent_kernel = self.add_weight(shape=(units, 4 * units), name="recurrent_kernel")
            self.bias = self.add_weight(shape=(4 * units,), name="bias")
            self.u = self.add_weight(shape=(units,), name="u")
            self.v = self.add_weight(shape=(4 * units,), name="v")

        def call(self, x, states):
            h, c = states
            z = tf.matmul(x, self.kernel) + self.bias + tf.matmul(h * self.u, self.recurrent_kernel) * self.v
            i, f, g, o = tf.split(z, 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            return h, [h, c]

    embedding = keras.layers.Embedding(*weights["E"].shape)
    layer = keras.layers.RNN(Rank1Cell(), return_sequences=True) if rank1 else keras.layers.LSTM(units, return_sequences=True)
    tokens = tf.constant(weights["tokens"].T)  # Keras has the batch first
    states = [tf.constant(weights["h0"]), tf.constant(weights["c0"])]
    dh = tf.constant(weights["dh"].transpose(1, 0, 2))
    layer(embedding(tokens), initial_state=states)  # builds
    embedding.set_weights([weights["E"]])
    layer.set_weights([weights["W"], weights["R"], weights["b"]] + ([weights["u"][0], weights["v"][0]] if rank1 else []))
    variables = [w.value for w in embedding.trainable_variables + layer.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            h = layer(embedding(tokens), initial_state=states)
        return h, tape.gradient(h, variables, output_gradients=dh)

    def check():
        h, grads = step()
        names = ["E", "W", "R", "b", "u", "v"]
        return {"h": h.numpy().transpose(1, 0, 2), **{n: tf.convert_to_tensor(g).numpy() for n, g in zip(names, grads)}}

    return f"Keras {keras.__version__}, TensorFlow {tf.__version__}", step, check


def torch_peer(weights, threads):
    """PyTorch's nn.Embedding and nn.LSTM (no rank-1 factors)."""
    import torch

    torch.set_num_threads(threads)
    vocab, inputs = weights["E"].shape
    units = weights["R"].shape[0]
    embedding, lstm = torch.nn.Embedding(vocab, inputs), torch.nn.LSTM(inputs, units)
    with torch.no_grad():  # the gate order is i, f, g, o there too; matrices are transposed, and there are two biases
        embedding.weight.copy_(torch.tensor(weights["E"]))
        lstm.weight_ih_l0.copy_(torch.tensor(weights["W"].T))
        lstm.weight_hh_l0.copy_(torch.tensor(weights["R"].T))
        lstm.bias_ih_l0.copy_(torch.tensor(weights["b"]))
        lstm.bias_hh_l0.zero_()
    tokens, dh = torch.tensor(weights["tokens"].astype(np.int64)), torch.tensor(weights["dh"])
    states = tuple(torch.tensor(weights[name])[None] for name in ("h0", "c0"))
    parameters = list(embedding.parameters()) + list(lstm.parameters())

    def step():
        for parameter in parameters:
            parameter.grad = None
        h, _ = lstm(embedding(tokens), states)
        h.backward(dh)
        return h

    def check():
        h = step()
        return {
            "h": h.detach().numpy(), "E": embedding.weight.grad.numpy(), "W": lstm.weight_ih_l0.grad.numpy().T,
            "R": lstm.weight_hh_l0.grad.numpy().T, "b": lstm.bias_ih_l0.grad.numpy(),
        }

    return f"PyTorch {torch.__version__}", step, check


def main():
    name, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    weights = dict(np.load(path))
    if name == "torch":
        version, step, check = torch_peer(weights, threads)
    else:
        version, step, check = keras_peer(weights, threads, rank1=name == "keras-rank1")
    step()
    print(version, flush=True)
    for line in sys.stdin:
        command, argument = line.split()
        if command == "check":
            np.savez(argument, **check())
            print("checked", flush=True)
        else:
            seconds = []
            for _ in range(int(argument)):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
