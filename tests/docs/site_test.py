"""The site as MkDocs builds it: whole, searchable, and loading nothing from elsewhere.

Makes an environment with MkDocs, which takes the network, so it runs by name only:
tools/test //tests/docs:site_test
"""

import html.parser
import json
import os
import subprocess
import sys
import venv

import pytest

from tools.develop import build_site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    environment, out = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("site")
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]
    subprocess.run([*install, "-r", "tools/requirements-docs.txt"], check=True)
    subprocess.run([python, "-P", "tools/develop/build_site.py", "--out", out], check=True)
    return out


class Resources(html.parser.HTMLParser):
    """What a browser loads with a page, and its title."""

    def __init__(self, text):
        super().__init__()
        self.loaded = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(attributes.get("src"))
        elif tag == "link" and "canonical" not in attributes.get("rel", ""):
            self.loaded.append(attributes.get("href"))


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site):
    for page in build_site.pages(".").values():
        path = page.removesuffix("README.md").removesuffix("index.md").removesuffix(".md")
        text = (site / path / "index.html").read_text()
        loaded = [address for address in Resources(text).loaded if address]
        assert loaded and not [address for address in loaded if "//" in address], page
        for address in loaded:
            assert os.path.exists(os.path.normpath(site / path / address.partition("?")[0])), (
                f"{page}: {address}"
            )


def test_search_finds_a_heading_of_each_page(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"", "keras/", "results/", "api/", "contributing/", "changelog/"} <= found
    assert any("spills" in entry["text"] for entry in index["docs"])


def test_anchors_are_those_of_github(site):
    assert 'id="corrupted-images---corrupt"' in (site / "evaluation" / "index.html").read_text()


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "mine").write_text("precious")
    command = [sys.executable, "-P", "tools/develop/build_site.py", "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (
        run.returncode == 2
        and f"Received: {tmp_path}" in run.stderr
        and (tmp_path / "mine").exists()
    )
