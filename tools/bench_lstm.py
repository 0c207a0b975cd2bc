"""tools/latephase bench lstm: the LSTM part of an enwik8 training step, ours against peers, alternately in one run.

Checks first that all compute the same, then times rounds in which everybody runs in turn; prints minima, ratios and targets.
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from tools import bench_report

TIME, BATCH, EMBEDDING, VOCAB, UNITS = 100, 128, 205, 205, 500
PEERS = {
    "keras-rank1": "Keras RNN, rank-1 cell",
    "keras-lstm": "Keras LSTM (no rank-1)",
    "torch": "PyTorch nn.LSTM (no rank-1)",
}


def make_weights(rank1):
    rng = np.random.default_rng(0)
    uniform = lambda size, *shape: rng.uniform(-size, size, shape).astype(np.float32)
    weights = {
        "E": uniform(0.1, VOCAB, EMBEDDING), "W": uniform(0.1, EMBEDDING, 4 * UNITS), "b": uniform(0.1, 4 * UNITS),
        "R": uniform(0.05, UNITS, 4 * UNITS), "h0": uniform(0.1, BATCH, UNITS), "c0": uniform(0.1, BATCH, UNITS),
        "dh": uniform(0.01, TIME, BATCH, UNITS), "tokens": rng.integers(0, VOCAB, (TIME, BATCH), dtype=np.int32),
        "u": np.ones((1, UNITS), np.float32), "v": np.ones((1, 4 * UNITS), np.float32),
    }
    if rank1:
        weights["u"] += uniform(0.1, 1, UNITS)
        weights["v"] += uniform(0.1, 1, 4 * UNITS)
    return weights


def ours(weights):
    """h and gradients from the op, in Python: the same library file that the C++ benchmark runs."""
    import tensorflow as tf

    import late_phase

    names = ["E", "W", "b", "R", "u", "v"]
    tensors = {name: tf.constant(weights[name]) for name in names}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        table = tensors["E"] @ tensors["W"] + tensors["b"]
        h = late_phase.ops.rank1_lstm_tokens(
            weights["tokens"], table, tensors["R"], tensors["u"], tensors["v"], 0, weights["h0"], weights["c0"]).h
    grads = tape.gradient(h, tensors, output_gradients=tf.constant(weights["dh"]))
    result = {"h": h.numpy(), **{name: grads[name].numpy() for name in names}}
    return {**result, "u": result["u"][0], "v": result["v"][0]}


class Peer:
    def __init__(self, name, python, folder, threads):
        self.name, self.folder = name, folder
        self.weights = make_weights(rank1=name == "keras-rank1")
        path = os.path.join(folder, name + ".npz")
        np.savez(path, **self.weights)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_lstm_peer.py")
        self.process = subprocess.Popen(
            [python, script, name, path, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
        self.version = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench lstm: the peer {self.name} failed:\n{self.process.stderr.read()}")
        return line.strip()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def check(self):
        """Largest difference to ours, relative to the tensor's largest value. Both are float sums over 12,800 rows."""
        path = os.path.join(self.folder, self.name + "-result.npz")
        self.ask("check " + path)
        mine, worst = ours(self.weights), 0.0
        for name, theirs in np.load(path).items():
            worst = max(worst, float(np.max(np.abs(mine[name] - theirs)) / np.max(np.abs(theirs))))
        if not worst <= 1e-3:
            raise SystemExit(f"bench lstm: {self.name} and late_phase disagree by {worst:.1e}; nothing was timed")
        return worst

    def seconds(self, steps):
        return json.loads(self.ask(f"run {steps}"))


def interval(ratios, rng):
    """Median and its bootstrap 95 % interval."""
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    return float(np.median(ratios)), *(float(q) for q in np.quantile(medians, [0.025, 0.975]))


def measure(options):
    """Runs everything; returns what `render` needs."""
    results = {**bench_report.machine(), "rounds": options.rounds, "peers": {}}
    threads = results["threads"]
    times = results["seconds"] = {}
    with tempfile.TemporaryDirectory() as folder:
        names = ["keras-rank1", "keras-lstm"] + (["torch"] if options.torch_python else [])
        peers = [Peer(name, options.torch_python if name == "torch" else sys.executable, folder, threads) for name in names]
        for peer in peers:
            results["peers"][peer.name] = {"version": peer.version, "difference": peer.check()}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
            for name, seconds in bench_report.run_benchmarks("lstm", 4, "Step|Products|Forward|Inference|Step/.*")[0].items():
                times.setdefault(name, []).extend(seconds)
            for peer in peers:
                times.setdefault(peer.name, []).extend(peer.seconds(4))
        for peer in peers:
            peer.process.stdin.close()
            peer.process.wait()
    if options.pairs:
        print(f"{options.pairs} rounds of K = 1, K = 1 again, K = 10 ...", file=sys.stderr, flush=True)
        results["members"] = bench_report.run_program("lstm", [f"--pairs={options.pairs}"])
    return results


