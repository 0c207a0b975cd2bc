"""The C++ program as a child of the driver, and the driver's end of their conversation;
tools/program/driver.h describes it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from late_phase_cli import interrupt, locations
from late_phase_cli.errors import UserError


def environment():
    """The environment in which the program is always started."""
    variables = {**os.environ, **locations.libraries()}
    variables["LATE_PHASE_COMMAND"] = locations.command()
    variables["LATE_PHASE_PRESETS"] = locations.presets()
    variables.setdefault("LATE_PHASE_DATA", os.path.join(locations.cache_folder(), "data"))
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # On processors without AVX-512 TensorFlow turns its oneDNN kernels off, although with them
    # convolutions take a third of the time. It reads this variable before the program begins.
    variables.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    return variables


class Program:
    """The running program. To be used in interrupt.patient(): it ends by itself after a signal."""

    def __init__(self, arguments, **options):
        """Options are those of subprocess.Popen."""
        self.connection, theirs = socket.socketpair()
        self._unread = b""
        variables = {
            **environment(),
            **options.pop("env", {}),
            "LATE_PHASE_DRIVER": str(theirs.fileno()),
        }
        descriptors = [theirs.fileno(), *options.pop("pass_fds", ())]
        with theirs:
            self.process = subprocess.Popen(
                [locations.program(), *arguments], env=variables, pass_fds=descriptors, **options
            )
        if interrupt.came:  # the signal may have arrived before there was a child to tell
            self.process.send_signal(signal.SIGTERM)

    def receive(self):
        """The next messages; None once the program has ended. Questions are answered here."""
        try:
            data = self.connection.recv(65536)
        except ConnectionResetError:  # it ended without reading an answer
            data = b""
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "needs" in message:
                self._answer(message)
        return [message for message in messages if "needs" not in message]

    def _answer(self, need):
        # Signals reach the main thread: only there can a search be abandoned.
        in_main = threading.current_thread() is threading.main_thread()
        try:
            with interrupt.impatient() if in_main else contextlib.nullcontext():
                if interrupt.came:
                    return  # the program has been told, too
                answer = find(need)
        except KeyboardInterrupt:
            return
        with contextlib.suppress(BrokenPipeError):
            self.connection.sendall(json.dumps(answer).encode() + b"\n")

    def wait(self):
        """Its exit status as in a shell, once it has ended."""
        self.connection.close()
        code = self.process.wait()
        return code if code >= 0 else 128 - code


_lock = threading.Lock()
_found = {}  # question -> answer: several runs ask for the same data


def find(need):
    """The answer to a question from the program."""
    key = json.dumps(need)
    with _lock:
        if key not in _found:
            try:
                _found[key] = {"path": str(_FINDERS[need["needs"]](need))}
            except (UserError, OSError) as error:
                _found[key] = {"error": str(error)}
        return _found[key]


def _find_enwik8(need):
    from late_phase_cli import enwik8_data

    return enwik8_data.find(need["data"])


def _find_corruptions(need):
    from late_phase_cli import corruptions

    data = need["data"] or environment()["LATE_PHASE_DATA"]
    return corruptions.generated(
        need["run"], data, os.path.join(locations.cache_folder(), "corruptions"), need["images"]
    )


_FINDERS = {"enwik8": _find_enwik8, "corruptions": _find_corruptions}


def run(arguments, saves=False):
    """Runs the program to its end; its output is the driver's. Returns its status and what it
    reported.

    After a signal the driver ends too. A program that `saves` its state has then done all it had to
    do if its status is 0.
    """
    messages = []
    # TensorFlow's libraries print notes while they are being loaded. Those go to a file; the
    # program takes the terminal back when it begins (tools/program/main.cc).
    with interrupt.patient(), tempfile.TemporaryFile() as notes:
        terminal = os.dup(2)
        try:
            program = Program(
                arguments,
                stderr=notes,
                pass_fds=[terminal],
                env={"LATE_PHASE_STDERR": str(terminal)},
            )
        finally:
            os.close(terminal)
        while (received := program.receive()) is not None:
            messages += received
        status = program.wait()
        killed = program.process.returncode < 0 and not interrupt.came
        if killed or status in (126, 127):  # or it did not even start
            notes.seek(0)
            sys.stderr.write(notes.read().decode(errors="replace"))
    if interrupt.came:
        interrupted = interrupt.status()
        raise SystemExit(0 if saves and status == 0 else interrupted)
    return status, messages
