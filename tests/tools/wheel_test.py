"""The wheel: what is in it, what it asks for, that it works where pip puts it, and what is refused.

//tests/tools:wheel_from_registry_test runs the same cases with an environment in which pip
installed the wheel and all it needs from the registry; here TensorFlow is the one at hand, and
nothing takes the network. //tests/tools:wheel_on_debian_13_test has the wheel on another system.
"""

import email
import glob
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.support import wheel_user
from tools.develop import build_wheel

LIBRARY, PROGRAM, RELEASE = wheel_user.LIBRARY, wheel_user.PROGRAM, wheel_user.RELEASE
FOLDER = "tensorflow_" + RELEASE.replace(".", "_")
SHIPPED_LIBRARY = f"late_phase/{FOLDER}/_late_phase_ops.so"
SHIPPED_PROGRAM = f"late_phase_cli/bin/{FOLDER}/latephase_program"
FROM_REGISTRY = "LATE_PHASE_WHEEL_FROM_REGISTRY" in os.environ


def read(path):
    with open(path, "rb") as file:
        return file.read()


VERSION = read("VERSION").decode().strip()
INFORMATION = f"late_phase-{VERSION}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheel_user.make_wheel(tmp_path_factory.mktemp("dist") / "made" / "for_it")


@pytest.fixture(scope="module")
def contents(wheel):
    """File name -> bytes."""
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/")}


def site_packages(python):
    (packages,) = glob.glob(os.path.join(os.path.dirname(python), "../lib/python*/site-packages"))
    return packages


def link_distributions(names, packages):
    """Links the distributions of this environment, with all that they require and nothing else,
    into the folder `packages`.
    """
    waiting, linked = list(names), set()
    while waiting:
        distribution = metadata.distribution(waiting.pop())
        if distribution.name in linked:
            continue
        linked.add(distribution.name)
        for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not os.path.lexists(f"{packages}/{name}"):
                os.symlink(distribution.locate_file(name), f"{packages}/{name}")
        requirements = map(Requirement, distribution.requires or [])
        waiting += [
            one.name
            for one in requirements
            if one.marker is None or one.marker.evaluate({"extra": ""})
        ]


def make_environment(folder):
    """The Python of a new, empty environment."""
    venv.create(folder, with_pip=False)
    return f"{folder}/bin/python"


