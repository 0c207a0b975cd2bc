"""The benchmarks' Python: the drivers of enwik8 and batchnorm with processes that only speak the
protocol, the peers and Keras at a small size.
"""

import argparse
import collections
import os
import sys
import textwrap

import numpy as np
import pytest

from tools.bench import bench_batchnorm, bench_enwik8, bench_keras, bench_lstm, bench_report

FAKE = """
    import json, os, sys

    flags = dict(argument[2:].split("=") for argument in sys.argv[1:])
    assert set(flags) - {"pairs", "memory"} == {"arrays", "threads"}, flags
    assert os.path.exists(flags["arrays"] + "/tokens.npy")

    def say(**answer):
        print(json.dumps(answer), flush=True)

    if "pairs" in flags:
        say(rounds=[[0.2, 0.2, 0.21]] * int(flags["pairs"]))
        sys.exit()
    if "memory" in flags:
        say(start_bytes=100000000, bytes=300000000 + int(flags["memory"]) * 1000000)
        sys.exit()
    say(version="fake 1")
    for line in sys.stdin:
        command, count = line.split()
        if command == "check":
            assert LOSSES, "no losses today"
            say(losses=LOSSES[:int(count)])
        else:
            say(seconds=[SECONDS] * int(count))
"""
LOSSES = [5.32, 5.31, 5.3, 5.29, 5.28, 5.27, 5.26, 5.25]


