"""A part of gpu-check in a process of its own (late_phase/check/__main__.py), which may crash or
hang, as a faulty kernel can.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile

SILENCE = 900  # seconds; a new GPU may have to translate all kernels first
LAST_LINES = 20


def command(part, *arguments):
    return [sys.executable, "-P", "-m", "late_phase.check", part, *map(str, arguments)]


class Worker:
    """The running process.

    Attributes:
      problem: after the last message: how it ended, if not well.
      notes: what it printed besides, then.
    """

    def __init__(self, command, silence=SILENCE):
        self._command = command
        self._silence = silence
        self.problem = None
        self.notes = ""

    def messages(self):
        """What it says, line by line, until it ends."""
        with tempfile.TemporaryFile() as notes:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=notes
            )
            try:
                yield from self._read(process)
                if not self.problem:
                    self.problem = _ended_badly(process.wait())
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
                process.stdout.close()
                notes.seek(0)
                self.notes = notes.read().decode(errors="replace")

    def _read(self, process):
        unread = b""
        while True:
            if not select.select([process.stdout], [], [], self._silence)[0]:
                self.problem = f"did not answer within {self._silence} seconds"
                return
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            yield from map(json.loads, lines)

    def last_words(self):
        """The end of what it printed."""
        return self.notes.splitlines()[-LAST_LINES:]


def _ended_badly(status):
    if status == 0:
        return None
    return f"ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"