def install(python, wheel, *options):
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "--disable-pip-version-check",
        "--no-input",
    ]
    installation = subprocess.run(
        [*pip, "install", *options, wheel],
        env=wheel_user.environment(),
        capture_output=True,
        text=True,
    )
    assert installation.returncode == 0, installation.stderr


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment that holds the wheel and what it requires, and whose only way to
    this project is the wheel.
    """
    python = make_environment(str(tmp_path_factory.mktemp("installed")))
    if FROM_REGISTRY:
        install(python, wheel + "[tensorflow]")
    else:
        link_distributions(["tensorflow", "keras"], site_packages(python))
        install(python, wheel, "--no-index")
    return python


def attempt(python, program, folder):
    return subprocess.run(
        [python, "-c", program],
        cwd=folder,
        env=wheel_user.environment(),
        capture_output=True,
        text=True,
    )


def run(python, program, folder):
    return wheel_user.succeed(attempt(python, program, folder)).stdout


def latephase(python, folder, *arguments, **variables):
    """The installed command."""
    return subprocess.run(
        [os.path.join(os.path.dirname(python), "latephase"), *arguments],
        cwd=folder,
        env=wheel_user.environment() | variables,
        capture_output=True,
        text=True,
    )


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def packaged(pattern, root="python", place=""):
    """{name in the wheel: bytes} of files of the repository."""
    paths = filter(os.path.isfile, glob.glob(f"{root}/{pattern}", recursive=True))
    return {os.path.join(place, os.path.relpath(path, root)): read(path) for path in paths}


def test_holds_the_packages_what_was_built_and_the_licences(contents):
    package = (
        packaged("late_phase/**/*.py")
        | packaged("late_phase_cli/**/*.py")
        | packaged("late_phase_cli/*.json")
        | packaged("late_phase_cli/templates/**/*")
    )
    presets = packaged("*.toml", "models/presets", "late_phase_cli/presets")
    assert {
        "late_phase/__init__.py",
        "late_phase/keras/__init__.py",
        "late_phase_cli/main.py",
        "late_phase_cli/flags.json",
        "late_phase_cli/outcomes.json",
    } <= package.keys()
    assert {
        "late_phase_cli/templates/report/page.html",
        "late_phase_cli/templates/report/style.css",
    } <= package.keys()
    assert "late_phase_cli/presets/enwik8-quick.toml" in presets
    licences = {
        f"{INFORMATION}/licenses/{name}": read(name) for name in ("LICENSE", "LICENSE-THIRD-PARTY")
    }
    information = {
        f"{INFORMATION}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")
    }
    built = {SHIPPED_LIBRARY, SHIPPED_PROGRAM}
    assert contents.keys() == {*package, *presets, *licences, *built, *information}
    assert contents.items() >= package.items() | presets.items() | licences.items()
    assert (
        contents[f"{INFORMATION}/entry_points.txt"].decode()
        == "[console_scripts]\nlatephase = late_phase_cli.main:main\n"
    )


def test_licences_name_all_that_is_compiled_in():
    named = read("LICENSE-THIRD-PARTY").decode()
    of_library, of_program = named.partition("_late_phase_ops.so:\n")[2].split(
        "latephase_program:\n"
    )
    for name in ("LIBXSMM", "Highway", "TensorFlow", "Abseil", "Eigen", "CUDA runtime"):
        assert f"{name}" in of_library
    for name in ("libarchive", "zlib", "CLI11", "toml++", "JSON for Modern C++"):
        assert f"\n{name}, " in of_program and re.search(
            rf"\n\n\n.*{re.escape(name)}.*\n\n.*Copyright", of_program
        )


def test_metadata(contents):
    information = email.message_from_bytes(contents[f"{INFORMATION}/METADATA"])
    assert (information["Name"], information["Version"]) == ("late-phase", VERSION)
    requirements = list(map(Requirement, information.get_all("Requires-Dist")))
    assert all(one.marker for one in requirements), "TensorFlow comes in packages of many names"
    bounds = {one.name: set(str(one.specifier).split(",")) for one in requirements}
    assert bounds["tensorflow"] == bounds["tensorflow-cpu"] == {">=2.20", "<2.23"}
    assert bounds["keras"] == {">=3.15", "<3.16"}
    extras = {
        extra: {
            one.name for one in requirements if one.marker and one.marker.evaluate({"extra": extra})
        }
        for extra in information.get_all("Provides-Extra")
    }
    assert extras == {
        "tensorflow": {"tensorflow", "keras"},
        "tensorflow-cpu": {"tensorflow-cpu", "keras"},
        "plots": {"matplotlib", "Jinja2"},
        "corruptions": {"scipy", "Pillow"},
    }
    assert set(information["Requires-Python"].split(",")) == {">=3.11", "<3.15"}
    assert (
        information["License-Expression"] == "Apache-2.0"
        and information["Description-Content-Type"] == "text/markdown"
    )
    assert "Programming Language :: Python :: 3.14" in information.get_all("Classifier")


def test_description_is_the_readme_without_links_into_the_source_tree(contents):
    description = (
        email.message_from_bytes(contents[f"{INFORMATION}/METADATA"])
        .get_payload(decode=True)
        .decode()
    )
    assert "# late_phase" in description and not re.search(r"\]\((?!http)", description)
    assert "Using the ops (`docs/using.md`)" in description and "(`docs/keras.md`)" in description


@pytest.mark.parametrize(
    "link, words",
    [
        (
            "see [the guide](docs/a.md#part), [docs/b.md](docs/b.md)",
            "see the guide (`docs/a.md#part`), `docs/b.md`",
        ),
        (
            "[paper](https://example.org/x) and [ ] (none)",
            "[paper](https://example.org/x) and [ ] (none)",
        ),
    ],
)
def test_relative_links_become_words(link, words):
    assert build_wheel.without_relative_links(link) == words


def test_tag_is_of_a_platform_and_no_python_abi(wheel, contents):
    """The least glibc is the newest of the library's symbol versions."""
    tag = re.fullmatch(
        rf"late_phase-{re.escape(VERSION)}-(py3-none-manylinux_2_(\d+)_x86_64)\.whl",
        os.path.basename(wheel),
    )
    assert int(tag[2]) >= max(minor for _, minor, *_ in versions_of(LIBRARY, "GLIBC"))
    information = email.message_from_bytes(contents[f"{INFORMATION}/WHEEL"])
    assert information.get_all("Tag") == [tag[1]] and information["Root-Is-Purelib"] == "false"


