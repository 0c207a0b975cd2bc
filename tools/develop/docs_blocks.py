#!/usr/bin/env python3
"""Code blocks of the documentation that repeat a file.

A fenced block under `<!-- same as PATH -->` must equal that file, one under `<!-- output of PATH -->` what the program prints. A page that
takes a program apart has `same as PATH#PART`, what follows the line `# [PART]` in the file, and several outputs, which are one in all.
`tools/develop/docs_blocks.py --write PAGE...` copies the files into the pages; tests/docs/docs_test.py checks both kinds.
"""

import re
import sys

_BLOCK = re.compile(r"<!-- (same as|output of) (\S+) -->\n```(\w*)\n(.*?)```\n", re.S)


def blocks(page):
    """(kind, path, content) of every marked block of a page's text."""
    return [(kind, path, content) for kind, path, _, content in _BLOCK.findall(page)]


def refreshed(page, read):
    """The page with its "same as" blocks taken from `read(path)`."""

    def replace(match):
        kind, path, language, _ = match.groups()
        return match[0] if kind != "same as" else f"<!-- same as {path} -->\n```{language}\n{read(path)}```\n"

    return _BLOCK.sub(replace, page)


def with_output(page, path, output):
    """The page with `output` in its block "output of `path`"."""

    def replace(match):
        kind, marked, language, _ = match.groups()
        return f"<!-- output of {path} -->\n```{language}\n{output}```\n" if (kind, marked) == ("output of", path) else match[0]

    return _BLOCK.sub(replace, page)


def parts(program):
    """Name -> text of the parts of a program's text, which begin with a line `# [NAME]`; "" is what comes before the first."""
    texts = re.split(r"^# \[(\w+)\]\n", program, flags=re.M)
    return {"": texts[0], **{name: text.strip("\n") + "\n" for name, text in zip(texts[1::2], texts[2::2])}}


def read(path):
    """The text of PATH, or of PATH#PART."""
    name, _, part = path.partition("#")
    with open(name) as file:
        text = file.read()
    return parts(text)[part] if part else text


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "--write":
        raise SystemExit(__doc__)
    for name in sys.argv[2:]:
        text = refreshed(read(name), read)
        with open(name, "w") as file:
            file.write(text)
