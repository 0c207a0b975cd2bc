"""One wheel in environments with each supported release of TensorFlow, with its CPU package and
with other versions of Python: it installs beside them, imports, and trains in Keras and in C++.

    tools/latephase wheel --out dist
    tools/test //tests/tools:wheel_releases_test --test_env=LATE_PHASE_WHEEL=$PWD/dist

Takes the network and some minutes.
"""

import glob
import os
import re
import shutil
import subprocess

import pytest

from tests.support import wheel_user

# What pip is asked for, and the Python: "" is the one that runs this.
ENVIRONMENTS = [
    ("tensorflow==2.20.0", ""),
    ("tensorflow==2.21.0", ""),
    ("tensorflow==2.22.0rc0", ""),
    ("tensorflow-cpu==2.21.0", ""),
    ("tensorflow==2.21.0", "3.12"),
    ("tensorflow-cpu==2.20.0", "3.13"),
]
TRAINING = """
import keras, numpy as np, os, sys, tensorflow as tf
import late_phase, late_phase.keras
release = "_".join(tf.__version__.split(".")[:2])
assert f"tensorflow_{release}" in late_phase.loader.library_path()
model = keras.Sequential([
    keras.Input((5, 4)),
    late_phase.keras.Rank1LSTM(6, members=2),
    late_phase.keras.Dense(3, members=2),
])
optimizer = late_phase.keras.LatePhaseOptimizer(
    keras.optimizers.Adam(0.02), members=2, start=4, sigma=0.1)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = np.random.default_rng(0).normal(size=[64, 5, 4]).astype("float32")
losses = model.fit(x, (x.sum((1, 2)) > 0) * 1, batch_size=8, epochs=8, verbose=0).history["loss"]
assert losses[-1] < losses[0], losses
plain = late_phase.keras.collapse(model)
assert np.isfinite(plain.predict(x, verbose=0)).all()
print(tf.__version__)
"""


def the_wheel():
    (path,) = glob.glob(os.path.join(os.environ["LATE_PHASE_WHEEL"], "late_phase-*.whl"))
    return path


def run(*command, **options):
    return wheel_user.succeed(
        subprocess.run(
            command, env=wheel_user.environment(), capture_output=True, text=True, **options
        )
    )


def python_of(version):
    """A Python on this machine; skips where there is none."""
    if not version:
        return "/usr/bin/python3"
    found = shutil.which(f"python{version}")
    if not found:
        pytest.skip(f"there is no python{version} on the path")
    return found


@pytest.mark.parametrize("package, version", ENVIRONMENTS)
def test_trains_there(tmp_path, package, version):
    run(python_of(version), "-m", "venv", tmp_path / "environment")
    python = str(tmp_path / "environment" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", package, the_wheel())
    if package.endswith("rc0"):  # it brings a nightly build of Keras
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "keras-nightly")
        run(python, "-m", "pip", "install", "--quiet", "keras==3.15.1")
    else:
        run(python, "-m", "pip", "check")
    # TensorFlow's own package and no other; pip writes some names with "_" for "-".
    frozen = run(python, "-m", "pip", "freeze").stdout.replace("_", "-").splitlines()
    assert [line for line in frozen if re.match("tensorflow(-cpu)?==", line)] == [package]
    trained = run(python, "-c", TRAINING, cwd=tmp_path).stdout.strip()
    assert trained.replace("-", "") == package.split("==")[1]
    (packages,) = glob.glob(f"{tmp_path}/environment/lib/python*/site-packages")
    wheel_user.prepare(tmp_path, packages)

    def latephase(*arguments):
        return subprocess.run(
            [tmp_path / "environment" / "bin" / "latephase", *arguments],
            cwd=tmp_path,
            env=wheel_user.environment(),
            capture_output=True,
            text=True,
        )

    wheel_user.walk(latephase, tmp_path)
