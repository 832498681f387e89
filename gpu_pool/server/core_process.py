"""Starts engine-core processes and ends them.

Owns the command line, the private directory with pipes and settings, and signals; must not know
when a core is started again. Read next: `core_supervisor`, `gpu_pool.engine_core` (the child).
"""

import asyncio
import itertools
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gpu_pool.server.engine_client import CoreListener, EngineClient
from gpu_pool.settings import CoreSettings, encode_core_settings

_IDLE_THREADS: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait for others sleep instead of spinning; the library reads this when it loads.

Where cores are shared, spinning made a step of two threads eighteen times slower (331 to 18 ms).
"""
SHUTDOWN_S: Final = 5.0
"""How long a core may take to end by itself."""
MAX_SOCKET_PATH: Final = 100
"""Paths of Unix sockets end at 104 bytes on some systems."""


@dataclass(frozen=True, slots=True)
class CoreProcess:
    """One life of an engine core."""

    process: Process
    client: EngineClient
    files: tuple[Path, ...]

    async def stop(self) -> None:
        """Returns when the process is gone: asked first, killed if it does not listen."""
        if self.process.returncode is None:
            self.client.shut_down()
            try:
                await asyncio.wait_for(self.process.wait(), SHUTDOWN_S)
            except TimeoutError:
                await self.kill()

    async def kill(self) -> None:
        """Returns when the process is gone; it is not asked."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    def release(self) -> None:
        """Removes what a process that is gone leaves behind."""
        self.client.close()
        for path in self.files:
            path.unlink(missing_ok=True)


class CoreLauncher:
    """Starts cores inside one private directory."""

    def __init__(
        self, command: tuple[str, ...], directory: Path, environ: Mapping[str, str]
    ) -> None:
        """`command` is run with the path of a settings file as its last argument, in `environ`.

        Nobody but this user may enter `directory`.
        """
        self._command = command
        self._directory = directory
        self._environ = _IDLE_THREADS | dict(environ)
        self._numbers = itertools.count(1)

    async def launch(self, template: CoreSettings, listener: CoreListener) -> CoreProcess:
        """A core process that has just been started, with pipes of its own."""
        stem = self._directory / f"core-{next(self._numbers)}"
        inward, outward = stem.with_suffix(".in"), stem.with_suffix(".out")
        assert len(os.fsencode(outward)) < MAX_SOCKET_PATH, "the private directory is too deep"
        settings = msgspec.structs.replace(
            template,
            to_core_endpoint=f"ipc://{inward}",
            from_core_endpoint=f"ipc://{outward}",
            parent_pid=os.getpid(),
        )
        path = stem.with_suffix(".json")
        path.write_bytes(encode_core_settings(settings))
        client = EngineClient(settings.to_core_endpoint, settings.from_core_endpoint, listener)
        # A session of its own: Ctrl-C at a terminal reaches the node alone, which then drains.
        process = await asyncio.create_subprocess_exec(
            *self._command,
            str(path),
            stdin=DEVNULL,
            start_new_session=True,
            env=self._environ,
        )
        return CoreProcess(process, client, (inward, outward, path))