@pytest.mark.parametrize(
    "tag, some, not_these",
    [
        ("manylinux_2_28_x86_64", {"RHEL 8", "RHEL 9", "Debian 12"}, set()),
        ("manylinux_2_34_x86_64", {"RHEL 9", "Debian 12"}, {"RHEL 8"}),
        ("manylinux_2_36_x86_64", {"Debian 12", "Ubuntu 24.04"}, {"RHEL 9", "Ubuntu 22.04"}),
    ],
)
def test_distributions_have_the_glibc_of_the_tag(tag, some, not_these):
    named = set(build_wheel.distributions(tag))
    assert some <= named and not named & not_these


def versions_of(path, name):
    """Which versions of a library's symbols a file needs: "GLIBC" -> {(2, 34), ...}."""
    listed = output_of("readelf", "--version-info", "--wide", path)
    return {
        tuple(map(int, version.split(".")))
        for version in re.findall(rf"Name: {name}_([\d.]+)", listed)
    }


@pytest.fixture(scope="module")
def shipped_program(contents, tmp_path_factory):
    path = tmp_path_factory.mktemp("shipped") / "program"
    path.write_bytes(contents[SHIPPED_PROGRAM])
    return path


def test_program_needs_no_newer_system_than_the_library(shipped_program):
    assert max(versions_of(shipped_program, "GLIBC")) <= max(versions_of(LIBRARY, "GLIBC"))


def test_program_is_executable_stripped_and_finds_what_pip_puts_beside_it(wheel, shipped_program):
    with zipfile.ZipFile(wheel) as file:
        assert file.getinfo(SHIPPED_PROGRAM).external_attr >> 16 & 0o777 == 0o755
    assert ".symtab" not in output_of("readelf", "--sections", "--wide", shipped_program)
    dynamic = output_of("readelf", "--dynamic", "--wide", shipped_program)
    assert {*build_wheel.TENSORFLOW_LIBRARIES, "_late_phase_ops.so"} < set(
        re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    )
    assert re.findall(r"RUNPATH.*\[(.*)\]", dynamic) == [
        f"$ORIGIN/../../../tensorflow:$ORIGIN/../../../late_phase/{FOLDER}"
    ]


def test_library_is_stripped_and_else_the_one_that_was_built(contents, tmp_path):
    path = tmp_path / "_late_phase_ops.so"
    path.write_bytes(contents[SHIPPED_LIBRARY])

    def sections(library):
        lines = output_of("readelf", "--sections", "--wide", library)
        return dict(re.findall(r"\] (\.\S+)\s+\S+\s+\w+\s+\w+\s+(\w+)", lines))  # name -> size

    shipped, built = sections(path), sections(LIBRARY)
    assert not [
        name for name in shipped if name.startswith(".debug") or name in (".symtab", ".strtab")
    ]
    for name in (".text", ".nv_fatbin", ".dynsym"):
        assert shipped[name] == built[name]
    assert set(re.findall(r"\S+(?=\n)", output_of("nm", "--dynamic", "--defined-only", path))) == {
        "late_phase_build_info",
        "late_phase_describe",
        "late_phase_onednn_limit",
    }
    dynamic = output_of("readelf", "--dynamic", "--wide", path)
    assert set(build_wheel.TENSORFLOW_LIBRARIES) < set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    # Where pip puts it.
    assert re.findall(r"RUNPATH.*\[(.*)\]", dynamic) == ["$ORIGIN/../../tensorflow"]


