"""The commands that belong to the repository: benchmarks, reports, the wheel, its Python; and
version, which works without it too.
"""

import glob
import os
import re
import subprocess
import sys
from importlib import metadata

from late_phase_cli import locations

_LIBRARY = "_late_phase_ops.so"
_PROGRAM = "tools/program/latephase_program"


def use_package():
    """Makes late_phase, and the tools, importable, here and in children."""
    os.environ["LATE_PHASE_OPS"] = locations.built(_LIBRARY)
    sys.path.insert(0, locations.repository())
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [
            f"{locations.repository()}/python",
            locations.repository(),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
    )


def bench(options):
    import runpy

    use_package()
    os.environ["LATE_PHASE_BENCH"] = locations.built(f"tools/bench/bench_{options.benchmark}")
    module = f"tools.bench.bench_{options.benchmark}"
    sys.argv = [module, *options.arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def cuda_report(options):
    use_package()
    from tools.develop import cuda_report

    os.chdir(locations.repository())
    sources = sorted(glob.glob("kernels/*_gpu.cu.cc") + glob.glob("kernels/cuda/*_gpu.cu.cc"))
    reports = [locations.built(source.removesuffix(".cu.cc") + ".ptxas.txt") for source in sources]
    cuda_report.main(
        ["--library", locations.built(_LIBRARY), *["--write"] * options.write, *reports]
    )
    return 0


def wheel(options):
    use_package()
    from tools.develop import build_wheel

    arguments = ["--out", options.out]
    for release, folder in locations.built_releases().items():
        library, program = (os.path.join(folder, path) for path in (_LIBRARY, _PROGRAM))
        arguments += ["--built", release, library, program]
    build_wheel.main(arguments)
    return 0


def docs(options):
    use_package()
    from tools.develop import build_site

    build_site.main(["--out", options.out])
    return 0


def python(options):
    use_package()
    os.execv(sys.executable, [sys.executable, *options.arguments])


def _output(*command, **options):
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, **options
    ).stdout.strip()


def version(options):
    with open("/proc/cpuinfo") as file:
        cpu = file.read()
    project = locations.repository()
    if project:
        with open(os.path.join(project, "VERSION")) as file:
            mine = file.read().strip()
    else:
        mine = metadata.version("late_phase")
    lines = [
        ("late_phase", mine),
        ("TensorFlow", locations.tensorflow_version() or "not installed"),
    ]
    if project:
        with open(
            _output("bazel", "info", "output_base", cwd=project) + "/external/cuda/toolkit.bzl"
        ) as file:
            toolkit = file.read()
        architectures = " ".join(re.findall(r"code=((?:sm|compute)_[0-9]+)", toolkit))
        lines += [
            ("compiler", _output("g++", "--version").splitlines()[0]),
            (
                "CUDA toolkit",
                f"{re.search(r'^CUDA_VERSION = .(.*).$', toolkit, re.M)[1]}, for {architectures}",
            ),
        ]
    features = re.findall(
        r"\b(?:sse4_2|avx|avx2|fma|f16c|avx512\w*|avx_vnni|amx_\w*)\b",
        re.search(r"^flags.*$", cpu, re.M)[0],
    )
    lines += [
        ("CPU", re.search(r"^model name\s*: (.*)$", cpu, re.M)[1]),
        ("CPU features", " ".join(features)),
    ]
    for name, text in lines:
        print(f"{name:14}{text}")
    return 0
