"""The wheel in the root file system of another Debian release: another Python, another glibc.

Takes root, debootstrap, the network and some minutes: //tests/tools:wheel_on_debian_13_test
"""

import glob
import os
import shutil
import subprocess

import pytest

from tests.support import wheel_user

RELEASE, PYTHON = "trixie", "3.13"
# What of this system leads to its package sources.
NETWORK = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
ENVIRONMENT = wheel_user.environment() | {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("root"))
    command = ["debootstrap", "--variant=minbase", "--include=python3-venv", RELEASE, folder]
    made = subprocess.run(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert made.returncode == 0, made.stdout[-2000:]
    for path in filter(os.path.exists, NETWORK):
        os.makedirs(os.path.dirname(folder + path), exist_ok=True)
        shutil.copyfile(path, folder + path)
    yield folder
    shutil.rmtree(folder)


def run(root, *command):
    """In the root file system, in its folder /home."""
    return subprocess.run(
        ["unshare", f"--mount-proc={root}/proc", "chroot", root, "env", "-C", "/home", *command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )


def test_latephase_works_there(root, tmp_path):
    wheel = wheel_user.make_wheel(tmp_path / "dist")
    shutil.copy(wheel, f"{root}/home")
    assert wheel_user.succeed(run(root, "python3", "--version")).stdout.startswith(
        f"Python {PYTHON}."
    )
    wheel_user.succeed(run(root, "python3", "-m", "venv", "/environment"))
    wheel_user.succeed(
        run(
            root,
            "/environment/bin/pip",
            "install",
            "--no-cache-dir",
            f"/home/{os.path.basename(wheel)}[tensorflow]",
        )
    )
    (packages,) = glob.glob(f"{root}/environment/lib/python*/site-packages")
    wheel_user.prepare(f"{root}/home", packages)
    wheel_user.walk(
        lambda *arguments: run(root, "/environment/bin/latephase", *arguments), f"{root}/home"
    )
    described = run(
        root, "/environment/bin/python", "-c", "import late_phase; print(late_phase.describe())"
    )
    assert wheel_user.succeed(described).stdout.startswith("late_phase: ")