def render(results):
    """The report, as lines of text."""
    times, peers = results["seconds"], results["peers"]
    best = {name: min(seconds) for name, seconds in times.items()}
    lines = [
        f"One enwik8 step's LSTM part, forward and backward: {UNITS} units, embedding {EMBEDDING}, batch {BATCH}, {TIME} characters, float",
        bench_report.machine_line(results),
    ]
    for name, peer in peers.items():
        lines.append(f"checked against {PEERS[name]}, {peer['version']}: largest relative difference {peer['difference']:.1e}")
    lines += ["", f"{'':38}{'ms/step':>8}   minimum of {results['rounds']} alternating rounds"]
    for text, name in [
        ("late_phase, token op", "Step"), *((PEERS[name], name) for name in peers), ("matrix products alone", "Products"),
        ("late_phase, forward, training", "Forward"), ("late_phase, forward, inference", "Inference"),
    ]:
        lines.append(f"{text:38}{best[name] * 1e3:8.0f}")
    lines.append("")

    def ratio(*arguments, **options):
        lines.append(bench_report.ratio_line(*arguments, **options))

    ratio("speed against the Keras RNN with a rank-1 cell", best["keras-rank1"] / best["Step"], 2.0)
    ratio("speed against Keras LSTM", best["keras-lstm"] / best["Step"])
    if "torch" in best:
        ratio("speed against PyTorch nn.LSTM", best["torch"] / best["Step"], 1.6)
    ratio("share of the speed of the matrix products alone", best["Products"] / best["Step"], 0.75)
    ratio("time of inference over the training forward's", best["Inference"] / best["Forward"], 1.0, at_least=False)
    for name, factor in [("time:50", 0.5), ("time:200", 2), ("batch:64", 0.5), ("batch:256", 2)]:
        ratio(f"time for {name.replace(':', ' ')} over {factor} x the standard size's", best[f"Step/{name}"] / best["Step"] / factor)

    if "members" in results:
        members = results["members"]
        rounds, rng = np.array(members["rounds"]), np.random.default_rng(0)
        lines += ["", f"{len(rounds)} rounds of K = 1, K = 1 again, K = 10: median of the ratios within a round, bootstrap 95 % interval"]
        for text, column, target in [("K = 1 over K = 1 (control)", 1, None), ("K = 10 over K = 1", 2, 1.03)]:
            median, low, high = interval(rounds[:, column] / rounds[:, 0], rng)
            verdict = f"   target upper end <= {target}: " + ("met" if high <= target else "MISSED") if target else ""
            lines.append(f"{text:38}{median:8.4f}   {low:.4f} to {high:.4f}{verdict}")
        lines.append(
            f"bytes allocated per step: {members['bytes_one']:,} for K = 1, {members['bytes_ten'] - members['bytes_one']:+,} for K = 10 "
            f"(nine more rows of du and dv are {9 * 5 * UNITS * 4:,})")
    return lines


def summary(results):
    """The README's table."""
    best = {name: min(seconds) for name, seconds in results["seconds"].items()}
    rows = [("late_phase, rank-1, ten members or one", best["Step"])] + [(PEERS[name], best[name]) for name in results["peers"]]
    return ["| | ms/step | |", "|---|---|---|"] + [f"| {text} | {t * 1e3:.0f} | {t / best['Step']:.2f}× |" for text, t in rows]


def check(options):
    if options.rounds < 1 or options.pairs < 0:
        return f"--rounds must be >= 1 and --pairs >= 0. Received: --rounds {options.rounds} --pairs {options.pairs}"
    return None


if __name__ == "__main__":
    parser = bench_report.parser("lstm", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which everybody runs in turn (default 5)")
    parser.add_argument("--pairs", type=int, default=200, help="rounds of one against ten members; 0 skips them (default 200)")
    parser.add_argument("--torch-python", metavar="PATH", help="an interpreter that has PyTorch, to add it as a peer")
    bench_report.main(parser, check, measure, render)
