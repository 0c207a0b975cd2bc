"""One peer of a benchmark, in a process of its own. The benchmark's driver starts it and tells it
when to run.

    python bench_peer.py WORKLOAD NAME FOLDER THREADS

FOLDER holds the initial weights and the data, one ARRAY.npy each, which also set all sizes; NAME is
keras-rank1, keras-lstm or torch.

WORKLOAD lstm is what the op computes, embedding and input product included: h [T,N,H] and the
gradients of all weights for a given gradient of h. WORKLOAD enwik8 is one whole training step:
embedding, LSTM, softmax layer, mean cross-entropy, all gradients, clipping of their global norm at
1, Adam; the state is carried to the next step.

Protocol: prints {"version": TEXT}; then answers each line on standard input by one JSON object on a
line:

    check FILE.npz   lstm: saves h and the gradients; {"saved": FILE.npz}
    check N          enwik8: trains N steps, the first ones of the process; {"losses": [N numbers]}
    run N            {"seconds": [N numbers]}, of one step each

A check comes before the first run: it also compiles what is compiled once.
"""

import json
import os
import sys
import time

import numpy as np

# Of enwik8; Adam's other values are the default everywhere, 0.9 and 0.999.
LR, EPSILON, CLIP = 1e-3, 1e-8, 1.0


def save_check(compute):
    """The check of the workload lstm: `compute()` returns the arrays by name."""

    def check(path):
        np.savez(path, **compute())
        return {"saved": path}

    return check


class Training:
    """The workload enwik8 on top of `train(inputs, targets) -> loss`, which updates the model."""

    def __init__(self, arrays, to_tensor, train):
        self.windows = [
            (to_tensor(tokens[:-1]), to_tensor(tokens[1:])) for tokens in arrays["tokens"]
        ]  # [S,T+1,N]
        self.train, self.steps = train, 0

    def step(self):
        inputs, targets = self.windows[self.steps % len(self.windows)]
        self.steps += 1
        return float(self.train(inputs, targets))

    def check(self, steps):
        return {"losses": [self.step() for _ in range(int(steps))]}


def keras_layers(arrays, threads, rank1):
    """Embedding and LSTM: Keras's own layer, or an RNN over a cell with rank-1 factors, as a user
    would write it.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    units = arrays["R"].shape[0]

    class Rank1Cell(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.state_size = [units, units]

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 4 * units), name="kernel")
            self.recurrent_kernel = self.add_weight(
                shape=(units, 4 * units), name="recurrent_kernel"
            )
            self.bias = self.add_weight(shape=(4 * units,), name="bias")
            self.u = self.add_weight(shape=(units,), name="u")
            self.v = self.add_weight(shape=(4 * units,), name="v")

        def call(self, x, states):
            h, c = states
            z = (
                tf.matmul(x, self.kernel)
                + self.bias
                + tf.matmul(h * self.u, self.recurrent_kernel) * self.v
            )
            i, f, g, o = tf.split(z, 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            return h, [h, c]

    embedding = keras.layers.Embedding(*arrays["E"].shape)
    options = {"return_sequences": True, "return_state": True}
    layer = (
        keras.layers.RNN(Rank1Cell(), **options) if rank1 else keras.layers.LSTM(units, **options)
    )
    layer(embedding(np.zeros((1, 1), np.int32)))  # builds
    embedding.set_weights([arrays["E"]])
    layer.set_weights(
        [arrays["W"], arrays["R"], arrays["b"]]
        + ([arrays["u"][0], arrays["v"][0]] if rank1 else [])
    )
    return f"Keras {keras.__version__}, TensorFlow {tf.__version__}", embedding, layer


def keras_lstm_part(arrays, threads, rank1):
    version, embedding, layer = keras_layers(arrays, threads, rank1)
    import tensorflow as tf

    tokens = tf.constant(arrays["tokens"].T)  # Keras has the batch first
    states = [tf.constant(arrays["h0"]), tf.constant(arrays["c0"])]
    dh = tf.constant(arrays["dh"].transpose(1, 0, 2))
    variables = [w.value for w in embedding.trainable_variables + layer.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            h, _, _ = layer(embedding(tokens), initial_state=states)
        return h, tape.gradient(h, variables, output_gradients=dh)

    def compute():
        h, grads = step()
        names = ["E", "W", "R", "b", "u", "v"]
        return {
            "h": h.numpy().transpose(1, 0, 2),
            **{n: tf.convert_to_tensor(g).numpy() for n, g in zip(names, grads)},
        }

    return version, step, save_check(compute)


def keras_training(arrays, threads, rank1):
    version, embedding, layer = keras_layers(arrays, threads, rank1)
    import keras
    import tensorflow as tf

    units, batch = arrays["R"].shape[0], arrays["tokens"].shape[-1]
    softmax = keras.layers.Dense(len(arrays["softmax_b"]))
    softmax.build((None, None, units))
    softmax.set_weights([arrays["softmax_W"], arrays["softmax_b"]])
    variables = (
        embedding.trainable_variables + layer.trainable_variables + softmax.trainable_variables
    )
    adam = keras.optimizers.Adam(LR, epsilon=EPSILON)
    adam.build(variables)
    carried = [tf.Variable(tf.zeros([batch, units])) for _ in range(2)]

    @tf.function
    def train(inputs, targets):
        with tf.GradientTape() as tape:
            h, *states = layer(
                embedding(inputs), initial_state=[state.read_value() for state in carried]
            )
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(targets, softmax(h))
            )
        # The embedding's gradient comes as a row per character of the batch; its norm is that of
        # the rows' sums.
        grads = [
            tf.convert_to_tensor(grad) for grad in tape.gradient(loss, [v.value for v in variables])
        ]
        adam.apply(tf.clip_by_global_norm(grads, CLIP)[0], variables)
        for variable, state in zip(carried, states):
            variable.assign(state)
        return loss

    training = Training(arrays, lambda tokens: tf.constant(tokens.T), train)
    return version, training.step, training.check


def torch_layers(arrays, threads):
    """PyTorch's nn.Embedding and nn.LSTM (no rank-1 factors)."""
    import torch

    torch.set_num_threads(threads)
    vocab, inputs = arrays["E"].shape
    embedding, lstm = torch.nn.Embedding(vocab, inputs), torch.nn.LSTM(inputs, arrays["R"].shape[0])
    # The gate order is i, f, g, o there too; matrices are transposed, and there are two biases.
    with torch.no_grad():
        embedding.weight.copy_(torch.tensor(arrays["E"]))
        lstm.weight_ih_l0.copy_(torch.tensor(arrays["W"].T))
        lstm.weight_hh_l0.copy_(torch.tensor(arrays["R"].T))
        lstm.bias_ih_l0.copy_(torch.tensor(arrays["b"]))
        lstm.bias_hh_l0.zero_()
    return f"PyTorch {torch.__version__}", embedding, lstm


