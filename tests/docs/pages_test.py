"""The pages as a reader walks through them: links lead somewhere, groups and records are complete.

Needs neither MkDocs nor late_phase; the site itself is built by tests/docs/site_test.py.
"""

import glob
import os
import re

import pytest

from tools.develop import build_site

PAGES = build_site.pages(".")
# docs/api.md is generated from docstrings, whose lines are the source's.
WRAPPED = [page for page in PAGES if page != "docs/api.md"]
COLUMNS = 100


def read(path):
    with open(path) as file:
        return file.read()


def broken_links(folder, pages):
    """What is wrong with the links of pages below a folder."""
    faults = []
    for page in pages:
        for link in build_site.links(read(os.path.join(folder, page))):
            if build_site.is_external(link["target"]):
                continue
            path, anchor = build_site.resolved(page, link["target"])
            target = os.path.join(folder, path)
            if not os.path.exists(target):
                faults.append(f"{page}: {link['target']}: no such file")
            elif anchor and not (
                path.endswith(".md") and anchor in build_site.anchors(read(target))
            ):
                faults.append(f"{page}: {link['target']}: no heading of that name, or several")
    return faults


def test_links_lead_somewhere():
    templates = glob.glob(".github/**/*.md", recursive=True)
    assert len(PAGES) >= 20 and len(templates) >= 3
    assert broken_links(".", [*PAGES, *templates]) == []


def test_links_of_the_site_lead_somewhere(tmp_path):
    build_site.stage(tmp_path, ".")
    assert broken_links(tmp_path, PAGES.values()) == []
    assert "](tutorial.md)" in read(tmp_path / "index.md")
    assert "](LICENSE.txt)" in read(tmp_path / "index.md") and (tmp_path / "LICENSE.txt").exists()
    assert (
        "](index.md" not in read(tmp_path / "keras.md")
        and (tmp_path / "examples" / "keras_digits.py").exists()
    )


PAGE = """# Title

[a](other.md), [b](other.md#corrupted-images---corrupt), [c](#twice), [d](missing.md),
`[e](in code)`, [f](other.md#none), ![g](picture.png), [`h`](https://example.org/x)

```
[i](in-a-block.md)
```

## Twice

## Twice
"""


def test_faults_of_links_are_found(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "other.md").write_text("# Other\n\n## Corrupted images: `--corrupt`\n")
    targets = [link["target"] for link in build_site.links(PAGE)]
    assert targets == [
        "other.md",
        "other.md#corrupted-images---corrupt",
        "#twice",
        "missing.md",
        "other.md#none",
        "picture.png",
        "https://example.org/x",
    ]
    assert [fault.split(": ")[1] for fault in broken_links(tmp_path, ["page.md"])] == [
        "#twice",
        "missing.md",
        "other.md#none",
        "picture.png",
    ]


def test_a_page_that_links_nowhere_is_not_staged(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("# Title\n")
    (tmp_path / "docs" / "page.md").write_text("[a](missing.py)\n")
    with pytest.raises(
        build_site.BuildError, match=r"docs/page.md links to missing.py, which does not exist"
    ):
        build_site.stage(tmp_path / "site", tmp_path)


def navigation():
    """Group -> pages of the site's menu; "" is the front page."""
    groups, group = {}, ""
    for line in read(build_site.CONFIG).partition("\nnav:\n")[2].partition("\n\n")[0].splitlines():
        name, page = re.fullmatch(r" +- ([^:]+):(?: (\S+\.md))?", line).groups()
        if not page:
            group = name
        groups.setdefault(group, []).extend([page] if page else [])
    return groups


def test_menu_has_every_page_once():
    groups = navigation()
    assert [group for group in groups if group] == [
        "Start",
        "Guides",
        "Reproduction",
        "Reference",
        "Internals",
    ]
    assert sorted(sum(groups.values(), [])) == sorted(PAGES.values())


def test_readme_lists_the_pages_as_the_menu_does():
    listed = {}
    section = read("README.md").partition("## Documentation\n")[2]
    for group, text in re.findall(r"^- \*\*(\w+)\*\*: (.*?)(?=^- |^$)", section, re.M | re.S):
        listed[group] = [PAGES[link["target"]] for link in build_site.links(text)]
    assert listed == {group: pages for group, pages in navigation().items() if group}


@pytest.mark.parametrize("page", WRAPPED)
def test_lines_are_short(page):
    """But for code, tables, and what is generated."""
    text = re.sub(r"^<!-- table of .*?^<!-- end -->$", "", read(page), flags=re.M | re.S)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    long = [
        line
        for line in text.splitlines()
        if len(line) > COLUMNS and not line.startswith(("|", "    ", "![", "- [ ]"))
    ]
    assert [line for line in long if " " in line.strip("- ")] == []


@pytest.mark.parametrize("record", sorted(set(os.listdir("docs/results")) - {"README.md"}))
def test_every_record_is_named(record):
    """With what made it, when, and what it shows."""
    page = read("docs/results/README.md")
    rows = [
        line.split(" | ")
        for line in page.splitlines()
        if re.search(rf"\[{re.escape(record)}\]\({re.escape(record)}(/|\))", line)
    ]
    assert len(rows) == 1, f"docs/results/README.md has {len(rows)} rows for {record}"
    _, command, date, shows = rows[0]
    assert "`" in command or "trainings" in command
    assert re.fullmatch(r"\d+ \w+ 20\d\d", date) and len(shows) > 20


def test_every_named_record_exists():
    for link in build_site.links(read("docs/results/README.md")):
        if not link["target"].startswith("../"):
            assert os.path.exists(f"docs/results/{link['target']}"), link["target"]


def test_nothing_is_loaded_from_elsewhere():
    """The site works offline: with the reader's fonts, and no image or script of another host."""
    assert "font: false" in read(build_site.CONFIG) and "http" not in read(
        build_site.CONFIG
    ) + read(build_site.STYLE)
    for page in PAGES:
        images = [link["target"] for link in build_site.links(read(page)) if link["image"]]
        assert not [target for target in images if build_site.is_external(target)], page
        assert "<script" not in read(page) and "<img" not in read(page), page