def test_made_again_says_what_the_page_says_and_has_equal_bytes(tmp_path, wheel, capsys):
    mask = os.umask(0o077)
    try:
        again = wheel_user.make_wheel(tmp_path / "again")
    finally:
        os.umask(mask)
    assert read(again) == read(wheel)
    path, size, systems = capsys.readouterr().out.splitlines()
    page = read("docs/install.md").decode()
    assert (
        path == again and f"dist/{os.path.basename(again)}\n" in page and f"\n{systems}\n" in page
    )
    megabytes, tag, releases = size.removesuffix(RELEASE).split(", ", 2)
    assert (
        megabytes == f"{os.path.getsize(again) / 1e6:.1f} MB" and f" MB, {tag}, TensorFlow " in page
    )
    assert releases == "TensorFlow "


def test_installed_package_trains(installed, tmp_path):
    """From a folder that is not the project: an op with its gradient, and one step of Keras."""
    program = """
import keras, numpy as np, os, sys, tensorflow as tf
import late_phase, late_phase.keras
assert os.path.dirname(late_phase.__file__).startswith(sys.prefix), late_phase.__file__
package = os.path.dirname(late_phase.__file__)
folder = "tensorflow_" + "_".join(tf.__version__.split(".")[:2])
assert late_phase.loader.library_path() == os.path.join(package, folder, "_late_phase_ops.so")

x, kernel = tf.constant([[1.0, -2.0]]), tf.constant([[0.5, 1.0, 0.0], [0.25, 0.0, 1.0]])
with tf.GradientTape() as tape:
    tape.watch(x)
    loss = late_phase.ops.softmax_cross_entropy(x, kernel, tf.zeros([3]), tf.constant([1]))
logits = np.array([0.0, 1.0, -2.0])
softmax = np.exp(logits) / np.exp(logits).sum()
np.testing.assert_allclose(loss, [-np.log(softmax[1])], rtol=1e-5)
expected = [kernel.numpy() @ (softmax - [0, 1, 0])]
np.testing.assert_allclose(tape.gradient(loss, x), expected, rtol=1e-4)

model = keras.Sequential([keras.Input((4,)), late_phase.keras.Dense(3, members=2)])
sgd = keras.optimizers.SGD(0.1)
model.compile(late_phase.keras.LatePhaseOptimizer(sgd, members=2, start=0, sigma=0.1),
              keras.losses.SparseCategoricalCrossentropy(from_logits=True))
before = [np.array(weight) for weight in model.get_weights()]
losses = model.fit(np.ones([8, 4], "float32"), np.zeros(8), batch_size=8, verbose=0).history["loss"]
assert np.isfinite(losses).all()
assert any((a != b).any() for a, b in zip(before, model.get_weights()))
print(late_phase.__version__)
"""
    assert run(installed, program, tmp_path) == VERSION + "\n"


def test_latephase_works_without_the_repository(installed, tmp_path):
    """In an environment of TensorFlow alone: neither matplotlib nor Jinja2."""
    wheel_user.prepare(tmp_path, site_packages(installed))
    wheel_user.walk(lambda *arguments: latephase(installed, tmp_path, *arguments), tmp_path)


