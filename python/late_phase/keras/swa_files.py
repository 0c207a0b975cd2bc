"""SWA's files: the average after each of the last epochs with a sample, complete or not there."""

import os
import re

import numpy as np

from late_phase_cli import files

# A run that is killed after it writes the average of an epoch, but before its weights, repeats the
# epoch.
_KEPT = 2


class SampleFiles:
    """A folder with a file per epoch with samples, swa-EPOCH.npz, of which the newest are kept."""

    def __init__(self, folder):
        self._folder = os.fspath(folder)

    def epochs(self):
        """Of the files there are, in order."""
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        return sorted(
            int(match[1]) for match in map(re.compile(r"swa-(\d+)\.npz").fullmatch, names) if match
        )

    def write(self, epoch, samples, position, arrays):
        """Keeps the average of `samples` samples after `epoch`; the last was at `position`."""
        os.makedirs(self._folder, exist_ok=True)
        with files.replacing(self._path(epoch)) as aside, open(aside, "wb") as file:
            np.savez(
                file,
                samples=samples,
                position=position,
                **{f"weight_{i}": array for i, array in enumerate(arrays)},
            )
            file.flush()
            os.fsync(file.fileno())
        self.discard(self.epochs()[:-_KEPT])

    def position(self, epoch):
        """Of the last sample, in the units of SWA's frequency."""
        with np.load(self._path(epoch)) as content:
            # Files of 0.1.0 have none: all samples were taken at the end of an epoch.
            return int(content["position"]) if "position" in content else epoch + 1

    def read(self, epoch):
        """(samples, arrays)."""
        with np.load(self._path(epoch)) as content:
            return int(content["samples"]), [
                content[f"weight_{i}"]
                for i in range(sum(name.startswith("weight_") for name in content.files))
            ]

    def discard(self, epochs):
        for epoch in epochs:
            os.remove(self._path(epoch))

    def _path(self, epoch):
        return os.path.join(self._folder, f"swa-{epoch:06d}.npz")
