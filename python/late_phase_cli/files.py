"""Files and folders that are complete or do not exist."""

import contextlib
import json
import os
import shutil


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


@contextlib.contextmanager
def making_folder(path):
    """The name of a temporary folder, which is renamed to `path` at the end; on an error, or if
    another process was faster, it is removed.
    """
    aside = f"{path}.part{os.getpid()}"
    os.makedirs(aside)
    try:
        yield aside
        try:
            os.rename(aside, path)
        except OSError:
            if not os.path.isdir(path):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, value):
    with replacing(path) as aside, open(aside, "w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
