"""Ctrl-C and SIGTERM in the driver.

The first is acknowledged at once and passed on to whatever the driver has started. Work of the
driver's own is given up by a KeyboardInterrupt, and files in the making are removed; a program that
was started ends by itself, having saved what it has to save (`patient`). The driver then ends with
the shell's status for the signal, 130 or 143. A second Ctrl-C ends everything at once; a second
SIGTERM does not, because those who send it may do so twice.
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
    """Also where the signals are ignored on entry, as they are in the background of a shell script."""
    # Python's own handlers wait until the main thread comes back from whatever it calls. The thread
    # that reads this pipe does not.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(heard,), daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, _on_signal)


def status():
    """To exit with, once a signal came and was acknowledged."""
    _acknowledged.wait(1)
    return 128 + came[0]


@contextlib.contextmanager
def patient(acknowledgement=""):
    """In here a signal is passed on, and nothing is given up: what was started is waited for. The
    text ends the acknowledgement.
    """
    with _set(True, acknowledgement):
        yield


@contextlib.contextmanager
def impatient():
    """Inside of `patient`: in here a signal is a KeyboardInterrupt again."""
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
        # Once a signal came, also those children are told which were being started at that moment;
        # but each is told once.
        if not _acknowledged.is_set() or select.select([heard], [], [], 0.2)[0]:
            numbers = [number for number in os.read(heard, 64) if number in SIGNALS]
            if numbers and not _acknowledged.is_set():
                clear = "\r\033[K" if os.isatty(2) else ""
                with contextlib.suppress(OSError):  # nobody may be listening any more
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
            time.sleep(0.5)  # in which they may still say something
            tell(children(), signal.SIGKILL)
            os._exit(128 + signal.SIGINT)
