"""What is printed while runs are trained: lines on standard error and, on a terminal, a progress
line below them.
"""

import os
import sys
import time

REWRITE = 0.1  # seconds between two texts on a terminal
INTERVAL = 60  # and elsewhere, as in a log; another tenth of the work is reported at once


class Display:
    def __init__(self, stream=sys.stderr):
        self.stream, self.terminal = stream, stream.isatty()
        self._shown_at = 0 if self.terminal else time.monotonic()
        self._tenths, self._line = 0, ""

    def say(self, text):
        """A line that stays."""
        self._write(("\r\033[K" if self._line else "") + text + "\n" + self._line)

    def show(self, text, done):
        """The progress as text, and as the fraction of the work that is done, in [0, 1]."""
        now, tenths = time.monotonic(), int(done * 10 + 1e-6)
        if self.terminal:
            if now - self._shown_at < REWRITE:
                return
            columns = os.get_terminal_size(self.stream.fileno()).columns
            # A text that wraps cannot be rewritten in place.
            self._line = text[: columns - 1] if columns else text
            self._write(f"\r{self._line}\033[K")
        elif tenths > self._tenths or now - self._shown_at >= INTERVAL:
            self._write(text + "\n")
        else:
            return
        self._shown_at, self._tenths = now, max(tenths, self._tenths)

    def clear(self):
        if self._line:
            self._write("\r\033[K")
            self._line = ""

    def _write(self, text):
        self.stream.write(text)
        self.stream.flush()
