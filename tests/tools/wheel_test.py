"""The wheel: what is in it, what it asks for, that it works where pip puts it, and what is refused.

//tests/tools:wheel_from_registry_test runs the same cases with an environment in which pip installed the wheel and all it needs from the
registry; here TensorFlow is the one at hand, and nothing takes the network.
"""

import email
import glob
import os
import re
import site
import subprocess
import sys
import venv
import zipfile

import pytest

from tools.develop import build_wheel

LIBRARY = os.environ["LATE_PHASE_OPS"]
FROM_REGISTRY = "LATE_PHASE_WHEEL_FROM_REGISTRY" in os.environ


def read(path):
    with open(path, "rb") as file:
        return file.read()


VERSION = read("VERSION").decode().strip()
INFORMATION = f"late_phase-{VERSION}.dist-info"


def make_wheel(folder, library=LIBRARY):
    """Returns the path of the one file that the command leaves in `folder`."""
    build_wheel.main(["--library", str(library), "--out", str(folder)])
    name, = os.listdir(folder)
    return str(folder / name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return make_wheel(tmp_path_factory.mktemp("dist") / "made" / "for_it")


@pytest.fixture(scope="module")
def contents(wheel):
    """File name -> bytes."""
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment that holds the wheel, and whose only way to this project is the wheel."""
    folder = str(tmp_path_factory.mktemp("installed"))
    venv.create(folder, with_pip=False)
    python = f"{folder}/bin/python"
    pip = [sys.executable, "-m", "pip", f"--python={python}", "--disable-pip-version-check", "--no-input"]
    source = []
    if not FROM_REGISTRY:
        packages, = glob.glob(f"{folder}/lib/python*/site-packages")
        with open(f"{packages}/tensorflow_at_hand.pth", "w") as file:
            file.write(site.getsitepackages()[0] + "\n")
        source = ["--no-index"]
    installation = subprocess.run([*pip, "install", *source, wheel], env=user_environment(), capture_output=True, text=True)
    assert installation.returncode == 0, installation.stderr
    return python


def user_environment():
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LATE_PHASE_OPS")} | {"TF_CPP_MIN_LOG_LEVEL": "3"}


def run(python, program, folder):
    finished = subprocess.run([python, "-c", program], cwd=folder, env=user_environment(), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_holds_the_package_the_library_and_the_licences(contents):
    package = {os.path.relpath(path, "python"): read(path) for path in glob.glob("python/late_phase/**/*.py", recursive=True)}
    assert {"late_phase/__init__.py", "late_phase/keras/__init__.py"} <= package.keys()
    licences = {f"{INFORMATION}/licenses/{name}": read(name) for name in ("LICENSE", "LICENSE-THIRD-PARTY")}
    information = {f"{INFORMATION}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "top_level.txt")}
    assert contents.keys() == {*package, *licences, "late_phase/_late_phase_ops.so", *information}
    assert contents.items() >= package.items() | licences.items()


def test_metadata(contents):
    metadata = email.message_from_bytes(contents[f"{INFORMATION}/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("late-phase", VERSION)
    requirements = dict(re.match(r"(\w+)(.*)", requirement).groups() for requirement in metadata.get_all("Requires-Dist"))
    bounds = {name: set(text.split(",")) for name, text in requirements.items()}
    assert bounds == {"tensorflow": {">=2.21", "<2.22"}, "keras": {">=3.15", "<3.16"}}
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Description-Content-Type"] == "text/markdown"
    assert "Programming Language :: Python :: 3.13" in metadata.get_all("Classifier")


def test_description_is_the_readme_without_links_into_the_source_tree(contents):
    description = email.message_from_bytes(contents[f"{INFORMATION}/METADATA"]).get_payload(decode=True).decode()
    assert "# late_phase" in description and not re.search(r"\]\((?!http)", description)
    assert "Using the ops (`docs/using.md`)" in description and "(`docs/keras.md`)" in description


@pytest.mark.parametrize("link, words", [
    ("see [the guide](docs/a.md#part), [docs/b.md](docs/b.md)", "see the guide (`docs/a.md#part`), `docs/b.md`"),
    ("[paper](https://example.org/x) and [ ] (none)", "[paper](https://example.org/x) and [ ] (none)"),
])
def test_relative_links_become_words(link, words):
    assert build_wheel.without_relative_links(link) == words


def test_tag_is_of_a_platform_and_no_python_abi(wheel, contents):
    """The least glibc is the newest of the library's symbol versions."""
    tag = re.fullmatch(rf"late_phase-{re.escape(VERSION)}-(py3-none-manylinux_2_(\d+)_x86_64)\.whl", os.path.basename(wheel))
    versions = output_of("readelf", "--version-info", "--wide", LIBRARY)
    assert int(tag[2]) >= max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", versions))
    information = email.message_from_bytes(contents[f"{INFORMATION}/WHEEL"])
    assert information.get_all("Tag") == [tag[1]] and information["Root-Is-Purelib"] == "false"


@pytest.mark.parametrize("tag, some, not_these", [
    ("manylinux_2_28_x86_64", {"RHEL 8", "RHEL 9", "Debian 12"}, set()),
    ("manylinux_2_34_x86_64", {"RHEL 9", "Debian 12"}, {"RHEL 8"}),
    ("manylinux_2_36_x86_64", {"Debian 12", "Ubuntu 24.04"}, {"RHEL 9", "Ubuntu 22.04"}),
])
def test_distributions_have_the_glibc_of_the_tag(tag, some, not_these):
    named = set(build_wheel.distributions(tag))
    assert some <= named and not named & not_these


def test_library_is_stripped_and_else_the_one_that_was_built(contents, tmp_path):
    path = tmp_path / "_late_phase_ops.so"
    path.write_bytes(contents["late_phase/_late_phase_ops.so"])

    def sections(library):
        lines = output_of("readelf", "--sections", "--wide", library)
        return dict(re.findall(r"\] (\.\S+)\s+\S+\s+\w+\s+\w+\s+(\w+)", lines))  # name -> size

    shipped, built = sections(path), sections(LIBRARY)
    assert not [name for name in shipped if name.startswith(".debug") or name in (".symtab", ".strtab")]
    for name in (".text", ".nv_fatbin", ".dynsym"):
        assert shipped[name] == built[name]
    assert set(re.findall(r"\S+(?=\n)", output_of("nm", "--dynamic", "--defined-only", path))) == {
        "late_phase_build_info", "late_phase_describe", "late_phase_onednn_limit"}
    dynamic = output_of("readelf", "--dynamic", "--wide", path)
    assert set(build_wheel.TENSORFLOW_LIBRARIES) < set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert re.findall(r"RUNPATH.*\[(.*)\]", dynamic) == ["$ORIGIN/../tensorflow"]  # where pip puts it


def test_made_again_says_what_the_page_says_and_has_equal_bytes(tmp_path, wheel, capsys):
    mask = os.umask(0o077)
    try:
        again = make_wheel(tmp_path / "again")
    finally:
        os.umask(mask)
    assert read(again) == read(wheel)
    path, size, systems = capsys.readouterr().out.splitlines()
    page = read("docs/install.md").decode()
    assert path == again and f"dist/{os.path.basename(again)}\n" in page and f"\n{systems}\n" in page
    megabytes, rest = size.split(" MB, ")
    assert megabytes == f"{os.path.getsize(again) / 1e6:.1f}" and f" MB, {rest}\n" in page


def test_installed_package_trains(installed, tmp_path):
    """From a folder that is not the project: an op with its gradient, and one step of Keras."""
    program = """
import keras, numpy as np, os, sys, tensorflow as tf
import late_phase, late_phase.keras
assert os.path.dirname(late_phase.__file__).startswith(sys.prefix), late_phase.__file__
assert late_phase.loader.library_path() == os.path.join(os.path.dirname(late_phase.__file__), "_late_phase_ops.so")

x, kernel = tf.constant([[1.0, -2.0]]), tf.constant([[0.5, 1.0, 0.0], [0.25, 0.0, 1.0]])
with tf.GradientTape() as tape:
    tape.watch(x)
    loss = late_phase.ops.softmax_cross_entropy(x, kernel, tf.zeros([3]), tf.constant([1]))
logits = np.array([0.0, 1.0, -2.0])
softmax = np.exp(logits) / np.exp(logits).sum()
np.testing.assert_allclose(loss, [-np.log(softmax[1])], rtol=1e-5)
np.testing.assert_allclose(tape.gradient(loss, x), [kernel.numpy() @ (softmax - [0, 1, 0])], rtol=1e-4)

model = keras.Sequential([keras.Input((4,)), late_phase.keras.Dense(3, members=2)])
model.compile(late_phase.keras.LatePhaseOptimizer(keras.optimizers.SGD(0.1), members=2, start=0, sigma=0.1),
              keras.losses.SparseCategoricalCrossentropy(from_logits=True))
before = [np.array(weight) for weight in model.get_weights()]
losses = model.fit(np.ones([8, 4], "float32"), np.zeros(8), batch_size=8, verbose=0).history["loss"]
assert np.isfinite(losses).all() and any((a != b).any() for a, b in zip(before, model.get_weights()))
print(late_phase.__version__)
"""
    assert run(installed, program, tmp_path) == VERSION + "\n"


def test_pip_knows_what_it_installed(installed, tmp_path):
    program = """
from importlib import metadata
print(metadata.version("late-phase"), *metadata.requires("late_phase"))
assert metadata.version("tensorflow").startswith("2.21.") and metadata.version("keras").startswith("3.15.")
assert all(file.locate().exists() for file in metadata.files("late-phase"))
"""
    assert run(installed, program, tmp_path).startswith(f"{VERSION} tensorflow")


def shared_library(folder, name, source, *options):
    path = folder / name
    (folder / "source.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, folder / "source.c", *options], check=True)
    return path


def refusal(library, folder, capsys):
    """What the command says about a library it cannot take; nothing is left behind."""
    with pytest.raises(SystemExit) as error:
        make_wheel(folder, library)
    assert os.listdir(folder) == [] and capsys.readouterr().out == ""
    return str(error.value)


def test_a_foreign_exported_symbol_is_named(tmp_path, capsys):
    library = shared_library(tmp_path, "symbols.so", "int late_phase_a() { return 1; }\nint png_read() { return 2; }\n")
    message = refusal(library, tmp_path / "out", capsys)
    assert "must export symbols named late_phase_* only" in message and message.endswith("It exports: png_read")


def test_a_library_without_exports_is_refused(tmp_path, capsys):
    library = shared_library(tmp_path, "empty.so", "static int a() { return 1; }\nint (*b)() __attribute__((visibility(\"hidden\"))) = a;\n")
    assert refusal(library, tmp_path / "out", capsys).endswith("It exports: nothing")


@pytest.mark.parametrize("is_found", [True, False])
def test_a_library_that_no_system_has_is_named(tmp_path, capsys, monkeypatch, is_found):
    """auditwheel would copy one that it finds into the wheel."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    shared_library(folder, "libother.so.1", "int other() { return 1; }\n", "-Wl,-soname,libother.so.1")
    library = shared_library(tmp_path, "needs.so", "int other();\nint late_phase_a() { return other(); }\n", str(folder / "libother.so.1"))
    if is_found:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    assert "libother" in refusal(library, tmp_path / "out", capsys)


def test_what_is_no_library_is_named(tmp_path, capsys):
    text = tmp_path / "text.so"
    text.write_text("not a library")
    assert f"not a shared library: {text}" in refusal(text, tmp_path / "out", capsys)


def test_metadata_that_pypi_would_refuse_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build_wheel, "without_relative_links", lambda page: "")
    library = shared_library(tmp_path, "small.so", "int late_phase_a() { return 1; }\n")
    message = refusal(library, tmp_path / "out", capsys)
    assert "twine check failed" in message and "long_description" in message


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(SystemExit) as error:
        build_wheel.main(["--library", LIBRARY, "--out", str(path)])
    assert error.value.code == 2 and f"Received: --out={path}" in capsys.readouterr().err and path.read_text() == "kept"


def test_source_tree_without_the_library_names_the_command(tmp_path):
    """`pip install .`"""
    for name in ("pyproject.toml", "setup.py", "VERSION", "README.md", "LICENSE", "LICENSE-THIRD-PARTY"):
        (tmp_path / name).write_bytes(read(name))
    (tmp_path / "python" / "late_phase").mkdir(parents=True)
    (tmp_path / "python" / "late_phase" / "__init__.py").touch()
    attempt = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "out", tmp_path],
                             env=user_environment(), capture_output=True, text=True)
    assert attempt.returncode != 0 and "tools/latephase wheel --out DIR" in attempt.stdout + attempt.stderr
