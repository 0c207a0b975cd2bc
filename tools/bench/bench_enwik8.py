"""tools/latephase bench enwik8: one whole training step of the enwik8 model, ours against peers,
alternately in one run.

First checks that all start at the same loss and that ours and the Keras model with rank-1 factors
train alike, then times rounds in which all contestants take turns; prints minima and ratios, the
cost of ten members against one, and memory.
"""

# Ours is the C++ program named by LATE_PHASE_BENCH. It runs the training step that
# tools/bench/bench_peer.py describes, with rank-1 factors:
#
#     bench_enwik8 --arrays=FOLDER --threads=N
#         one member (K = 1), on demand, by the protocol of tools/bench/bench_peer.py:
#         prints {"version": TEXT}, then answers each line on standard input until it ends,
#         check S -> {"losses": [S numbers]}, of the process's first S steps, each before its update
#         run S   -> {"seconds": [S numbers]}, of the next S steps, one each
#     bench_enwik8 --arrays=FOLDER --threads=N --pairs=P
#         P rounds of one step each of three models in this process, K = 1, K = 1 again (the
#         control) and K = 10, the order changing from round to round, each model warm; the ten
#         members take turns as in training, and ends of cycles fall where they fall:
#         prints {"rounds": [[seconds of K = 1, of the control, of K = 10], ... P of them]}
#     bench_enwik8 --arrays=FOLDER --threads=N --memory=K
#         resident bytes (/proc/self/statm) once a session has run a trivial graph, and after ten
#         steps of the model with K members:
#         prints {"start_bytes": B, "bytes": B}
#
# Each object is on one line, flushed. Whatever fails: a message on standard error and a status
# other than 0.
#
# FOLDER holds what `make_arrays` returns, one NAME.npy each: NumPy's format 1.0, little endian,
# row-major: ten bytes, of which the last two are the length L of a header (uint16), L bytes of
# header, then the numbers as they lie in memory. E [V,V], W [V,4H], b [4H], R [H,4H], u [1,H], v
# [1,4H], softmax_W [H,V], softmax_b [V] are float32; with K = 10, every member starts from u and v.
# tokens [S,T+1,N] is int32: step s reads tokens[s mod S], its inputs are rows 0 to T-1, its targets
# rows 1 to T. The state starts at zero and is carried, also from the last of them to the first.

import contextlib
import os
import sys
import tempfile

import numpy as np

from tools.bench import bench_report

TIME, BATCH, VOCAB, UNITS = 100, 128, 205, 500
WINDOWS = 20
CHECKED = 8  # steps whose losses are compared
# Float sums in another order differ by 1e-7 of the loss; a model without rank-1 factors differs by
# 1e-3 at the last step.
TOLERANCE = 1e-4
OURS = "late_phase, rank-1"
TARGETS = {"keras-rank1": 2.0, "torch": 1.6}  # times as fast as the peer
MEMORY_TARGET = 1e9  # bytes above TensorFlow's own


def make_arrays():
    """Initial weights in the paper's range, u and v around 1, and a text in which half of the
    characters follow from the one before.
    """
    rng = np.random.default_rng(0)
    uniform = lambda size, *shape: rng.uniform(-size, size, shape).astype(np.float32)
    text = (VOCAB * rng.random((WINDOWS * TIME + 1, BATCH)) ** 2).astype(np.int32)
    follows = rng.random(text.shape) < 0.5
    for t in range(1, len(text)):
        text[t] = np.where(follows[t], (7 * text[t - 1] + 3) % VOCAB, text[t])
    return {
        "E": uniform(0.01, VOCAB, VOCAB),
        "W": uniform(0.01, VOCAB, 4 * UNITS),
        "b": uniform(0.01, 4 * UNITS),
        "R": uniform(0.01, UNITS, 4 * UNITS),
        "u": 1 + uniform(0.1, 1, UNITS),
        "v": 1 + uniform(0.1, 1, 4 * UNITS),
        "softmax_W": uniform(0.01, UNITS, VOCAB),
        "softmax_b": uniform(0.01, VOCAB),
        "tokens": np.stack([text[i : i + TIME + 1] for i in range(0, WINDOWS * TIME, TIME)]),
    }


def check_losses(name, losses, reference):
    """Largest relative difference from the reference's losses; for a model of another kind only the
    first is compared.
    """
    losses = np.array(losses)
    if not abs(losses[0] / np.log(VOCAB) - 1) <= 0.01:
        raise SystemExit(
            f"bench enwik8: {name} starts at the loss {losses[0]:.4f}, not at ln {VOCAB}; nothing "
            "was timed"
        )
    worst = float(np.max(np.abs(losses / reference[: len(losses)] - 1)))
    if not worst <= TOLERANCE:
        raise SystemExit(
            f"bench enwik8: the losses of {name} and the Keras model differ by {worst:.1e}; "
            "nothing was timed"
        )
    return worst


