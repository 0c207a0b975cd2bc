"""SWA's files: the average after each of the last samples, complete or not there at all."""

import os
import re

import numpy as np

# A run may be killed after the average of an epoch is written and before its weights are, and then repeats that epoch.
_KEPT = 2


class SampleFiles:
    """A folder with a file per sample, swa-EPOCH.npz, of which the newest are kept."""

    def __init__(self, folder):
        self._folder = os.fspath(folder)

    def epochs(self):
        """Of the samples there are, in order."""
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        return sorted(
            int(match[1]) for match in map(re.compile(r"swa-(\d+)\.npz").fullmatch, names) if match
        )

    def write(self, epoch, samples, averages):
        """Keeps the average of `samples` samples, the last of which is `epoch`'s."""
        os.makedirs(self._folder, exist_ok=True)
        path = self._path(epoch)
        with open(path + ".part", "wb") as file:
            np.savez(
                file,
                samples=samples,
                **{f"weight_{i}": average for i, average in enumerate(averages)},
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".part", path)
        self.discard(self.epochs()[:-_KEPT])

    def read(self, epoch):
        """(samples, averages)."""
        with np.load(self._path(epoch)) as content:
            return int(content["samples"]), [
                content[f"weight_{i}"] for i in range(len(content.files) - 1)
            ]

    def discard(self, epochs):
        for epoch in epochs:
            os.remove(self._path(epoch))

    def _path(self, epoch):
        return os.path.join(self._folder, f"swa-{epoch:06d}.npz")
