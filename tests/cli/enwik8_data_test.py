"""python/late_phase_cli/enwik8_data.py on generated texts: every way in, every failure. A local
server stands for the author's site, a folder for PyPI.
"""

import concurrent.futures
import dataclasses
import gzip
import hashlib
import http.server
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile

import pytest

from late_phase_cli import enwik8_data, locations

RAW = random.Random(1).randbytes(300_000) * 5  # more than a block
OTHER = RAW[:-1] + bytes([RAW[-1] ^ 1])  # same size
NOWHERE = "http://127.0.0.1:9/enwik8.zip"  # nothing listens there
TEXT = enwik8_data.Text(size=len(RAW), md5=hashlib.md5(RAW).hexdigest(), url=NOWHERE)


def zipped(content=RAW, member="enwik8"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


def flipped(data):
    """Damaged in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no way out to the network, and nothing half-written left in the cache by any
    test.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LATE_PHASE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    folder = tmp_path / "cache" / "late_phase" / "data"
    yield folder
    assert not folder.exists() or os.listdir(folder) in ([], ["enwik8"])


@pytest.fixture
def site():
    """site(answer): a server whose every page is `answer`, bytes or a function of the request;
    returns its address.
    """
    servers = []

    def start(answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if callable(answer):
                    return answer(self)
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/enwik8.zip"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """package(files): a source archive as PyPI would give it. Its build backend is its own:
    building needs no other package.
    """

    def make(files):
        sources = {
            "pyproject.toml": b"[build-system]\nrequires = []\n"
            b'build-backend = "backend"\nbackend-path = ["."]\n',
            "backend.py": b"import os\n"
            b"def prepare_metadata_for_build_wheel(folder, config_settings=None):\n"
            b"    os.mkdir(folder + '/mingru_pytorch-0.2.1.dist-info')\n"
            b"    with open(folder + '/mingru_pytorch-0.2.1.dist-info/METADATA', 'w') as "
            b"file:\n"
            b"        file.write('Metadata-Version: 2.1\\nName: mingru-pytorch\\nVersion: "
            b"0.2.1\\n')\n"
            b"    return 'mingru_pytorch-0.2.1.dist-info'\n"
            b"def build_wheel(*arguments):\n    raise RuntimeError\n",
            "PKG-INFO": b"Metadata-Version: 2.1\nName: mingru-pytorch\nVersion: 0.2.1\n",
            **files,
        }
        folder = tmp_path / "index"
        folder.mkdir()
        with tarfile.open(folder / "mingru_pytorch-0.2.1.tar.gz", "w:gz") as archive:
            for name, content in sources.items():
                member = tarfile.TarInfo("mingru_pytorch-0.2.1/" + name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    return make


def find(data=None, text=TEXT):
    return enwik8_data.find(data, text)


def complaint(data=None, text=TEXT):
    with pytest.raises(enwik8_data.DataError) as refused:
        enwik8_data.find(data, text)
    message = str(refused.value)
    assert "\n" not in message and "Received: " in message and "--data" in message
    assert f"{len(RAW):,} bytes, md5 {TEXT.md5}" in message
    return message


def content(path):
    with open(path, "rb") as file:
        return file.read()


def test_the_real_text_is_the_default():
    assert (enwik8_data.Text().size, enwik8_data.Text().md5) == (
        100_000_000,
        "a1fa5ffddb56f4953e226637dabbb36a",
    )


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_raw_file_is_used_in_place(tmp_path, monkeypatch, cache, by):
    path = tmp_path / "some name.zip"  # decided by content
    path.write_bytes(RAW)
    if by == "flag":
        monkeypatch.setenv("LATE_PHASE_DATA", "/nowhere")  # the flag comes first
        assert find(str(path)) == str(path)
    else:
        monkeypatch.setenv("LATE_PHASE_DATA", str(path))
        assert find() == str(path)
    assert not cache.exists()


def test_relative_path_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "text").write_bytes(RAW)
    monkeypatch.chdir(tmp_path)
    assert find("text") == str(tmp_path / "text")


@pytest.mark.parametrize("pack", [gzip.compress, zipped])
def test_archive_is_unpacked_once(tmp_path, cache, pack):
    path = tmp_path / "archive"
    path.write_bytes(pack(RAW))
    assert find(str(path)) == str(cache / "enwik8")
    assert content(cache / "enwik8") == RAW
    inode = os.stat(cache / "enwik8").st_ino
    find(str(path))
    assert os.stat(cache / "enwik8").st_ino == inode
    # A cached file of the wrong size is replaced, not used.
    (cache / "enwik8").write_bytes(RAW[:10])
    find(str(path))
    assert content(cache / "enwik8") == RAW


@pytest.mark.parametrize(
    "name, pack", [("enwik8", bytes), ("enwik8.gz", gzip.compress), ("enwik8.zip", zipped)]
)
def test_folder_holds_any_form(tmp_path, name, pack):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(pack(RAW))
    assert content(find(str(folder))) == RAW


def test_cached_copy_needs_no_source(cache):
    cache.mkdir(parents=True)
    (cache / "enwik8").write_bytes(RAW)
    assert find() == str(cache / "enwik8")


def test_cache_is_below_home_by_default(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert locations.cache_folder() == "/home/someone/.cache/late_phase"
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # empty is as good as unset, as in tools/setup
    assert locations.cache_folder() == "/home/someone/.cache/late_phase"


@pytest.mark.parametrize(
    "data, received",
    [
        (b"", "(0 bytes)"),
        (RAW[:-1], f"({len(RAW) - 1:,} bytes)"),
        (RAW + b"x", f"(more than {len(RAW):,} bytes)"),
        (OTHER, f"(md5 {hashlib.md5(OTHER).hexdigest()})"),
        (gzip.compress(OTHER), f"(md5 {hashlib.md5(OTHER).hexdigest()})"),
        (gzip.compress(RAW[:-1]), f"({len(RAW) - 1:,} bytes)"),
        (gzip.compress(RAW)[:-1000], "Compressed file ended"),
        (flipped(gzip.compress(RAW)), "Received: "),
        (gzip.compress(RAW)[:5], "Compressed file ended"),
        (zipped(OTHER), f"(md5 {hashlib.md5(OTHER).hexdigest()})"),
        (zipped(RAW + RAW), f"(more than {len(RAW):,} bytes)"),
        (zipped()[:-1000], "not a zip file"),
        (flipped(zipped()), "Received: "),
        (zipped(member="enwik9"), "There is no item named 'enwik8' in the archive"),
    ],
)
def test_wrong_or_damaged_file_is_refused(tmp_path, data, received):
    path = tmp_path / "text"
    path.write_bytes(data)
    message = complaint(str(path))
    assert (
        f"`data` must be enwik8 ({len(RAW):,} bytes" in message
        and f"Received: data={path} (" in message
        and received in message
    )


@pytest.mark.parametrize(
    "path, received",
    [
        ("/nowhere/enwik8", "(No such file or directory: /nowhere/enwik8)"),
        ("", "(No such file or directory"),
        ("/proc/self/mem", "(Input/output error"),
        ("/dev/zero", "(not a file)"),
        (".", "(a folder without enwik8, enwik8.gz or enwik8.zip)"),
    ],
)
def test_path_without_the_text_is_refused(tmp_path, monkeypatch, path, received):
    monkeypatch.chdir(tmp_path)
    assert received in complaint(path)


def test_environment_is_named_when_it_is_wrong(monkeypatch):
    monkeypatch.setenv("LATE_PHASE_DATA", "/nowhere")
    assert "Received: LATE_PHASE_DATA=/nowhere (No such file" in complaint()


def test_full_disk_is_named(tmp_path, monkeypatch, cache):
    path = tmp_path / "enwik8.gz"
    path.write_bytes(gzip.compress(RAW))
    monkeypatch.setattr(
        enwik8_data,
        "open",
        lambda name, mode: open("/dev/full" if "w" in mode else name, mode),
        raising=False,
    )
    message = complaint(str(path))
    assert "No space left on device" in message and "make room, or set XDG_CACHE_HOME" in message
    assert not os.listdir(cache)


def test_cache_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    path = tmp_path / "enwik8.gz"
    path.write_bytes(gzip.compress(RAW))
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    assert f"(Not a directory: {path}/late_phase" in complaint(str(path))


def test_authors_site_is_asked_once(site, cache):
    requests = []

    def answer(request):
        requests.append(request.path)
        request.send_response(200)
        request.end_headers()
        request.wfile.write(zipped())

    text = dataclasses.replace(TEXT, url=site(answer))
    for _ in range(2):
        assert find(text=text) == str(cache / "enwik8")
    assert content(cache / "enwik8") == RAW and requests == ["/enwik8.zip"]


def refuse(request):
    request.send_error(404)


def cut_off(request):
    request.send_response(200)
    request.send_header("Content-Length", str(len(zipped())))
    request.end_headers()
    request.wfile.write(zipped()[:1000])


def answer_late(request):
    """With the right file, which then no longer counts."""
    time.sleep(3)
    request.send_response(200)
    request.end_headers()
    request.wfile.write(zipped())


@pytest.mark.parametrize(
    "answer", [None, refuse, answer_late, cut_off, b"<html>Log in first</html>", zipped(OTHER), RAW]
)
def test_package_stands_in_for_the_site(monkeypatch, site, package, cache, answer):
    fetched, fetch = [], enwik8_data.fetch_from_package
    monkeypatch.setattr(
        enwik8_data, "fetch_from_package", lambda text: fetched.append(fetch(text)) or fetched[-1]
    )
    package({"data/enwik8.gz": gzip.compress(RAW)})
    text = dataclasses.replace(TEXT, url=site(answer) if answer else NOWHERE, patience=1)
    assert [find(text=text)] == fetched == [str(cache / "enwik8")]
    assert content(cache / "enwik8") == RAW


@pytest.mark.parametrize(
    "files, received",
    [
        (
            None,
            "PyPI's mingru-pytorch==0.2.1: pip: ERROR: No matching distribution found for "
            "mingru-pytorch==0.2.1",
        ),
        ({}, "an archive without data/enwik8.gz"),
        ({"data/enwik8.gz": gzip.compress(OTHER)}, f"md5 {hashlib.md5(OTHER).hexdigest()}"),
        ({"data/enwik8.gz": gzip.compress(RAW)[:-1000]}, "Compressed file ended"),
        ({"data/enwik8.gz": RAW}, "Not a gzipped file"),
    ],
)
def test_without_any_source_both_reasons_are_told(package, cache, files, received):
    if files is not None:
        package(files)
    message = complaint()
    assert (
        f"Received: {NOWHERE}: <urlopen error [Errno 111] Connection refused>; PyPI's" in message
        and received in message
    )
    assert "pass --data PATH" in message and not os.listdir(cache)


def index_of(files, archive):
    """Answers as PyPI does: what files there are of a release, and each file. `archive` None: no
    such release.
    """

    def answer(request):
        is_listing = request.path == "/mingru-pytorch/0.2.1/json"
        address = f"http://{request.headers['Host']}/archive"
        listing = json.dumps(
            {"urls": [{"packagetype": kind, "url": address} for kind in files]}
        ).encode()
        found = archive is not None and (is_listing or request.path == "/archive")
        request.send_response(200 if found else 404)
        request.end_headers()
        request.wfile.write((listing if files else b"<html>") if is_listing else archive or b"")

    return answer


def without_pip(monkeypatch, site, files, archive):
    monkeypatch.setattr(enwik8_data, "has_pip", lambda: False)
    monkeypatch.delenv(
        "PIP_FIND_LINKS", raising=False
    )  # pip, if it were called, would find nothing
    address = site(index_of(files, archive))
    return dataclasses.replace(TEXT, index=address.rpartition("/")[0])


def test_an_environment_without_pip_has_the_package_from_the_index(
    monkeypatch, tmp_path, site, package, cache
):
    package({"data/enwik8.gz": gzip.compress(RAW)})
    archive = content(tmp_path / "index" / "mingru_pytorch-0.2.1.tar.gz")
    text = without_pip(monkeypatch, site, ["bdist_wheel", "sdist"], archive)
    assert find(text=text) == str(cache / "enwik8")
    assert content(cache / "enwik8") == RAW


@pytest.mark.parametrize(
    "files, archive, received",
    [
        (["sdist"], None, "HTTP Error 404"),
        ([], b"", "Expecting value"),
        (["bdist_wheel"], b"", "no source archive"),
        (["sdist"], b"no archive", "not a gzip file"),
    ],
)
def test_an_index_that_lacks_the_package_is_told(
    monkeypatch, site, cache, files, archive, received
):
    message = complaint(text=without_pip(monkeypatch, site, files, archive))
    assert "PyPI's mingru-pytorch==0.2.1: " in message and received in message
    assert f"Get the file elsewhere ({NOWHERE}) and pass --data PATH" in message
    assert not os.listdir(cache)


def run_program(text):
    """As a process of its own, with this text."""
    script = (
        "import sys; from late_phase_cli import enwik8_data as e, interrupt\n"
        "interrupt.listen()\n"
        f"try:\n    print(e.find(None, e.{text!r}))\n"
        "except KeyboardInterrupt:\n    sys.exit(interrupt.status())\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])},
    )


def test_two_processes_do_not_disturb_each_other(site, cache):
    both = threading.Barrier(2)  # both are fetching before either gets anything

    def answer(request):
        both.wait(timeout=30)
        request.send_response(200)
        request.end_headers()
        request.wfile.write(zipped())

    text = dataclasses.replace(TEXT, url=site(answer))
    programs = [run_program(text) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for (out, err), program in zip(
            pool.map(lambda p: p.communicate(timeout=60), programs), programs
        ):
            assert program.returncode == 0 and out == f"{cache}/enwik8\n", err
    assert content(cache / "enwik8") == RAW


def test_interrupt_leaves_nothing_behind(site, cache):
    fetching, end = threading.Event(), threading.Event()

    def answer(request):
        request.send_response(200)
        request.end_headers()
        request.wfile.write(zipped()[:1000])
        fetching.set()
        end.wait(timeout=30)

    program = run_program(dataclasses.replace(TEXT, url=site(answer)))
    assert fetching.wait(timeout=30)
    deadline = time.monotonic() + 30
    while not list(cache.glob("*/enwik8.zip")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=30)
    end.set()
    assert program.returncode == 130 and out == "" and "Traceback" not in err
    assert os.listdir(cache) == []
