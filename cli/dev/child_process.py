"""A child of `hearth dev`: started with a log file, stopped without leaving anything behind.

Owns one process and its group; must not know what it serves. Read next: `cli.dev.supervisor`.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import cli

_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 16 * 1024


class ChildProcess:
    """One process in a group of its own, so that its own children end with it.

    Ctrl-C at the terminal reaches only `hearth dev`, which decides the order of the end.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """`log` takes both output streams of `command`, which is not a shell's."""
        self.name = name
        self.log = log
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process; a former log is kept once, under the suffix `.previous`."""
        if self.log.exists():
            self.log.replace(self.log.with_name(self.log.name + ".previous"))
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.log.parent,  # never a folder whose content could pass for our packages
                env=create_child_environ(os.environ),
            )

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        return None if self._process is None else self._process.pid

    def poll(self) -> int | None:
        """The exit status once the process has ended (negative: the signal), else None."""
        return None if self._process is None else self._process.poll()

    def request_stop(self) -> None:
        """Asks the process to end; it may take the time to finish what it holds."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """True once the process has ended, False when it has not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._process is not None and self._process.poll() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def sweep(self) -> None:
        """Kills what is left of the group, collects the process and closes its input."""
        if self._process is None:
            return
        # Usually nobody is left; macOS answers EPERM for a group of zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def read_log_tail(self, num_lines: int = 20) -> str:
        """The last lines of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-num_lines:])


def create_hearth_command(*arguments: str) -> tuple[str, ...]:
    """The command that runs `hearth ARGUMENTS` and ends when its standard input does.

    -P: a folder `gateway/` where the person happens to stand must not become the package.
    """
    return (sys.executable, "-P", "-m", "cli", *arguments, "--stop-with-parent")


def create_child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` in which this very copy of Hearth is importable, installed or a plain checkout."""
    root = Path(cli.__file__).resolve().parent.parent
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    result = {**environ, "PYTHONUNBUFFERED": "1"}
    if root not in installed:
        rest = environ.get("PYTHONPATH")
        result["PYTHONPATH"] = f"{root}{os.pathsep}{rest}" if rest else str(root)
    return result