def measure(options):
    """Measures everything; returns what `render` needs."""
    results = {**bench_report.machine(), "rounds": options.rounds, "peers": {}}
    times = results["seconds"] = {}
    with tempfile.TemporaryDirectory() as parent, contextlib.ExitStack() as stack:
        folder = os.path.join(parent, "arrays")
        bench_report.save_arrays(folder, make_arrays())
        arguments = [f"--arrays={folder}", f"--threads={results['threads']}"]
        contestants = {}
        for name in bench_report.peer_names(options):
            contestants[name] = stack.enter_context(
                bench_report.start_peer("enwik8", name, options, folder, results["threads"])
            )
        contestants["ours"] = stack.enter_context(
            bench_report.Process(
                "enwik8", "late_phase", [os.environ["LATE_PHASE_BENCH"], *arguments]
            )
        )
        losses = {
            name: process.ask(f"check {CHECKED}")["losses"] for name, process in contestants.items()
        }
        for name, process in contestants.items():
            compared = losses[name] if name in ("ours", "keras-rank1") else losses[name][:1]
            difference = check_losses(process.name, compared, losses["keras-rank1"])
            if name != "ours":
                results["peers"][name] = {"version": process.version, "first_loss": losses[name][0]}
            else:
                results["ours"] = {
                    "version": process.version,
                    "losses": losses[name],
                    "difference": difference,
                }
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
            for name, process in contestants.items():
                times.setdefault(name, []).extend(process.seconds(4))
        stack.pop_all().close()  # their memory and threads must not disturb what follows
        for members in (1, 10):
            results[f"memory_{members}"] = bench_report.run_program(
                "enwik8", [*arguments, f"--memory={members}"]
            )
        if options.pairs:
            print(
                f"{options.pairs} rounds of K = 1, K = 1 again, K = 10 ...",
                file=sys.stderr,
                flush=True,
            )
            results["members"] = bench_report.run_program(
                "enwik8", [*arguments, f"--pairs={options.pairs}"]
            )
    return results


def render(results):
    """The report, as lines of text."""
    best = {name: min(seconds) for name, seconds in results["seconds"].items()}
    peers = results["peers"]
    lines = [
        f"One enwik8 training step, whole: embedding {VOCAB}, LSTM of {UNITS} units, softmax, "
        f"clipping, Adam; batch {BATCH}, {TIME} characters, float",
        bench_report.machine_line(results),
        f"checked against {bench_report.PEERS['keras-rank1']}: largest relative difference of the "
        f"first {len(results['ours']['losses'])} losses {results['ours']['difference']:.1e}",
    ]
    lines += [
        f"{bench_report.PEERS[name]}, {peer['version']}: first loss {peer['first_loss']:.4f}"
        for name, peer in peers.items()
    ]
    lines += [
        "",
        f"{'':38}{'ms/step':>8}{'characters/s':>14}   minimum of {results['rounds']} alternating "
        "rounds",
    ]
    for text, name in [(OURS, "ours"), *((bench_report.PEERS[name], name) for name in peers)]:
        lines.append(f"{text:38}{best[name] * 1e3:8.0f}{TIME * BATCH / best[name]:14,.0f}")
    lines.append("")
    for name in peers:
        lines.append(
            bench_report.ratio_line(
                f"speed against {bench_report.PEERS[name]}",
                best[name] / best["ours"],
                TARGETS.get(name),
            )
        )
    if "members" in results:
        lines += ["", *bench_report.members_lines(results["members"]["rounds"], target=1.03)]
    lines.append("")
    for members in (1, 10):
        memory = results[f"memory_{members}"]
        more = memory["bytes"] - memory["start_bytes"]
        lines.append(
            f"resident after ten steps, K = {members}: {memory['bytes'] / 1e6:,.0f} MB, "
            f"{more / 1e6:,.0f} MB more than TensorFlow's start   target < "
            f"{MEMORY_TARGET / 1e6:,.0f}: {'met' if more < MEMORY_TARGET else 'MISSED'}"
        )
    return lines


def summary(results):
    """The README's table."""
    best = {name: min(seconds) for name, seconds in results["seconds"].items()}
    rows = [("late_phase, rank-1, ten members or one", best["ours"])]
    rows += [(bench_report.PEERS[name], best[name]) for name in results["peers"]]
    return ["| | ms/step | |", "|---|---|---|"] + [
        f"| {text} | {t * 1e3:.0f} | {t / best['ours']:.2f}× |" for text, t in rows
    ]


if __name__ == "__main__":
    bench_report.main(
        bench_report.peer_parser("enwik8", __doc__),
        bench_report.check_peer_options,
        measure,
        render,
    )
