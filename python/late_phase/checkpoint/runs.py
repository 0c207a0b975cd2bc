"""Finds a training run and its configuration, by the rules of tools/program/runs.cc."""

import pathlib
import tomllib

# In the order in which they are trained; the last one found counts.
_MODELS = ("base", "rank1", "late-phase")


class _Config(dict):
    """The values of a config.toml."""

    def __init__(self, path):
        if not path.is_file():
            raise FileNotFoundError(
                "`run` must be the folder of a run, with config.toml and checkpoint/. "
                f"Received: {path.parent}"
            )
        self._path = path
        try:
            super().__init__(tomllib.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(
                f"config.toml must be as the program wrote it. Received: {path}: {error}"
            ) from error

    def __missing__(self, name):
        raise ValueError(f"config.toml must have `{name}`. Received: {self._path}, which does not")


def find_run(folder):
    """The folder with the checkpoints of one model, and its config.toml as a dict.

    Args:
      folder: of a run; if it was of several seeds or models, the first seed's last model is taken.
    """
    folder = pathlib.Path(folder)
    config = _Config(folder / "config.toml")
    if config["seeds"] > 1:
        folder = folder / f"seed-{config['seed']}"
    if config["model"] == "all":
        there = [folder / model for model in _MODELS if (folder / model / "checkpoint").is_dir()]
        folder = there[-1] if there else folder
    return folder, _Config(folder / "config.toml")