class Fakes:
    """Ours and peers, all fake; `options` go to the driver."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.options = argparse.Namespace(rounds=2, pairs=30, torch_python="python-with-torch")
        self.programs = {name: self.program(name, LOSSES, 0.4) for name in bench_report.PEERS}
        self.started = []
        monkeypatch.setenv("LATE_PHASE_BENCH", self.program("ours", LOSSES, 0.2))
        monkeypatch.setattr(
            bench_report,
            "machine",
            lambda: {
                "cpu": "a CPU",
                "threads": 2,
                "library": {"CPU kernels": "avx2", "late_phase": "0"},
            },
        )
        monkeypatch.setattr(bench_report, "start_peer", self.start_peer)

    def program(self, name, losses, seconds):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(
                f"#!{sys.executable}\nLOSSES, SECONDS = {losses}, {seconds}\n"
                + textwrap.dedent(FAKE)
            )
        os.chmod(path, 0o755)
        return path

    def start_peer(self, workload, name, options, folder, threads):
        assert workload == "enwik8" and options is self.options
        self.started.append(
            bench_report.Process(
                workload,
                f"the peer {name}",
                [self.programs[name], f"--arrays={folder}", f"--threads={threads}"],
            )
        )
        return self.started[-1]


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    return Fakes(tmp_path, monkeypatch)


def test_enwik8_times_everybody_and_reports(fakes):
    results = bench_enwik8.measure(fakes.options)
    assert {name: len(seconds) for name, seconds in results["seconds"].items()} == {
        **dict.fromkeys(bench_report.PEERS, 8),
        "ours": 8,
    }
    assert all(peer.process.poll() == 0 for peer in fakes.started)
    report = "\n".join(bench_enwik8.render(results))
    assert "difference of the first 8 losses 0.0e+00" in report
    assert "Keras RNN, rank-1 cell, fake 1: first loss 5.3200" in report
    assert "late_phase, rank-1                         200        64,000" in report
    for text in bench_report.PEERS.values():
        assert f"{'speed against ' + text:60}  2.000" in report
    assert (
        "30 rounds of K = 1" in report
        and "K = 1 over K = 1 (control)              1.0000   1.0000 to 1.0000" in report
    )
    assert "K = 10 over K = 1                       1.0500   1.0500 to 1.0500" in report
    assert "K = 1: 301 MB, 201 MB more" in report and "K = 10: 310 MB, 210 MB more" in report


def test_enwik8_does_without_pairs_and_torch(fakes):
    fakes.options.pairs, fakes.options.torch_python = 0, None
    report = "\n".join(bench_enwik8.render(bench_enwik8.measure(fakes.options)))
    assert "rounds of K" not in report and "PyTorch" not in report


@pytest.mark.parametrize(
    "name, losses, message",
    [
        (
            "ours",
            LOSSES[:7] + [5.251],
            "the losses of late_phase and the Keras model differ by 1.9e-04; nothing was timed",
        ),
        ("ours", [float("nan")] * 8, "late_phase starts at the loss nan"),
        (
            "keras-rank1",
            [5.2] + LOSSES[1:],
            "the peer keras-rank1 starts at the loss 5.2000, not at ln 205; nothing was timed",
        ),
        (
            "torch",
            [5.33] + LOSSES[1:],
            "the losses of the peer torch and the Keras model differ by",
        ),
        ("torch", [], "the peer torch failed:\nTraceback"),
        ("ours", [], "no losses today"),
    ],
)
def test_enwik8_times_nothing_if_somebody_computes_something_else(fakes, name, losses, message):
    fakes.program(name, str(losses).replace("nan", "float('nan')"), 0.1)
    with pytest.raises(SystemExit) as stopped:
        bench_enwik8.measure(fakes.options)
    assert message in str(stopped.value)
    assert all(peer.process.poll() is not None for peer in fakes.started)


def test_enwik8_compares_other_models_by_their_first_loss_only(fakes):
    fakes.program("torch", LOSSES[:1] + [5.0] * 7, 0.1)
    assert "torch" in bench_enwik8.measure(fakes.options)["peers"]


def test_enwik8_arrays_are_one_text():
    arrays = bench_enwik8.make_arrays()
    tokens = arrays["tokens"]
    assert (
        tokens.shape == (20, 101, 128)
        and tokens.dtype == np.int32
        and tokens.min() >= 0
        and tokens.max() < 205
    )
    assert (tokens[1:, 0] == tokens[:-1, -1]).all()
    assert all(array.dtype == np.float32 for name, array in arrays.items() if name != "tokens")


FAKE_BATCHNORM = """
    import json, os, sys

    flags = dict(argument[2:].split("=") for argument in sys.argv[1:])
    onednn = int(os.environ["TF_ENABLE_ONEDNN_OPTS"])
    if "wide_resnet_rounds" in flags:
        assert onednn
        rounds = [[0.5, 0.5, 0.505, 0.6]] * int(flags["wide_resnet_rounds"])
        print(json.dumps({"difference": 3e-6, "rounds": rounds}))
        sys.exit()
    milliseconds = {"ours": 2, "stock": 9 - onednn, "floor": 1.5}
    names = [f"{group}/{who}" for group in GROUPS for who in milliseconds
             if who != "floor" or "Relu" in group]
    entries = [{"name": f"{name}/iterations:1/real_time", "run_type": "iteration",
                "real_time": milliseconds[name.split("/")[1]] + repetition}
               for name in names for repetition in range(int(flags["benchmark_repetitions"]))]
    context = {"difference": "1e-6" if onednn else "2e-6"}
    print(json.dumps({"context": context, "benchmarks": entries}))
