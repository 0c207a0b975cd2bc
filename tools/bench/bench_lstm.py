"""tools/latephase bench lstm: the LSTM part of an enwik8 training step, ours against peers,
alternately in one run.

First checks that all compute the same, then times rounds in which all contestants take turns;
prints minima, ratios and targets.
"""

import contextlib
import os
import sys
import tempfile

import numpy as np

from tools.bench import bench_report

TIME, BATCH, EMBEDDING, VOCAB, UNITS = 100, 128, 205, 205, 500


def make_weights(rank1):
    rng = np.random.default_rng(0)
    uniform = lambda size, *shape: rng.uniform(-size, size, shape).astype(np.float32)
    weights = {
        "E": uniform(0.1, VOCAB, EMBEDDING),
        "W": uniform(0.1, EMBEDDING, 4 * UNITS),
        "b": uniform(0.1, 4 * UNITS),
        "R": uniform(0.05, UNITS, 4 * UNITS),
        "h0": uniform(0.1, BATCH, UNITS),
        "c0": uniform(0.1, BATCH, UNITS),
        "dh": uniform(0.01, TIME, BATCH, UNITS),
        "tokens": rng.integers(0, VOCAB, (TIME, BATCH), dtype=np.int32),
        "u": np.ones((1, UNITS), np.float32),
        "v": np.ones((1, 4 * UNITS), np.float32),
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
            weights["tokens"],
            table,
            tensors["R"],
            tensors["u"],
            tensors["v"],
            0,
            weights["h0"],
            weights["c0"],
        ).h
    grads = tape.gradient(h, tensors, output_gradients=tf.constant(weights["dh"]))
    result = {"h": h.numpy(), **{name: grads[name].numpy() for name in names}}
    return {**result, "u": result["u"][0], "v": result["v"][0]}


def difference(peer, arrays, folder):
    """Largest difference from ours, relative to the tensor's largest value. Both are float sums
    over 12,800 rows.
    """
    path = peer.ask("check " + os.path.join(folder, "result.npz"))["saved"]
    mine, worst = ours(arrays), 0.0
    for name, theirs in np.load(path).items():
        worst = max(worst, float(np.max(np.abs(mine[name] - theirs)) / np.max(np.abs(theirs))))
    if not worst <= 1e-3:
        raise SystemExit(
            f"bench lstm: {peer.name} and late_phase disagree by {worst:.1e}; nothing was timed"
        )
    return worst


def measure(options):
    """Measures everything; returns what `render` needs."""
    results = {**bench_report.machine(), "rounds": options.rounds, "peers": {}}
    threads = results["threads"]
    times = results["seconds"] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        peers = {}
        for name in bench_report.peer_names(options):
            arrays, arrays_folder = (
                make_weights(rank1=name == "keras-rank1"),
                os.path.join(folder, name),
            )
            bench_report.save_arrays(arrays_folder, arrays)
            peers[name] = stack.enter_context(
                bench_report.start_peer("lstm", name, options, arrays_folder, threads)
            )
            results["peers"][name] = {
                "version": peers[name].version,
                "difference": difference(peers[name], arrays, folder),
            }
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
            for name, seconds in bench_report.run_benchmarks(
                "lstm", 4, "Step|Products|Forward|Inference|Step/.*"
            )[0].items():
                times.setdefault(name, []).extend(seconds)
            for name, peer in peers.items():
                times.setdefault(name, []).extend(peer.seconds(4))
    if options.pairs:
        print(
            f"{options.pairs} rounds of K = 1, K = 1 again, K = 10 ...", file=sys.stderr, flush=True
        )
        results["members"] = bench_report.run_program("lstm", [f"--pairs={options.pairs}"])
    return results


def render(results):
    """The report, as lines of text."""
    times, peers = results["seconds"], results["peers"]
    best = {name: min(seconds) for name, seconds in times.items()}
    lines = [
        f"One enwik8 step's LSTM part, forward and backward: {UNITS} units, embedding "
        f"{EMBEDDING}, batch {BATCH}, {TIME} characters, float",
        bench_report.machine_line(results),
    ]
    for name, peer in peers.items():
        lines.append(
            f"checked against {bench_report.PEERS[name]}, {peer['version']}: largest relative "
            f"difference {peer['difference']:.1e}"
        )
    lines += ["", f"{'':38}{'ms/step':>8}   minimum of {results['rounds']} alternating rounds"]
    for text, name in [
        ("late_phase, token op", "Step"),
        *((bench_report.PEERS[name], name) for name in peers),
        ("matrix products alone", "Products"),
        ("late_phase, forward, training", "Forward"),
        ("late_phase, forward, inference", "Inference"),
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
    ratio(
        "time of inference over the training forward's",
        best["Inference"] / best["Forward"],
        1.0,
        at_least=False,
    )
    for name, factor in [("time:50", 0.5), ("time:200", 2), ("batch:64", 0.5), ("batch:256", 2)]:
        ratio(
            f"time for {name.replace(':', ' ')} over {factor} x the standard size's",
            best[f"Step/{name}"] / best["Step"] / factor,
        )

    if "members" in results:
        members = results["members"]
        lines += ["", *bench_report.members_lines(members["rounds"], target=1.03)]
        lines.append(
            f"bytes allocated per step: {members['bytes_one']:,} for K = 1, "
            f"{members['bytes_ten'] - members['bytes_one']:+,} for K = 10 (nine more rows of du "
            f"and dv are {9 * 5 * UNITS * 4:,})"
        )
    return lines


if __name__ == "__main__":
    bench_report.main(
        bench_report.peer_parser("lstm", __doc__), bench_report.check_peer_options, measure, render
    )
