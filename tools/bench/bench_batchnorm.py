"""tools/latephase bench batchnorm: batch normalisation with its gradient, ours against TensorFlow's
ops and the memory floor.

A C++ process first checks that ours and TensorFlow's compute the same, then times all of them in
random order, round after round. It runs alternately with and without oneDNN, which TensorFlow
chooses per process. Prints minima, ratios and targets. Then training steps of a WRN 16-2, with
oneDNN: ours with one member and with ten, and TensorFlow's BatchNorm in place of ours.
"""

import sys

import numpy as np

from tools.bench import bench_report

# Benchmarks' group -> what the table calls it. The first has the targets.
LAYERS = {
    "128x32x32x160 Relu": "[128,32,32,160], ReLU (WRN 28-10)",
    "128x32x32x32 Relu": "[128,32,32,32], ReLU (WRN 16-2)",
    "128x28x28x6 Identity": "[128,28,28,6] (ConvNet)",
    "128x10x10x16 Identity": "[128,10,10,16] (ConvNet)",
    "128x120 Identity": "[128,120] (ConvNet)",
    "128x84 Identity": "[128,84] (ConvNet)",
}
ONEDNN = {"stock": "0", "oneDNN": "1"}  # who -> TF_ENABLE_ONEDNN_OPTS


def measure(options):
    """Measures everything; returns what `render` needs."""
    results = {
        **bench_report.machine(),
        "turns": options.turns,
        "rounds": options.rounds,
        "difference": 0.0,
        "seconds": {},
    }
    for _ in range(options.turns):
        for who, setting in ONEDNN.items():
            seconds, context = bench_report.run_benchmarks(
                "batchnorm", options.rounds, environment={"TF_ENABLE_ONEDNN_OPTS": setting}
            )
            results["difference"] = max(results["difference"], float(context["difference"]))
            for name, times in seconds.items():
                results["seconds"].setdefault(name.replace("/stock", f"/{who}"), []).extend(times)
    if options.pairs:
        print(f"{options.pairs} rounds of training steps ...", file=sys.stderr, flush=True)
        results["steps"] = bench_report.run_program(
            "batchnorm", [f"--wide_resnet_rounds={options.pairs}"], {"TF_ENABLE_ONEDNN_OPTS": "1"}
        )
    return results


def layer_lines(results):
    """One layer, forward and backward."""
    best = {name: min(seconds) for name, seconds in results["seconds"].items()}
    ours, floor = (
        {group: best.get(f"{group}/{who}") for group in LAYERS} for who in ("ours", "floor")
    )
    lines = [
        f"milliseconds, minimum of {results['turns']} x {results['rounds']} alternating rounds",
        f"{'':40}{'late_phase':>10}{'TensorFlow':>12}{'with oneDNN':>13}{'floor':>9}",
    ]
    for group, text in LAYERS.items():
        cells = [ours[group], *(best[f"{group}/{who}"] for who in ONEDNN), floor[group]]
        texts = ["" if cell is None else f"{cell * 1e3:.3f}" for cell in cells]
        lines.append(
            "".join(
                [f"{text:40}", *(f"{t:>{width}}" for t, width in zip(texts, [10, 12, 13, 9]))]
            ).rstrip()
        )
    lines.append("")
    for who, name in (("stock", "speed"), ("oneDNN", "with oneDNN")):
        for i, (group, text) in enumerate(LAYERS.items()):
            lines.append(
                bench_report.ratio_line(
                    f"{text}: {name}", best[f"{group}/{who}"] / ours[group], 3.0 if i == 0 else None
                )
            )
    for i, (group, text) in enumerate(LAYERS.items()):
        if floor[group] is not None:
            lines.append(
                bench_report.ratio_line(
                    f"{text}: floor's, with oneDNN", best[f"{group}/oneDNN"] / floor[group]
                )
            )
            lines.append(
                bench_report.ratio_line(
                    f"{text}: time over floor's",
                    ours[group] / floor[group],
                    2.0 if i == 0 else None,
                    at_least=False,
                )
            )
    return lines


def step_lines(steps):
    """A whole training step."""
    rounds = np.array(steps["rounds"])  # [rounds, (K = 1, K = 1 again, K = 10, TensorFlow's)]
    ours, stock = rounds[:, 0].min(), rounds[:, 3].min()
    theirs = "with TensorFlow's BatchNorm over ours"
    median, low, high = bench_report.interval(rounds[:, 3] / rounds[:, 0], np.random.default_rng(0))
    return [
        f"Training step of a WRN 16-2, batch 64, oneDNN; losses agree to {steps['difference']:.1e}",
        f"minima: {ours * 1e3:.0f} ms with our BatchNorm, {stock * 1e3:.0f} ms with TensorFlow's",
        f"{theirs:38}{median:8.4f}   {low:.4f} to {high:.4f}   target lower end > 1: "
        + ("met" if low > 1 else "MISSED"),
        *bench_report.members_lines(rounds[:, :3], target=1.03),
    ]


def render(results):
    """The report, as lines of text."""
    return [
        "Batch normalisation, training, forward and backward, float; speed is against "
        "TensorFlow's, without oneDNN and with it",
        bench_report.machine_line(results),
        "checked against TensorFlow's ops: largest relative difference "
        f"{results['difference']:.1e}",
        "",
        *layer_lines(results),
        *(["", *step_lines(results["steps"])] if "steps" in results else []),
    ]


if __name__ == "__main__":
    parser = bench_report.parser("batchnorm", __doc__)
    parser.add_argument(
        "--turns",
        type=int,
        default=3,
        help="how often TensorFlow is started with and without oneDNN (default 3)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="rounds per start, in which all contestants take turns (default 20)",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=200,
        help="rounds of training steps; 0 skips them (default 200)",
    )
    check = bench_report.at_least(turns=1, rounds=1, pairs=0)
    bench_report.main(parser, check, measure, render)