def test_program_finds_a_tensorflow_that_is_elsewhere(wheel, tmp_path):
    """As where TensorFlow was installed for all users, and late_phase for one."""
    python = make_environment(str(tmp_path / "user"))
    install(python, wheel, "--no-index", "--no-deps")
    start = ("train", "enwik8", "--preset", "none")  # only the program knows that there is none
    refused = latephase(python, tmp_path, *start)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
    major, minor = map(int, RELEASE.split("."))
    assert (
        f"TensorFlow is not installed: pip install 'tensorflow>={RELEASE},<{major}.{minor + 1}' "
        "(or tensorflow-cpu" in refused.stderr
    )
    imported = attempt(python, "import late_phase", tmp_path)
    assert "late_phase needs TensorFlow, which is not installed: pip install" in imported.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link_distributions(["tensorflow"], elsewhere)
    with open(f"{site_packages(python)}/elsewhere.pth", "w") as file:
        file.write(f"{elsewhere}\n")
    started = latephase(python, tmp_path, *start)
    assert started.returncode == 2 and "`preset` must be" in started.stderr, started.stderr


def test_pip_knows_what_it_installed(installed, tmp_path):
    program = """
from importlib import metadata
print(metadata.version("late-phase"))
assert all(file.locate().exists() for file in metadata.files("late-phase"))
"""
    assert run(installed, program, tmp_path) == f"{VERSION}\n"


def test_a_wheel_for_several_releases_has_both_for_each(tmp_path, program):
    library = shared_library(tmp_path, "small.so", "int late_phase_a() { return 1; }\n")
    out = tmp_path / "out"
    built = [str(library), str(program)]
    build_wheel.main(["--built", "2.98", *built, "--built", "2.99", *built, "--out", str(out)])
    with zipfile.ZipFile(out / os.listdir(out)[0]) as file:
        names = set(file.namelist())
    for folder in ("tensorflow_2_98", "tensorflow_2_99"):
        assert f"late_phase/{folder}/_late_phase_ops.so" in names
        assert f"late_phase_cli/bin/{folder}/latephase_program" in names


def test_another_release_is_refused_by_name(installed, tmp_path):
    """Both ways in name the releases that the wheel has, and neither loads anything."""
    major, minor = map(int, RELEASE.split("."))
    install = f"pip install 'tensorflow>={RELEASE},<{major}.{minor + 1}'"
    program = """
import tensorflow as tf
tf.__version__ = "2.99.0"
import late_phase
"""
    imported = attempt(installed, program, tmp_path)
    assert f"built for TensorFlow {RELEASE}, but this is TensorFlow 2.99.0" in imported.stderr
    assert install in imported.stderr
    with open(f"{site_packages(installed)}/other_release.pth", "w") as file:
        file.write(
            "import importlib.metadata as m; _v = m.version; "
            "m.version = lambda name: '2.99.0' if name == 'tensorflow' else _v(name)\n"
        )
    try:
        refused = latephase(installed, tmp_path, "train", "enwik8", "--preset", "none")
    finally:
        os.remove(f"{site_packages(installed)}/other_release.pth")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
    assert "Received: TensorFlow 2.99.0" in refused.stderr and install in refused.stderr


def test_tensorflow_of_another_name_is_found(wheel, tmp_path):
    """tensorflow-cpu and tf-nightly are packages of their own, with the same files."""
    python = make_environment(str(tmp_path / "user"))
    packages = site_packages(python)
    link_distributions(["tensorflow"], packages)
    (information,) = glob.glob(f"{packages}/tensorflow-*.dist-info")
    text = read(f"{information}/METADATA").decode()
    os.remove(information)  # a link
    renamed = information.replace("/tensorflow-", "/tensorflow_cpu-")
    os.mkdir(renamed)
    with open(f"{renamed}/METADATA", "w") as file:
        file.write(re.sub(r"^Name: .*$", "Name: tensorflow-cpu", text, count=1, flags=re.M))
    install(python, wheel, "--no-index", "--no-deps")
    started = latephase(python, tmp_path, "train", "enwik8", "--preset", "none")
    assert started.returncode == 2 and "`preset` must be" in started.stderr, started.stderr


def compiled(folder, name, source, *options):
    path = folder / name
    (folder / f"{name}.c").write_text(source)
    subprocess.run(["gcc", "-o", path, folder / f"{name}.c", *options], check=True)
    return path


