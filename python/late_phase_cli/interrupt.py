"""Ctrl-C and SIGTERM in the driver.

The first one is acknowledged at once and passed on to whatever the driver has started. The driver's
own work is abandoned by a KeyboardInterrupt, and unfinished files are removed; a program that was
started ends by itself once it has saved its state (`patient`). The driver then ends with the
shell's status for the signal, 130 or 143. A second Ctrl-C ends everything at once; a second SIGTERM
does not, because whoever sends one may well send two.
"""

import contextlib
import os
import select
import signal
import threading
import time

from late_phase_cli import locations

SIGNALS = (signal.SIGINT, signal.SIGTERM)
came = []  # the first signal, once there was one
_patient = False
_acknowledgement = ""
_acknowledged = threading.Event()


def listen():
    """Works even if the signals are ignored on entry, as in the background of a shell script."""
    # Python's own handlers wait until the main thread returns from whatever it calls. The thread
    # that reads this pipe does not.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(heard,), daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, _on_signal)


def status():
    """The status to exit with after a signal that was acknowledged."""
    _acknowledged.wait(1)
    return 128 + came[0]


@contextlib.contextmanager
def patient(acknowledgement=""):
    """In here a signal is passed on and nothing is abandoned: the driver waits for what it has
    started. The text ends the acknowledgement.
    """
    with _set(True, acknowledgement):
        yield


@contextlib.contextmanager
def impatient():
    """Within `patient`: in here a signal is a KeyboardInterrupt again."""
    with _set(False, _acknowledgement):
        yield


@contextlib.contextmanager
def _set(patience, acknowledgement):
    global _patient, _acknowledgement
    before = _patient, _acknowledgement
    _patient, _acknowledgement = patience, acknowledgement
    try:
        yield
    finally:
        _patient, _acknowledgement = before


def children():
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found |= set(map(int, file.read().split()))
    return found


def tell(processes, number):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _on_signal(number, frame):
    """In the main thread."""
    first = not came
    came[:] = came or [number]
    if first and not _patient:
        raise KeyboardInterrupt


def _watch(heard):
    """In a thread of its own."""
    presses, told = 0, set()
    while True:
        # After a signal, children that were being started at that moment are told, too, but each
        # only once.
        if not _acknowledged.is_set() or select.select([heard], [], [], 0.2)[0]:
            numbers = [number for number in os.read(heard, 64) if number in SIGNALS]
            if numbers and not _acknowledged.is_set():
                clear = "\r\033[K" if os.isatty(2) else ""
                with contextlib.suppress(OSError):  # the reader may be gone
                    os.write(
                        2, f"{clear}{locations.command()}: interrupted{_acknowledgement}\n".encode()
                    )
                _acknowledged.set()
            presses += numbers.count(signal.SIGINT)
        if _acknowledged.is_set():
            others = children() - told
            tell(others, signal.SIGTERM)
            told |= others
        if presses > 1:
            time.sleep(0.5)  # time in which they may still print something
            tell(children(), signal.SIGKILL)
            os._exit(128 + signal.SIGINT)
