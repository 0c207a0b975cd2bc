"""A small disk that can be filled, or made read-only, while a program writes to it.

It is a tmpfs in a mount namespace of its own, which ends with the process that holds it: nothing is
left mounted, however the campaign ends. Made by root, or by whoever may have a user namespace.
"""

import contextlib
import os
import subprocess

# As root, or else as root of a namespace of one's own: how to make one, and how to enter it.
_WAYS = (
    (["unshare", "--mount"], ["--mount"]),
    (["unshare", "--map-root-user", "--mount"], ["--user", "--preserve-credentials", "--mount"]),
)
_MOUNT = 'mount -t tmpfs -o size="$2" late_phase "$1" && echo mounted && exec cat'


class NoDisk(Exception):
    """Neither way is allowed here."""


class Disk:
    """Mounted at `folder` for programs that are run through `enter`; to others it is `view`."""

    def __init__(self, folder, megabytes=16):
        os.makedirs(folder)
        self.folder = folder
        for make, way in _WAYS:
            self._holder = subprocess.Popen(
                [*make, "sh", "-c", _MOUNT, "sh", folder, f"{megabytes}m"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if self._holder.stdout.readline() == "mounted\n":
                self.enter = ("nsenter", "--target", str(self._holder.pid), *way, "--")
                break
            self.close()
        else:
            raise NoDisk
        self.view = f"/proc/{self._holder.pid}/root{folder}"
        self._filler = os.path.join(self.view, "filler")

    def close(self):
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait()

    def fill(self, left):
        """Until at most so many bytes are left."""
        with contextlib.suppress(OSError), open(self._filler, "wb") as file:
            free = os.statvfs(self.view)
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - left))

    def empty(self):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._filler)

    def allow_writing(self, allowed):
        options = f"remount,bind,{'rw' if allowed else 'ro'}"
        subprocess.run([*self.enter, "mount", "-o", options, self.folder], check=True)
