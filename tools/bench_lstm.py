"""tools/latephase bench lstm: the LSTM part of an enwik8 training step, ours against peers, alternately in one run.

Checks first that all compute the same, then times rounds in which everybody runs in turn; prints minima, ratios and targets.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile

import numpy as np

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


def run_ours(arguments):
    run = subprocess.run(
        [os.environ["LATE_PHASE_BENCH"], *arguments], capture_output=True, text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    if run.returncode != 0:
        raise SystemExit(f"bench lstm: {' '.join(arguments)} failed:\n{run.stderr}")
    return json.loads(run.stdout)


def our_benchmarks(pattern):
    report = run_ours([
        f"--benchmark_filter=^({pattern})/iterations", "--benchmark_format=json", "--benchmark_repetitions=4",
        "--benchmark_enable_random_interleaving=true"])
    times = {}
    for entry in report["benchmarks"]:
        if entry["run_type"] == "iteration":
            times.setdefault(entry["name"].split("/iterations")[0], []).append(entry["real_time"] / 1e3)
    return times


def interval(ratios, rng):
    """Median and its bootstrap 95 % interval."""
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    return float(np.median(ratios)), *(float(q) for q in np.quantile(medians, [0.025, 0.975]))


def cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def measure(options):
    """Runs everything; returns what `render` needs."""
    import late_phase

    threads = os.cpu_count()
    library = dict(line.split(": ", 1) for line in late_phase.describe().splitlines())
    results = {"cpu": cpu_name(), "threads": threads, "library": library, "rounds": options.rounds, "peers": {}}
    times = results["seconds"] = {}
    with tempfile.TemporaryDirectory() as folder:
        names = ["keras-rank1", "keras-lstm"] + (["torch"] if options.torch_python else [])
        peers = [Peer(name, options.torch_python if name == "torch" else sys.executable, folder, threads) for name in names]
        for peer in peers:
            results["peers"][peer.name] = {"version": peer.version, "difference": peer.check()}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
            for name, seconds in our_benchmarks("Step|Products|Forward|Inference|Step/.*").items():
                times.setdefault(name, []).extend(seconds)
            for peer in peers:
                times.setdefault(peer.name, []).extend(peer.seconds(4))
        for peer in peers:
            peer.process.stdin.close()
            peer.process.wait()
    if options.pairs:
        print(f"{options.pairs} rounds of K = 1, K = 1 again, K = 10 ...", file=sys.stderr, flush=True)
        results["members"] = run_ours([f"--pairs={options.pairs}"])
    return results


def render(results):
    """The report, as lines of text."""
    times, peers = results["seconds"], results["peers"]
    best = {name: min(seconds) for name, seconds in times.items()}
    lines = [
        f"One enwik8 step's LSTM part, forward and backward: {UNITS} units, embedding {EMBEDDING}, batch {BATCH}, {TIME} characters, float",
        f"{results['cpu']}, {results['threads']} threads, CPU kernels: {results['library']['CPU kernels']}, "
        f"late_phase {results['library']['late_phase']}",
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

    def ratio(text, value, target=None, at_least=True):
        verdict = ""
        if target is not None:
            verdict = f"   target {'>=' if at_least else '<='} {target}: " + ("met" if (value >= target) == at_least else "MISSED")
        lines.append(f"{text:60}{value:7.3f}{verdict}")

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


def main():
    parser = argparse.ArgumentParser(prog="tools/latephase bench lstm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which everybody runs in turn (default 5)")
    parser.add_argument("--pairs", type=int, default=200, help="rounds of one against ten members; 0 skips them (default 200)")
    parser.add_argument("--torch-python", metavar="PATH", help="an interpreter that has PyTorch, to add it as a peer")
    parser.add_argument("--out", metavar="FILE", help="also write all times as JSON")
    parser.add_argument("--show", metavar="FILE", help="measure nothing, print the report of a file written by --out")
    options = parser.parse_args()
    if options.rounds < 1 or options.pairs < 0:
        parser.error(f"--rounds must be >= 1 and --pairs >= 0. Received: --rounds {options.rounds} --pairs {options.pairs}")
    if options.show:
        with open(options.show) as file:
            results = json.load(file)
    else:
        results = measure(options)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(results, file)
            file.write("\n")
    print("\n".join(render(results)))


if __name__ == "__main__":
    main()
