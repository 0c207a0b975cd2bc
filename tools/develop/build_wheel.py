"""Makes the wheel of late_phase: the Python packages, the op library and the C++ program, both for
each supported release of TensorFlow, the presets, and the licences.

Checks the result: which systems it runs on (auditwheel), that it needs no libraries except
TensorFlow's and those systems' own, that the op library exports nothing but functions named
late_phase_*, and that PyPI would take the metadata (twine). Equal sources give equal bytes.
"""

import argparse
import dataclasses
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from late_phase_cli import releases

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What is in the wheel besides what was built: from the repository, and where it goes.
PACKAGED = {
    "python/late_phase/**/*.py": "python/late_phase",
    "python/late_phase_cli/**/*.py": "python/late_phase_cli",
    "python/late_phase_cli/*.json": "python/late_phase_cli",
    "python/late_phase_cli/templates/**/*": "python/late_phase_cli/templates",
    "models/presets/*.toml": "python/late_phase_cli/presets",
}
# They come with TensorFlow.
TENSORFLOW_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
# Maintained distributions that offer Python 3.11 or newer -> their glibc.
DISTRIBUTIONS = {
    "Debian 12": (2, 36),
    "Debian 13": (2, 41),
    "Ubuntu 22.04": (2, 35),
    "Ubuntu 24.04": (2, 39),
    "RHEL 8": (2, 28),
    "RHEL 9": (2, 34),
    "RHEL 10": (2, 39),
    "Amazon Linux 2023": (2, 34),
}


class CheckError(Exception):
    """The wheel is not fit for distribution; the message says why."""


@dataclasses.dataclass(frozen=True)
class Built:
    """What Bazel built for one release of TensorFlow."""

    release: str  # 2.21
    library: str
    program: str

    def places(self):
        """(file, its place in the wheel, where it looks for libraries): pip puts packages side by
        side.
        """
        folder = releases.folder_name(self.release)
        return (
            (self.library, f"late_phase/{folder}/_late_phase_ops.so", "$ORIGIN/../../tensorflow"),
            (
                self.program,
                f"late_phase_cli/bin/{folder}/latephase_program",
                f"$ORIGIN/../../../tensorflow:$ORIGIN/../../../late_phase/{folder}",
            ),
        )


