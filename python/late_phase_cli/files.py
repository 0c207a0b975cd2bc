"""Files that are complete or do not exist."""

import contextlib
import json
import os


@contextlib.contextmanager
def replacing(path):
    """The name of a temporary file, which replaces `path` at the end; on an error it is removed."""
    aside = f"{path}.part{os.getpid()}"
    try:
        yield aside
        os.replace(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(aside)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, value):
    with replacing(path) as aside, open(aside, "w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
