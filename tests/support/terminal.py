"""Programs on a terminal of their own, for tests of what Ctrl-C and other signals do to them."""

import contextlib
import glob
import os
import pathlib
import pty
import select
import signal
import sys
import time
import uuid

CTRL_C = b"\x03"
PATIENCE = 100  # seconds; only a busy machine needs that long


class Terminal:
    """The program, started as by a shell, with all its output; it has ended at the end of a `with`,
    whatever happens.
    """

    def __init__(self, command, environment, folder=None):
        self.mark = uuid.uuid4().hex
        self.said, self.status = "", None
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(folder or ".")
            os.execvpe(
                command[0],
                [str(part) for part in command],
                {**environment, "TERMINAL_MARK": self.mark},
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.status is None:
            os.waitpid(self.pid, 0)
        os.close(self.file)

    def read(self, seconds):
        """Reads what is printed within a time, if anything; False at the end."""
        if not select.select([self.file], [], [], seconds)[0]:
            return True
        try:
            text = os.read(self.file, 65536)
        except OSError:  # how Linux reports that no process has the terminal open any more
            return False
        self.said += text.decode(errors="replace")
        return bool(text)

    def wait_for(self, condition, seconds=PATIENCE):
        """Waits until the condition, a text or a function, holds. Returns the seconds it took."""
        begin = time.monotonic()
        holds = condition if callable(condition) else lambda: condition in self.said
        while not holds():
            assert time.monotonic() - begin < seconds, self.said
            if not self.read(0.01):
                assert holds(), self.said
        return time.monotonic() - begin

    def press(self, key=CTRL_C):
        os.write(self.file, key)

    def end(self, seconds=PATIENCE):
        """Waits for the program's end. Returns its exit status as in a shell."""
        begin = time.monotonic()
        while self.status is None:
            assert time.monotonic() - begin < seconds, self.said
            self.read(0.01)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code
        while self.read(0) and select.select([self.file], [], [], 0)[0]:
            pass
        return self.status

    def processes(self):
        """All processes that the program started, whatever their parents are now."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.mark.encode() in file.read():
                        found.append(int(pid))
        return found

    def assert_alone(self):
        """Nothing that was started is left. The last processes may still be ending."""
        begin = time.monotonic()
        while left := self.processes():
            assert time.monotonic() - begin < PATIENCE, [
                open(f"/proc/{pid}/cmdline").read() for pid in left
            ]
            time.sleep(0.01)


class Project:
    """The real tools/latephase in a folder of its own, around which a test puts stand-ins. Nothing
    is set up or built.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        tools = ("tools/latephase", "tools/setup", "tools/requirements.txt")
        releases = glob.glob("tools/tensorflow/*.txt")
        for name in (*tools, *releases, *glob.glob("python/late_phase_cli/*.*")):
            self.write(name, pathlib.Path(name).read_text())
        with open(folder / "tools/setup", "a") as setup:
            setup.write(f"\nset_up() {{ python={sys.executable}; }}\n")
        self.write("bin/bazel", "#!/bin/sh\n")
        self.write("RUN/config.toml", 'program = "cifar"\n')
        (folder / "tmp").mkdir()
        (folder / "kernels").mkdir()
        (folder / "models" / "presets").mkdir(parents=True)
        (folder / "bazel-bin").mkdir()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def terminal(self, *arguments):
        environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": f"{self.folder}/tmp",
        }
        return Terminal([f"{self.folder}/tools/latephase", *arguments], environment, self.folder)

    def logs(self):
        """Whether a stand-in runs whose output goes to a file."""
        return any("stand-in runs" in path.read_text() for path in (self.folder / "tmp").iterdir())