"""


def test_batchnorm_is_compared_with_both_of_tensorflow(fakes):
    path = os.path.join(fakes.folder, "ours")
    with open(path, "w") as file:
        file.write(
            f"#!{sys.executable}\nGROUPS = {list(bench_batchnorm.LAYERS)}\n"
            + textwrap.dedent(FAKE_BATCHNORM)
        )
    results = bench_batchnorm.measure(argparse.Namespace(turns=2, rounds=3, pairs=4))
    assert {
        who: len(results["seconds"][f"128x84 Identity/{who}"])
        for who in ("ours", "stock", "oneDNN")
    } == {"ours": 12, "stock": 6, "oneDNN": 6}
    report = "\n".join(bench_batchnorm.render(results))
    assert (
        "largest relative difference 2.0e-06" in report
        and "minimum of 2 x 3 alternating rounds" in report
    )
    assert (
        f"{'[128,32,32,160], ReLU (WRN 28-10)':40}     2.000       9.000        8.000    1.500\n"
        in report
    )
    assert f"{'[128,84] (ConvNet)':40}     2.000       9.000        8.000\n" in report
    assert f"{'[128,32,32,160], ReLU (WRN 28-10): speed':60}  4.500   target >= 3.0: met" in report
    assert (
        f"{'[128,32,32,160], ReLU (WRN 28-10): with oneDNN':60}  4.000   target >= 3.0: met"
        in report
    )
    assert f"{'[128,84] (ConvNet): with oneDNN':60}  4.000\n" in report
    floor_ratio = "[128,32,32,160], ReLU (WRN 28-10): time over floor's"
    assert f"{floor_ratio:60}  1.333   target <= 2.0: met" in report
    assert (
        "losses agree to 3.0e-06" in report
        and "500 ms with our BatchNorm, 600 ms with TensorFlow's" in report
    )
    slower = "with TensorFlow's BatchNorm over ours"
    assert f"{slower:38}  1.2000   1.2000 to 1.2000   target lower end > 1: met" in report
    assert (
        f"{'K = 10 over K = 1':38}  1.0100   1.0100 to 1.0100   target upper end <= 1.03: met"
        in report
    )


SMALL = {"TIME": 5, "BATCH": 3, "VOCAB": 11, "UNITS": 6}


@pytest.mark.parametrize("name", ["keras-rank1", "keras-lstm"])
def test_peers_of_the_lstm_compute_what_the_op_computes(tmp_path, monkeypatch, name):
    for size, value in {**SMALL, "EMBEDDING": 7}.items():
        monkeypatch.setattr(bench_lstm, size, value)
    arrays = bench_lstm.make_weights(rank1=name == "keras-rank1")
    bench_report.save_arrays(tmp_path / "arrays", arrays)
    with bench_report.start_peer("lstm", name, None, str(tmp_path / "arrays"), 1) as peer:
        assert "Keras" in peer.version
        assert bench_lstm.difference(peer, arrays, str(tmp_path)) < 1e-5
        assert len(peer.seconds(2)) == 2


def train(arrays, steps):
    """Losses and gradient norms of the training that tools/bench/bench_peer.py describes, with the
    op.
    """
    import tensorflow as tf

    import late_phase

    weights = {name: tf.Variable(array) for name, array in arrays.items() if name != "tokens"}
    m, v = ({name: 0.0 for name in weights} for _ in range(2))
    h = c = tf.zeros([arrays["tokens"].shape[2], arrays["R"].shape[0]])
    losses, norms = [], []
    for n in range(1, steps + 1):
        tokens = arrays["tokens"][(n - 1) % len(arrays["tokens"])]
        with tf.GradientTape() as tape:
            table = weights["E"] @ weights["W"] + weights["b"]
            lstm = late_phase.ops.rank1_lstm_tokens(
                tokens[:-1], table, weights["R"], weights["u"], weights["v"], 0, h, c
            )
            logits = lstm.h @ weights["softmax_W"] + weights["softmax_b"]
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[1:], logits)
            )
        h, c = lstm.final_h, lstm.final_c
        losses.append(float(loss))
        grads = {
            name: tf.convert_to_tensor(grad) for name, grad in tape.gradient(loss, weights).items()
        }
        norms.append(float(tf.sqrt(sum(tf.reduce_sum(grad**2) for grad in grads.values()))))
        for name, grad in grads.items():
            grad = grad * min(1.0, 1.0 / norms[-1])
            m[name] = 0.9 * m[name] + 0.1 * grad
            v[name] = 0.999 * v[name] + 0.001 * grad**2
            rate = 1e-3 * (1 - 0.999**n) ** 0.5 / (1 - 0.9**n)
            weights[name].assign_sub(rate * m[name] / (tf.sqrt(v[name]) + 1e-8))
    return losses, norms


def test_peer_of_enwik8_trains_as_the_op_does(tmp_path, monkeypatch):
    for size, value in {**SMALL, "WINDOWS": 3}.items():
        monkeypatch.setattr(bench_enwik8, size, value)
    arrays = bench_enwik8.make_arrays()
    # As large as to matter, and for the norm of the gradients to be clipped.
    arrays.update(
        {name: 100 * arrays[name] for name in ("E", "W", "R")}, softmax_W=280 * arrays["softmax_W"]
    )
    bench_report.save_arrays(tmp_path / "arrays", arrays)
    with bench_report.start_peer(
        "enwik8", "keras-rank1", None, str(tmp_path / "arrays"), 1
    ) as peer:
        losses = peer.ask("check 7")["losses"]
        assert len(peer.seconds(2)) == 2
    expected, norms = train(arrays, 7)
    assert max(norms) > 1 > min(norms), f"all or none were clipped: {norms}"
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "network, optimizer",
    [
        ("dense", "nesterov"),
        ("dense", "adamw"),
        ("transformer", "adam"),
        ("embedding", "adam"),
        ("lstm", "adam"),
    ],
)
def test_keras_trains_alike_before_the_members(network, optimizer):
    rounds, difference = bench_keras.measure_row(network, optimizer, pairs=3)
    assert np.shape(rounds) == (3, 5 if network == "lstm" else 3) and np.min(rounds) > 0
    # Factors, which Keras's LSTM lacks, are trained before there are members, too.
    assert difference < (3e-4 if network == "lstm" else 1e-5)


def test_keras_reports_its_first_calls():
    """As a ratio of each pair; a record without them is one of before."""
    library = {"late_phase": "1", "CPU kernels": "avx2"}
    results = {"cpu": "a CPU", "threads": 2, "library": library, "versions": "Keras 3"}
    results.update(rows={"dense adam": [[1, 1, 2]]}, differences={"dense adam": 0.0})
    assert not any("MobileNetV2" in line for line in bench_keras.render(results))
    results["tracing"] = [[2.0, 4.0], [2.0, 2.2], [4.0, 4.4]]
    assert "median of the ratios 1.10   target <= 1.2: met" in bench_keras.render(results)[-1]
    results["tracing"] = [[2.0, 4.0]]
    assert "median of the ratios 2.00   target <= 1.2: MISSED" in bench_keras.render(results)[-1]


def test_keras_steps_are_compiled_where_the_columns_say_so(monkeypatch):
    """The rows with XLA are of a dense network, a ConvNet and an LSTM. A round has a cycle."""
    assert [network for network, _ in bench_keras.COMPILED] == ["dense", "convnet", "lstm"]
    compiled, calls = [], collections.Counter()
    make_step = bench_keras.make_step

    def watched(model, *arguments, **options):
        step = make_step(model, *arguments, **options)
        has_members = any(hasattr(weight, "late_phase_members") for weight in model.weights)
        number = len(compiled)
        compiled.append((has_members, model.jit_compile))

        def counted():
            calls[number] += 1
            return step()

        return counted

    monkeypatch.setattr(bench_keras, "make_step", watched)
    rounds, difference = bench_keras.measure_row("dense", "adam", pairs=2)
    assert compiled == [(False, False)] * 2 + [(True, False), (False, True), (True, True)]
    assert np.shape(rounds) == (2, 5) and np.min(rounds) > 0 and difference < 1e-5
    cycle = bench_keras.MEMBERS
    assert calls == {number: bench_keras.START + cycle + 2 * cycle for number in range(5)}


def test_keras_reports_the_speed_with_xla():
    """By the shortest round of each; a record without them has no such table."""
    rows = {"dense adam": [[0.02, 1, 0.01, 0.05, 0.04], [0.04, 1, 0.02, 0.06, 0.02]]}
    head, *_, line = bench_keras.render_compiled(rows)[1:]
    assert "steps per second, by the shortest round" in head
    name, numbers = line[:46].strip(), [float(number) for number in line[46:].split()]
    assert name == "two dense layers, Adam"
    assert numbers == [50.0, 100.0, 20.0, 50.0, 2.0, 2.5, 2.0]
    assert bench_keras.render_compiled({"dense adam": [[1, 1, 2]]}) == []
    assert bench_keras.render_compiled({}) == []


def test_keras_that_trains_otherwise_is_not_timed(monkeypatch):
    import keras

    rates = iter([0.01, 0.01, 0.5])  # plain, plain again, late-phase
    monkeypatch.setattr(
        bench_keras, "make_optimizer", lambda name: keras.optimizers.SGD(next(rates))
    )
    with pytest.raises(SystemExit, match="losses before the members are not those of Keras"):
        bench_keras.measure_row("dense", "nesterov", pairs=3)
