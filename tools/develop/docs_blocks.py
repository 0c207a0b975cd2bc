"""Blocks of the documentation that repeat a file, a program's output or a recorded run.

    <!-- same as PATH -->      a fenced block that equals the file, or with PATH#PART what follows
                               the line `# [PART]` in it
    <!-- output of PATH -->    a fenced block with what a program prints, or a benchmark printed
                               when it was recorded. A page that takes a program apart has several
                               such blocks, which together are its output
    <!-- table of PATH -->     the Markdown that a recorded run gives, up to `<!-- end -->`

`tools/latephase python -m tools.develop.docs_blocks --write [PAGE...]` fills in files and recorded
runs (tools/develop/docs_records.py), by default on all pages; programs' output is pasted by hand.
tests/docs/docs_test.py checks all of them.
"""

import glob
import re
import sys

_BLOCK = re.compile(
    r"<!-- (?P<kind>same as|output of) (?P<path>\S+) -->\n```(?P<language>\w*)\n(?P<text>.*?)```\n"
    # A block ends before the next one begins, even if it is still empty.
    r"|<!-- table of (?P<table>\S+) -->\n\n(?:(?P<rows>(?:(?!<!-- ).)*?)\n)?<!-- end -->\n",
    re.S,
)


def pages():
    """The paths of all pages that may have blocks."""
    return ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/*.md"))]


def _parsed(match):
    """(kind, path, content) of a match."""
    if match["table"]:
        return "table of", match["table"], match["rows"] or ""
    return match["kind"], match["path"], match["text"]


def blocks(page):
    """(kind, path, content) of every marked block of a page's text."""
    return [_parsed(match) for match in _BLOCK.finditer(page)]


def refreshed(page, content):
    """The page with `content(kind, path)` in its blocks; None leaves a block unchanged."""

    def replace(match):
        kind, path, _ = _parsed(match)
        text = content(kind, path)
        if text is None:
            return match[0]
        if kind == "table of":
            return f"<!-- {kind} {path} -->\n\n{text}\n<!-- end -->\n"
        return f"<!-- {kind} {path} -->\n```{match['language']}\n{text}```\n"

    return _BLOCK.sub(replace, page)


def parts(program):
    """Name -> text of a program's parts, which begin with a line `# [NAME]`; "" is the first."""
    texts = re.split(r"^# \[(\w+)\]\n", program, flags=re.M)
    named = zip(texts[1::2], texts[2::2])
    return {"": texts[0], **{name: text.strip("\n") + "\n" for name, text in named}}


def read(path):
    """The text of PATH, or of PATH#PART."""
    name, _, part = path.partition("#")
    with open(name) as file:
        text = file.read()
    return parts(text)[part] if part else text


def main(arguments):
    from tools.develop import docs_records

    if arguments[:1] != ["--write"]:
        raise SystemExit(__doc__)

    def content(kind, path):
        return read(path) if kind == "same as" else docs_records.text(kind, path)

    for name in arguments[1:] or pages():
        page = read(name)
        if (text := refreshed(page, content)) != page:
            with open(name, "w") as file:
                file.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
