"""Builds the documentation as a site with search: tools/latephase docs --out DIR

The pages are README.md, CONTRIBUTING.md, CHANGELOG.md and those of docs/. They are copied to a
temporary folder together with the files that they link to, with links adapted, and built by MkDocs
(tools/develop/mkdocs.yml), which fails if a link leads nowhere. MkDocs is installed on first use
(tools/requirements-docs.txt), into the cache and an environment of its own.
"""

import argparse
import glob
import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile

from late_phase_cli import files, locations

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIG, STYLE = "tools/develop/mkdocs.yml", "tools/develop/site.css"
REQUIREMENTS = "tools/requirements-docs.txt"

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.M)


class BuildError(Exception):
    """The pages cannot become a site; the message says why."""


def pages(project=PROJECT):
    """Path in the project -> path in the site, of every page."""
    found = {
        "README.md": "index.md",
        "CONTRIBUTING.md": "contributing.md",
        "CHANGELOG.md": "changelog.md",
    }
    for path in sorted(glob.glob("docs/**/*.md", root_dir=project, recursive=True)):
        found[path] = posixpath.relpath(path, "docs")
    return found


def _prose(page):
    """The page's text with blanks in place of code, so that positions stay the same."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])

    page = _FENCE.sub(blank, page)
    # A link's text may be code, but a link inside code is not a link.
    return _CODE.sub(lambda match: blank(match) if "](" in match[0] else match[0], page)


def links(page):
    """The matches of all links and images of a page's text, with groups image, text and target."""
    return list(_LINK.finditer(_prose(page)))


def anchors(page):
    """The anchors of this page: its headings, as GitHub and the site name them."""
    names = []
    for heading in _HEADING.findall(_FENCE.sub("", page)):
        heading = _LINK.sub(lambda match: match["text"], heading).replace("`", "")
        names.append(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    # A heading that occurs twice is numbered differently in the two places.
    return {name for name in names if names.count(name) == 1}


def is_external(target):
    return re.match(r"[a-z]+:", target) is not None


def resolved(page, target):
    """(path in the project, anchor) of a link on the page of that path."""
    path, _, anchor = target.partition("#")
    return (
        posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    ), anchor


def _in_site(path):
    """Where a linked file that is not a page goes."""
    path = path.removeprefix("docs/")
    return path if "." in posixpath.basename(path) else path + ".txt"  # a browser shows LICENSE.txt


def stage(folder, project=PROJECT):
    """Lays out in `folder` the pages of the site and what they link to.

    Raises:
      BuildError: a page links to what does not exist.
    """
    found = pages(project)
    for source, destination in found.items():
        with open(os.path.join(project, source)) as file:
            text = file.read()
        for link in reversed(links(text)):
            if is_external(link["target"]):
                continue
            path, anchor = resolved(source, link["target"])
            if os.path.isdir(os.path.join(project, path)):
                # A site has no folder listings: keep the words only.
                new = link["text"]
            else:
                target = found.get(path) or _in_site(path)
                if path not in found:
                    if not os.path.isfile(os.path.join(project, path)):
                        raise BuildError(
                            f"{source} links to {link['target']}, which does not exist"
                        )
                    copy = os.path.join(folder, target)
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    shutil.copyfile(os.path.join(project, path), copy)
                new = (
                    posixpath.relpath(target, posixpath.dirname(destination) or ".")
                    if path != source
                    else ""
                )
                new = f"{link['image']}[{link['text']}]({new}{'#' + anchor if anchor else ''})"
            text = text[: link.start()] + new + text[link.end() :]
        os.makedirs(os.path.dirname(os.path.join(folder, destination)), exist_ok=True)
        with open(os.path.join(folder, destination), "w") as file:
            file.write(text)
    shutil.copyfile(os.path.join(project, STYLE), os.path.join(folder, os.path.basename(STYLE)))


def _run(what, command, **options):
    """Runs a command; what it prints is shown only if it fails."""
    run = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if run.returncode:
        raise BuildError(f"{what} failed:\n{run.stdout.strip()}")


def python_with_mkdocs(project=PROJECT):
    """The Python of an environment with exactly the pinned packages, created if necessary."""
    with open(os.path.join(project, REQUIREMENTS), "rb") as file:
        pinned = hashlib.sha256(sys.version.encode() + file.read()).hexdigest()[:12]
    environment = os.path.join(locations.cache_folder(), f"docs-{pinned}")
    if not os.path.isdir(environment):
        print("Installing MkDocs (some seconds) ...", file=sys.stderr, flush=True)
        with files.making_folder(environment) as made:
            _run("Creating a Python environment", [sys.executable, "-m", "venv", made])
            pip = [os.path.join(made, "bin", "python"), "-m", "pip", "--disable-pip-version-check"]
            exactly = ["install", "--no-input", "--no-deps", "--only-binary=:all:"]
            requirements = os.path.join(project, REQUIREMENTS)
            _run("Installing MkDocs", [*pip, *exactly, "-r", requirements])
            _run("Checking the Python environment", [*pip, "check"])
    return os.path.join(environment, "bin", "python")


def build(out, project=PROJECT):
    """Builds the site and replaces the folder `out` by it.

    Raises:
      BuildError: the pages have errors, or MkDocs is not available. `out` is left unchanged.
    """
    with tempfile.TemporaryDirectory() as folder:
        stage(os.path.join(folder, "pages"), project)
        config = shutil.copy(os.path.join(project, CONFIG), folder)
        site = os.path.join(folder, "site")
        # Not --quiet, which would hide warnings from --strict too.
        command = [python_with_mkdocs(project), "-m", "mkdocs", "build", "--strict"]
        quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement
        _run("MkDocs", [*command, "--config-file", config, "--site-dir", site], env=quiet)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(site, out)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tools/latephase docs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="folder for the site: new, or that of an earlier site",
    )
    out = parser.parse_args(arguments).out
    if (
        os.path.isdir(out)
        and os.listdir(out)
        and not os.path.exists(os.path.join(out, "sitemap.xml"))
    ):
        parser.error(f"--out must be an empty folder, or that of an earlier site. Received: {out}")
    try:
        build(out)
    except BuildError as error:
        raise SystemExit(f"tools/latephase docs: {error}") from error
    print(os.path.join(out, "index.html"))


if __name__ == "__main__":
    main()