def shared_library(folder, name, source, *options):
    return compiled(folder, name, source, "-shared", "-fPIC", *options)


@pytest.fixture
def program(tmp_path):
    return compiled(tmp_path, "program", "int main() { return 0; }\n")


def refusal(folder, capsys, library, program):
    """What the command says about what it cannot take; nothing is left behind."""
    with pytest.raises(SystemExit) as error:
        wheel_user.make_wheel(folder, library, program)
    assert os.listdir(folder) == [] and capsys.readouterr().out == ""
    return str(error.value)


def test_a_foreign_exported_symbol_is_named(tmp_path, capsys, program):
    library = shared_library(
        tmp_path, "symbols.so", "int late_phase_a() { return 1; }\nint png_read() { return 2; }\n"
    )
    message = refusal(tmp_path / "out", capsys, library, program)
    assert "must export only symbols named late_phase_*" in message and message.endswith(
        "It exports: png_read"
    )


def test_a_library_without_exports_is_refused(tmp_path, capsys, program):
    library = shared_library(
        tmp_path,
        "empty.so",
        'static int a() { return 1; }\nint (*b)() __attribute__((visibility("hidden"))) = a;\n',
    )
    assert refusal(tmp_path / "out", capsys, library, program).endswith("It exports: nothing")


@pytest.mark.parametrize("needed_by", ["library", "program"])
@pytest.mark.parametrize("is_found", [True, False])
def test_a_library_that_no_system_has_is_named(tmp_path, capsys, monkeypatch, is_found, needed_by):
    """auditwheel would copy one that it finds into the wheel."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    other = shared_library(
        folder, "libother.so.1", "int other() { return 1; }\n", "-Wl,-soname,libother.so.1"
    )
    source = (
        "int other();\nint late_phase_a() { return other(); }\nint main() { return "
        "late_phase_a(); }\n"
    )
    with_other, without = (
        (source, str(other)),
        ("int late_phase_a() { return 1; }\nint main() { return 0; }\n",),
    )
    library = shared_library(
        tmp_path,
        "library.so",
        *(with_other if needed_by == "library" else without),
        "-Dmain=late_phase_main",
    )
    program = compiled(tmp_path, "program", *(with_other if needed_by == "program" else without))
    if is_found:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    assert "libother" in refusal(tmp_path / "out", capsys, library, program)


def test_what_is_no_library_is_named(tmp_path, capsys, program):
    text = tmp_path / "text.so"
    text.write_text("not a library")
    assert f"not a shared library: {text}" in refusal(tmp_path / "out", capsys, text, program)


def test_metadata_that_pypi_would_refuse_is_named(tmp_path, capsys, monkeypatch, program):
    monkeypatch.setattr(build_wheel, "without_relative_links", lambda page: "")
    library = shared_library(tmp_path, "small.so", "int late_phase_a() { return 1; }\n")
    message = refusal(tmp_path / "out", capsys, library, program)
    assert "twine check failed" in message and "long_description" in message


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(SystemExit) as error:
        build_wheel.main(["--built", RELEASE, LIBRARY, PROGRAM, "--out", str(path)])
    assert (
        error.value.code == 2
        and f"Received: --out={path}" in capsys.readouterr().err
        and path.read_text() == "kept"
    )


def test_source_tree_without_the_library_names_the_command(tmp_path):
    """`pip install .`"""
    for name in (
        "pyproject.toml",
        "setup.py",
        "VERSION",
        "README.md",
        "LICENSE",
        "LICENSE-THIRD-PARTY",
    ):
        (tmp_path / name).write_bytes(read(name))
    (tmp_path / "python" / "late_phase").mkdir(parents=True)
    (tmp_path / "python" / "late_phase" / "__init__.py").touch()
    attempt = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            tmp_path / "out",
            tmp_path,
        ],
        env=wheel_user.environment(),
        capture_output=True,
        text=True,
    )
    assert (
        attempt.returncode != 0
        and "tools/latephase wheel --out DIR" in attempt.stdout + attempt.stderr
    )
