"""The site as MkDocs builds it: whole, searchable, and loading nothing from elsewhere.

Installs MkDocs, which takes the network, so it runs by name only:
tools/test //tests/docs:site_test
"""

import html.parser
import json
import os
import shutil

import pytest

from tools.develop import build_site


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build_site.main(["--out", str(out)])
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


def test_environment_is_made_once(site, cache, monkeypatch):
    (environment,) = os.listdir(cache / "late_phase")
    monkeypatch.setattr(build_site, "_run", None)
    assert build_site.python_with_mkdocs() == f"{cache}/late_phase/{environment}/bin/python"


def test_faults_leave_the_old_site(site, tmp_path):
    project = tmp_path / "project"
    for path in ["LICENSE", *build_site.pages(".")]:
        os.makedirs(os.path.dirname(project / path), exist_ok=True)
        shutil.copy(path, project / path)
    shutil.copytree("tools", project / "tools")
    shutil.copytree("docs", project / "docs", dirs_exist_ok=True)
    shutil.copytree("models", project / "models")
    with open(project / "docs" / "gpu.md", "a") as page:
        page.write("\n[lost](keras.md#no-such-heading)\n")
    before = (site / "index.html").read_text()
    with pytest.raises(
        build_site.BuildError, match="'gpu.md' contains a link 'keras.md#no-such-heading'"
    ):
        build_site.build(site, project)
    assert (site / "index.html").read_text() == before


def test_a_folder_with_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(SystemExit):
        build_site.main(["--out", str(tmp_path)])
    assert f"Received: {tmp_path}" in capsys.readouterr().err and (tmp_path / "mine").exists()
