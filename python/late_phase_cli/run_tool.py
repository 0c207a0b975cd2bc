"""Runs a Python program, python -m late_phase_cli.run_tool MODULE [ARGUMENT]..., so that Ctrl-C and SIGTERM end it tidily.

The programs it started are told to end, files in the making are removed, and nothing is printed: what started this says that it was
interrupted. The status is the shell's for that signal, 130 or 143. A second Ctrl-C ends it at once.
"""

import contextlib
import os
import runpy
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def children():
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                yield from map(int, file.read().split())
        except OSError:  # the thread has ended meanwhile
            pass


def end_on_signals():
    """The list that it returns has the signal that came, if one did."""
    came = []

    def stop(number, frame):
        if not came:
            came.append(number)
            for child in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            os._exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, stop)
    return came


def main():
    came = end_on_signals()
    module, sys.argv[:] = sys.argv[1], sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:  # whatever a program makes of being interrupted
        if came:
            sys.exit(128 + came[0])
        raise error


if __name__ == "__main__":
    main()
