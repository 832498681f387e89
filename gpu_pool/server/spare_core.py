"""A core process that has everything but a model, so that the next start need not wait for Python.

Most of a small model's way from disk is a process that imports its libraries: seconds, against a
fraction of one for the weights. Owns the one spare process and its end; must not know models.
Read next: `core_process` (who takes it), `gpu_pool.core_runner` (its other end).
"""

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from gpu_pool.core_settings import PATH_FROM_STDIN

_KILLED_S: Final = 5.0
"""For a process to go that was killed; it holds nothing of a device yet."""
_DELAY_S: Final = 1.0
"""After a start, which is not to share its cores with the next spare's imports."""


class SpareCore:
    """At most one process that waits to be told what to serve."""

    def __init__(self, command: tuple[str, ...], delay_s: float = _DELAY_S) -> None:
        """No process yet."""
        self._command = command
        self._delay_s = delay_s
        self._process: Process | None = None
        self._environ: Mapping[str, str] = {}
        self._replacing: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The process that waits, if there is one."""
        return self._process.pid if self._process is not None else None

    async def begin(self, environ: Mapping[str, str]) -> None:
        """Starts one now; there is none yet, nor afterwards where the system has no room for it:
        whoever starts a core then says why, and may try again.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, PATH_FROM_STDIN, stdin=PIPE, start_new_session=True, env=environ
            )
        except OSError as error:  # no process, no file handle, no memory
            structlog.get_logger().warning("no spare core was started", reason=str(error))
        self._environ = environ

    async def take(self, environ: Mapping[str, str], settings_path: Path) -> Process | None:
        """A process that was told to serve what `settings_path` says; None when there is none."""
        process, self._process = self._process, None
        if process is None:
            return None
        if self._environ != environ or process.returncode is not None:
            await _end(process)
            return None
        assert process.stdin is not None
        process.stdin.write(os.fsencode(settings_path) + b"\n")
        with contextlib.suppress(ConnectionError):  # it is gone: whoever waits for it will see that
            await process.stdin.drain()
        process.stdin.close()
        return process

    def replace_soon(self, environ: Mapping[str, str]) -> None:
        """Starts another a little later, unless there is one."""
        if self._process is None and (self._replacing is None or self._replacing.done()):
            self._replacing = asyncio.create_task(self._replace(environ))

    async def close(self) -> None:
        """Returns when no process is left, or the one that is left does not go."""
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _replace(self, environ: Mapping[str, str]) -> None:
        """Starts one."""
        await asyncio.sleep(self._delay_s)
        await self.begin(environ)


async def wait_gone(process: Process, wait_s: float) -> bool:
    """True as soon as the process is gone, within so much time."""
    try:
        await asyncio.wait_for(process.wait(), wait_s)
    except TimeoutError:
        return False
    return True


async def _end(process: Process) -> None:
    """Returns when the process is gone, or the kernel keeps it for longer than a moment."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        process.kill()
    if not await wait_gone(process, _KILLED_S):
        structlog.get_logger().error("a spare core was killed and does not go", pid=process.pid)