def torch_lstm_part(arrays, threads):
    version, embedding, lstm = torch_layers(arrays, threads)
    import torch

    tokens, dh = torch.tensor(arrays["tokens"].astype(np.int64)), torch.tensor(arrays["dh"])
    states = tuple(torch.tensor(arrays[name])[None] for name in ("h0", "c0"))
    parameters = list(embedding.parameters()) + list(lstm.parameters())

    def step():
        for parameter in parameters:
            parameter.grad = None
        h, _ = lstm(embedding(tokens), states)
        h.backward(dh)
        return h

    def compute():
        h = step()
        return {
            "h": h.detach().numpy(),
            "E": embedding.weight.grad.numpy(),
            "W": lstm.weight_ih_l0.grad.numpy().T,
            "R": lstm.weight_hh_l0.grad.numpy().T,
            "b": lstm.bias_ih_l0.grad.numpy(),
        }

    return version, step, save_check(compute)


def torch_training(arrays, threads):
    version, embedding, lstm = torch_layers(arrays, threads)
    import torch

    softmax = torch.nn.Linear(*arrays["softmax_W"].shape)
    with torch.no_grad():
        softmax.weight.copy_(torch.tensor(arrays["softmax_W"].T))
        softmax.bias.copy_(torch.tensor(arrays["softmax_b"]))
    # The second bias would be trained too, and the sum of the two twice as fast.
    lstm.bias_hh_l0.requires_grad_(False)
    parameters = [
        p for part in (embedding, lstm, softmax) for p in part.parameters() if p.requires_grad
    ]
    adam = torch.optim.Adam(parameters, lr=LR, eps=EPSILON, fused=True)
    carried = [torch.zeros(1, arrays["tokens"].shape[-1], arrays["R"].shape[0]) for _ in range(2)]

    def train(inputs, targets):
        adam.zero_grad()
        h, states = lstm(embedding(inputs), carried)
        loss = torch.nn.functional.cross_entropy(softmax(h).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        adam.step()
        carried[:] = [state.detach() for state in states]
        return loss.detach()

    training = Training(arrays, lambda tokens: torch.tensor(tokens.astype(np.int64)), train)
    return version, training.step, training.check


def main():
    workload, name, folder, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    arrays = {
        file.removesuffix(".npy"): np.load(os.path.join(folder, file))
        for file in os.listdir(folder)
    }
    if name == "torch":
        version, step, check = {"lstm": torch_lstm_part, "enwik8": torch_training}[workload](
            arrays, threads
        )
    else:
        make = {"lstm": keras_lstm_part, "enwik8": keras_training}[workload]
        version, step, check = make(arrays, threads, rank1=name == "keras-rank1")
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        command, argument = line.split()
        if command == "check":
            answer = check(argument)
        else:
            answer = {"seconds": []}
            for _ in range(int(argument)):
                start = time.perf_counter()
                step()
                answer["seconds"].append(time.perf_counter() - start)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