def run_tool(name, *arguments):
    """Runs a tool of this Python environment; what it prints is shown only if it fails."""
    tools = os.path.dirname(sys.executable)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # auditwheel looks for patchelf.
    environment["PATH"] = tools + os.pathsep + environment.get("PATH", os.defpath)
    environment.setdefault(
        "SOURCE_DATE_EPOCH", "315532800"
    )  # 1980, the earliest time that a zip file can hold
    run = subprocess.run(
        [os.path.join(tools, name), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode:
        raise CheckError(f"{name} {arguments[0]} failed:\n{run.stdout.strip()}")


def without_relative_links(page):
    """The README for readers without a source tree: a link into the tree becomes its words and the
    path.
    """

    def words(link):
        text, path = link[1], link[2]
        return f"`{path}`" if text == path else f"{text} (`{path}`)"

    return re.sub(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)", words, page)


def copy(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)


def stage(all_built, folder):
    """Lays out in `folder` what setuptools packs: this project's files, and what was built, in its
    place.
    """
    for name in ("pyproject.toml", "setup.py", "VERSION", "LICENSE", "LICENSE-THIRD-PARTY"):
        copy(os.path.join(PROJECT, name), os.path.join(folder, name))
    with open(os.path.join(PROJECT, "README.md")) as file:
        page = without_relative_links(file.read())
    with open(os.path.join(folder, "README.md"), "w") as file:
        file.write(page)
    for pattern, target in PACKAGED.items():
        root = os.path.join(PROJECT, pattern.partition("/*")[0])
        for source in filter(
            os.path.isfile, glob.glob(os.path.join(PROJECT, pattern), recursive=True)
        ):
            copy(source, os.path.join(folder, target, os.path.relpath(source, root)))
    for built in all_built:
        for file, place, run_path in built.places():
            staged = os.path.join(folder, "python", place)
            copy(file, staged)
            # Without the build's own folders.
            run_tool("patchelf", "--set-rpath", run_path, staged)
        os.chmod(staged, 0o755)  # the program; pip keeps it executable


def only_file(folder):
    (name,) = os.listdir(folder)
    return os.path.join(folder, name)


def build(all_built, folder):
    """Builds the wheel with setuptools, lets auditwheel name the systems it runs on, and returns
    its path.
    """
    staged, built, audited = (os.path.join(folder, name) for name in ("staged", "built", "audited"))
    os.mkdir(staged)
    stage(all_built, staged)
    run_tool(
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        built,
        staged,
    )
    excluded = [f"--exclude={name}" for name in TENSORFLOW_LIBRARIES]
    run_tool("auditwheel", "repair", "--strip", *excluded, "--wheel-dir", audited, only_file(built))
    return only_file(audited)


def require_no_other_libraries(wheel):
    """auditwheel copies libraries that not every system of the tag has into the wheel; there must
    be none.
    """
    copied = [
        os.path.basename(name) for name in wheel.namelist() if re.match(r"late_phase\.libs/.", name)
    ]
    if copied:
        raise CheckError(
            "the op library and the program must need no libraries except TensorFlow's and the "
            f"system's. They also need: {', '.join(copied)}"
        )


def require_own_symbols_only(library):
    """A symbol with another name could clash with another copy of the same library."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", library],
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        raise CheckError(f"not a shared library: {library}: {listed.stderr.strip()}")
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    foreign = [name for name in names if not name.startswith("late_phase_")]
    if foreign or not names:
        raise CheckError(
            f"{library} must export only symbols named late_phase_* (late_phase.lds). It exports: "
            f"{', '.join(foreign) or 'nothing'}"
        )


def platform_tag(path):
    """late_phase-0.1.0-py3-none-manylinux_2_34_x86_64.whl -> manylinux_2_34_x86_64"""
    return os.path.basename(path).removesuffix(".whl").split("-")[-1]


def distributions(tag):
    """The distributions whose glibc is new enough for a platform tag."""
    least = tuple(map(int, re.match(r"manylinux_(\d+)_(\d+)_", tag).groups()))
    return [name for name, glibc in DISTRIBUTIONS.items() if glibc >= least]


def make(all_built, folder):
    """Makes the wheel below `folder`, checks it and returns its path."""
    for built in all_built:
        require_own_symbols_only(built.library)
    path = build(all_built, folder)
    with zipfile.ZipFile(path) as wheel:
        require_no_other_libraries(wheel)
    run_tool("twine", "check", "--strict", path)
    return path


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tools/latephase wheel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="the folder for the wheel; created if necessary"
    )
    # RELEASE LIBRARY PROGRAM, for each release of TensorFlow: tools/latephase names what it built.
    parser.add_argument("--built", nargs=3, action="append", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.umask(0o022)  # the modes of files are among the bytes of the wheel
    try:
        os.makedirs(options.out, exist_ok=True)
        # There, so that the finished wheel can be moved into place in one step.
        unfinished = tempfile.TemporaryDirectory(prefix=".unfinished-wheel-", dir=options.out)
    except OSError as error:
        parser.error(
            "`--out` must be a folder to write to, or a path for a new one. "
            f"Received: --out={options.out} ({error.strerror})"
        )
    with unfinished as folder:
        try:
            path = make([Built(*one) for one in options.built], folder)
        except CheckError as error:
            raise SystemExit(f"tools/latephase wheel: {error}") from None
        finished = os.path.join(options.out, os.path.basename(path))
        os.replace(path, finished)
    tag = platform_tag(finished)
    print(
        f"{finished}\n{os.path.getsize(finished) / 1e6:.1f} MB, {tag}, "
        f"TensorFlow {', '.join(one[0] for one in options.built)}\n"
        f"runs on {', '.join(distributions(tag))} and others with glibc "
        f"{'.'.join(tag.split('_')[1:3])} or newer"
    )


if __name__ == "__main__":
    main()
