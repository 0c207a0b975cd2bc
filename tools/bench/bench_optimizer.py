"""tools/latephase bench optimizer: the optimizer's updates, ours against stock TensorFlow ops and
the memory floor.

One C++ process first checks that ours and the stock ops reach the same weights, then times all of
them in random order, round after round; prints minima, ratios and targets.
"""

from tools.bench import bench_report

MEMBERS = 10
# Rows of the table: text, group of benchmarks, group that has its floor (None: a cycle's).
ROWS = [
    ("Nesterov momentum: accumulate, apply, clear", "MomentumApply", "MomentumApply"),
    ("Nesterov momentum: accumulate", "MomentumAccumulate", "MomentumAccumulate"),
    (f"Nesterov momentum: cycle of {MEMBERS}, per minibatch", "MomentumCycle", None),
    ("the same in {tensors} tensors: accumulate, apply, clear", "SplitApply", "MomentumApply"),
    ("the same in {tensors} tensors: accumulate", "SplitAccumulate", "MomentumAccumulate"),
    (f"the same in {{tensors}} tensors: cycle of {MEMBERS}, per minibatch", "SplitCycle", None),
    ("SGD: accumulate, apply, clear", "SgdApply", "SgdApply"),
    ("Adam: accumulate, apply, clear", "AdamApply", "AdamApply"),
    (f"SGD on one row of {MEMBERS}; stock: on one array", "MemberSgd", "MemberSgd"),
    ("SWA update", "SwaUpdate", "SwaUpdate"),
    (f"collapse of {MEMBERS} rows", "Collapse", "Collapse"),
    (f"spawn of {MEMBERS} rows", "Spawn", "Spawn"),
]


def measure(options):
    """Measures everything; returns what `render` needs."""
    results = {**bench_report.machine(), "rounds": options.rounds}
    results["seconds"], context = bench_report.run_benchmarks("optimizer", options.rounds)
    for name, kind in [("weights", int), ("tensors", int), ("difference", float)]:
        results[name] = kind(context[name])
    return results


def best_times(results):
    """The minimum seconds of each benchmark; for a cycle, per minibatch."""
    best = {name: min(seconds) for name, seconds in results["seconds"].items()}
    best = {name: seconds / (MEMBERS if "Cycle" in name else 1) for name, seconds in best.items()}
    # These floors are the same pass: two arrays read, one written.
    pass_seconds = min(
        best[f"{group}/floor"] for group in ("MomentumAccumulate", "SwaUpdate", "MemberSgd")
    )
    best.update(
        {
            f"{group}/floor": pass_seconds
            for group in ("MomentumAccumulate", "SwaUpdate", "MemberSgd")
        }
    )
    # A cycle's floor is that of its minibatches.
    accumulate, apply = best["MomentumAccumulate/floor"], best["MomentumApply/floor"]
    best["cycle/floor"] = ((MEMBERS - 1) * accumulate + apply) / MEMBERS
    return best


def time_line(text, times, best):
    """A row of times; `times`: their names, some of which may not have been measured."""
    cells = [f"{best[name] * 1e3:.1f}" if name in best else "" for name in times]
    widths = (10, 8, 10, 8)
    return (f"{text:56}" + "".join(f"{t:>{w}}" for t, w in zip(cells, widths))).rstrip()


def ratio_lines(results, best):
    """How fast the updates are, against stock ops and the floor, with the targets."""
    line = bench_report.ratio_line

    def faster_stock(group):
        return min(best[f"{group}/stock"], best[f"{group}/stock in place"])

    def over_floor(group):
        return best[f"{group}/ours"] / best[f"{group}/floor"]

    apply = faster_stock("MomentumApply") / best["MomentumApply/ours"]
    lines = [
        line("accumulate, apply, clear: speed against the faster stock", apply, 2.0),
        line(
            "accumulate, apply, clear: time over the floor's",
            over_floor("MomentumApply"),
            1.4,
            at_least=False,
        ),
    ]
    for text, group in [
        ("SGD", "SgdApply"),
        ("Adam", "AdamApply"),
        (f"{results['tensors']} tensors", "SplitApply"),
        ("cycle", "MomentumCycle"),
    ]:
        speed = faster_stock(group) / best[f"{group}/ours"]
        lines.append(line(f"{text}: speed against the faster stock", speed))
    for text, group in [
        ("SWA update", "SwaUpdate"),
        ("collapse", "Collapse"),
        ("spawn", "Spawn"),
        ("SGD on one row", "MemberSgd"),
    ]:
        lines.append(line(f"{text}: time over the floor's", over_floor(group)))
    one_row = best["MemberSgd/ours"] / best["MemberSgd/stock"]
    return [*lines, line("SGD on one row: time over stock SGD's on one array", one_row)]


def render(results):
    """The report, as lines of text."""
    best = best_times(results)
    lines = [
        f"Updates of {results['weights']:,} float weights (WRN 28-10), in one tensor unless said, "
        f"cycles of {MEMBERS} minibatches",
        bench_report.machine_line(results),
        "checked against stock TensorFlow ops: largest relative difference "
        f"{results['difference']:.1e}",
        "",
        f"milliseconds, minimum of {results['rounds']} alternating rounds",
        f"{'':56}{'late_phase':>10}{'stock':>8}{'in place':>10}{'floor':>8}",
    ]
    for text, group, floor in ROWS:
        ours = [f"{group}/{who}" for who in ("ours", "stock", "stock in place")]
        times = [*ours, f"{floor or 'cycle'}/floor"]
        lines.append(time_line(text.format(**results), times, best))
    return [*lines, "", *ratio_lines(results, best)]


if __name__ == "__main__":
    parser = bench_report.parser("optimizer", __doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=30,
        help="rounds, in which all contestants take turns (default 30)",
    )
    bench_report.main(parser, bench_report.at_least(rounds=1), measure, render)
