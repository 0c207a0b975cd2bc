"""What ptxas says about the CUDA kernels: registers, shared memory, spills.

Prints a table of the reports that the build leaves beside every CUDA core (tools/bazel/cuda.bzl),
and fails if a kernel spills registers to memory, where its arithmetic would wait for reads and
writes.
"""

import argparse
import json
import os
import re
import subprocess

RECORD, TABLE = "docs/results/cuda_report.json", "docs/results/cuda_report.txt"
# The architecture whose kernels are listed one by one.
LISTED = "sm_80"

_EVENT = re.compile(
    r"Compiling entry function '(?P<symbol>\S+)' for '(?P<architecture>\w+)'"
    r"|(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r"|Used (?P<registers>\d+) registers(?:.*?(?P<shared>\d+) bytes smem)?"
)
# Template arguments that only choose among variants of one kernel.
_VARIANT = re.compile(
    r"-?\d+\w*|true|false|float|double|Half|BFloat16|u?int\d*(_t)?|long( long)?|unsigned( \w+)*"
)


def demangled(symbols):
    return subprocess.run(
        ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True
    ).stdout.splitlines()


def short_name(signature):
    """void late_phase::(anonymous namespace)::Kernel<4, late_phase::Half>(long, ...) -> Kernel<4,
    Half>
    """
    name = re.sub(r"\(anonymous namespace\)::|late_phase::", "", signature)
    name = re.sub(r"\([\w: ]+\)(?=-?\d)", "", name)  # (int)4, (Form)1
    name = name.removeprefix("void ").replace(" >", ">")
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return name[:i]
    return name


def kernel_of(name):
    """The kernel that a variant belongs to: Update<4, Half, Adam<float, true>> -> Update<Adam>"""
    base, bracket, rest = name.partition("<")
    if not bracket:
        return name
    arguments, depth = [""], 0
    for character in rest[:-1]:
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    kept = [kernel_of(a.strip()) for a in arguments if not _VARIANT.fullmatch(a.strip())]
    return f"{base}<{', '.join(kept)}>" if kept else base


def parse(source, text):
    """The kernels in a report on one CUDA source: a dict for each and for each architecture."""
    kernels = []
    for event in _EVENT.finditer(text):
        if event["symbol"]:
            kernels.append(
                {
                    "source": source,
                    "kernel": event["symbol"],
                    "architecture": event["architecture"],
                    "registers": 0,
                    "shared_bytes": 0,
                    "spill_bytes": 0,
                }
            )
        elif event["registers"]:
            kernels[-1].update(
                registers=int(event["registers"]), shared_bytes=int(event["shared"] or 0)
            )
        else:  # of the kernel or of a function that it calls
            kernels[-1]["spill_bytes"] += int(event["stores"]) + int(event["loads"])
    for kernel, signature in zip(kernels, demangled(kernel["kernel"] for kernel in kernels)):
        kernel["kernel"] = short_name(signature)
    return kernels


def read_reports(paths):
    """(version of the toolkit, kernels) of report files, which are named after their sources."""
    version, kernels = None, []
    for path in paths:
        with open(path) as file:
            text = file.read()
        version = re.match(r"CUDA (\S+)\n", text)[1]
        kernels += parse(os.path.basename(path).removesuffix(".ptxas.txt") + ".cu.cc", text)
    return version, kernels


def library_sizes(path):
    """Bytes of the op library, and of the CUDA code in it."""
    sections = subprocess.run(
        ["readelf", "--sections", "--wide", path], capture_output=True, text=True, check=True
    ).stdout
    cuda = re.search(r"\.nv_fatbin\s+\S+\s+\w+\s+\w+\s+(\w+)", sections)
    return {"bytes": os.path.getsize(path), "cuda_bytes": int(cuda[1], 16) if cuda else 0}


def require_no_spills(kernels):
    spilling = [
        f"  {k['kernel']} in {k['source']}, {k['architecture']}: {k['spill_bytes']} bytes"
        for k in kernels
        if k["spill_bytes"]
    ]
    if spilling:
        raise SystemExit(
            "cuda-report: kernels spill registers to memory; give them fewer values at a time, or "
            "lower the number of blocks in __launch_bounds__:\n" + "\n".join(spilling)
        )


def summary(version, kernels, library):
    """What is recorded: the library, every kernel on one architecture, a summary of all
    architectures.
    """
    architectures = []
    for name in sorted({kernel["architecture"] for kernel in kernels}):
        of_this = [kernel for kernel in kernels if kernel["architecture"] == name]
        architectures.append(
            {
                "architecture": name,
                "kernels": len(of_this),
                "most_registers": max(k["registers"] for k in of_this),
                "spill_bytes": sum(k["spill_bytes"] for k in of_this),
            }
        )
    listed = [
        {key: value for key, value in kernel.items() if key != "architecture"}
        for kernel in kernels
        if kernel["architecture"] == LISTED
    ]
    return {
        "toolkit": version,
        "library": library,
        "architectures": architectures,
        "kernels": sorted(listed, key=lambda k: (k["source"], k["kernel"])),
    }


def _between(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def render(results):
    """The lines of the table."""
    variants = {}
    for kernel in results["kernels"]:
        variants.setdefault((kernel["source"], kernel_of(kernel["kernel"])), []).append(kernel)
    library = results["library"]
    lines = [
        f"_late_phase_ops.so: {library['bytes'] / 1e6:.1f} MB, of which "
        f"{library['cuda_bytes'] / 1e6:.1f} MB are CUDA code",
        "",
        f"CUDA {results['toolkit']}, {LISTED}",
        f"{'kernel':44}{'variants':>10}{'registers':>12}{'shared bytes':>14}{'spilled':>9}",
    ]
    source = None
    for (of, kernel), some in variants.items():
        if of != source:
            source = of
            lines.append(source)
        lines.append(
            f"  {kernel:42}{len(some):10}"
            f"{_between([k['registers'] for k in some]):>12}"
            f"{_between([k['shared_bytes'] for k in some]):>14}"
            f"{sum(k['spill_bytes'] for k in some):9}"
        )
    lines += ["", f"{'all of them':44}{'variants':>10}{'registers':>12}{'':14}{'spilled':>9}"]
    for a in results["architectures"]:
        lines.append(
            f"  {a['architecture']:42}{a['kernels']:10}"
            f"{'at most ' + str(a['most_registers']):>12}{'':14}{a['spill_bytes']:9}"
        )
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tools/latephase cuda-report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"also record the numbers in {RECORD} and the table in {TABLE}",
    )
    parser.add_argument("--library", required=True, help="the op library, whose size is reported")
    parser.add_argument(
        "reports",
        metavar="REPORT",
        nargs="*",
        help="reports of ptxas (default: those of all CUDA cores)",
    )
    options = parser.parse_args(arguments)
    version, kernels = read_reports(options.reports)
    results = summary(version, kernels, library_sizes(options.library))
    lines = render(results)
    print("\n".join(lines))
    if options.write:
        with open(RECORD, "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
        with open(TABLE, "w") as file:
            file.write("\n".join(lines) + "\n")
    require_no_spills(kernels)


if __name__ == "__main__":
    main()
