"""Starts engine-core processes and ends them.

Owns the command line, the private directory with pipes and settings, and signals; must not know
when a core is started again. Read next: `core_supervisor`, `gpu_pool.engine_core` (the child).
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import stat
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from contracts.settings import SettingsError
from gpu_pool.core_settings import CoreSettings, encode_core_settings
from gpu_pool.cpu_bounds import find_bounds
from gpu_pool.kernels.cpu.levels import read_cpu_flags
from gpu_pool.model_settings import EngineSettings
from gpu_pool.row_invariance import ROW_INVARIANT_ENVIRON
from gpu_pool.server.engine_client import CoreListener, EngineClient
from gpu_pool.server.spare_core import SpareCore, wait_gone

_WAITING_THREADS: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}
"""Threads that wait for others look twenty thousand times and then sleep: half a millisecond on
Zen 5, more where a CPU pauses longer between two looks. The OpenMP library reads this when it
loads, and those that do not know the count sleep at once.

Sleeping at once, a step of 0.6 B parameters took 1.5 times as long on two idle cores: a thread is
woken some two hundred times a step. Spinning for milliseconds, as the library does by itself, made
a step eighteen times slower where others wanted the cores (331 to 18 ms).
"""
_LARGE_PAGES: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""What a core takes in large pieces comes in large pages where the system gives them on request: a
gigabyte is there in a fifth of the time, and prompts were computed 1.13 times as fast. Other C
libraries do not know the variable.
"""
_LOOPBACK: Final = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Ranks of a model are on one machine and talk to nobody else."""
SHUTDOWN_S: Final = 5.0
"""How long a core may take to end by itself."""
KILLED_S: Final = 10.0
"""How long a process may take to go that was killed: the kernel gives back all that it held, and
may keep for as long as it likes one that waits for a device."""
MAX_SOCKET_PATH: Final = 100
"""Paths of Unix sockets end at 104 bytes on some systems."""
_PREFIX: Final = "hearth-node-"
_LOCK: Final = "owner.lock"
"""Whoever holds the lock on this file owns the directory; the system drops it with the process."""


_BOUNDED_CACHES: Final = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",  # of the layer between torch and oneDNN
}
"""Both keep what they made for each number of rows; at their own 1024 that is 600 MB of a core
after an hour of prompts of every length, and making one anew takes a few milliseconds."""


def create_core_environ(
    environ: Mapping[str, str], engine: EngineSettings, num_ranks: int = 1
) -> dict[str, str]:
    """What a core finds in its environment; what `environ` says itself stands."""
    invariant = ROW_INVARIANT_ENVIRON if engine.row_invariant else {}
    meeting = _LOOPBACK if num_ranks > 1 and sys.platform == "linux" else {}
    waiting = {} if _WAITING_THREADS.keys() & environ.keys() else _WAITING_THREADS
    # They are at least as narrow as what is invariant.
    bounds = find_bounds(engine.cpu_level, read_cpu_flags())
    own = {**waiting, **_LARGE_PAGES, **_BOUNDED_CACHES, **invariant, **bounds, **meeting}
    return {**own, **environ}


@dataclass(frozen=True, slots=True)
class CoreProcess:
    """One life of an engine core."""

    process: Process
    client: EngineClient
    files: tuple[Path, ...]

    @property
    def pid(self) -> int:
        """The process, for whoever watches it from outside."""
        return self.process.pid

    async def stop(self) -> bool:
        """As `kill`, but the process is asked first, and killed if it does not listen."""
        if self.process.returncode is None:
            self.client.shut_down()
        return await wait_gone(self.process, SHUTDOWN_S) or await self.kill()

    async def kill(self) -> bool:
        """True when the process is gone, False when it is still there `KILLED_S` later.

        It is not asked. What it has started goes with it: a rank that hangs before it has arranged
        to end with its core, too.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return await wait_gone(self.process, KILLED_S)

    def release(self) -> None:
        """Removes what a process that is gone leaves behind."""
        _release(self.client, self.files)


def _release(client: EngineClient, files: Iterable[Path]) -> None:
    """Closes the pipes and removes the files of a process that is gone or has never been."""
    client.close()
    for path in files:
        path.unlink(missing_ok=True)


class CoreLauncher:
    """Starts cores inside one private directory."""

    def __init__(
        self,
        command: tuple[str, ...],
        directory: Path,
        environ: Mapping[str, str],
        *,
        keeps_spare: bool = False,
    ) -> None:
        """`command` is run with the path of a settings file as its last argument, in `environ`.

        Nobody but this user may enter `directory`. `keeps_spare` has a process ready for every
        start after the first.

        Raises: `SettingsError` where pipes would have paths that are too long for the system.
        """
        if len(os.fsencode(directory / "core-1.out")) >= MAX_SOCKET_PATH:
            raise SettingsError(
                f"The temporary folder {directory.parent} has too long a name for pipes inside it. "
                "Name a shorter one in TMPDIR."
            )
        self._spare: Final = SpareCore(command)
        self._keeps_spare = keeps_spare
        self._command = command
        self._directory = directory
        self._environ = environ
        self._numbers = itertools.count(1)

    async def begin(self, engine: EngineSettings, num_ranks: int) -> None:
        """Starts a process that the first core of such a model takes: it reads its libraries while
        the node reads tokenizers.
        """
        await self._spare.begin(create_core_environ(self._environ, engine, num_ranks))

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
            rendezvous=stem.with_suffix(".ranks"),
        )
        path = stem.with_suffix(".json")
        path.write_bytes(encode_core_settings(settings))
        files = (inward, outward, path, settings.rendezvous)
        environ = create_core_environ(self._environ, template.engine, template.model.num_ranks)
        client = EngineClient(settings.to_core_endpoint, settings.from_core_endpoint, listener)
        try:
            process = await self._start(path, environ)
        except BaseException:  # no process, or nobody wants it any more
            _release(client, files)
            raise
        return CoreProcess(process, client, files)

    async def close(self) -> None:
        """Nothing is kept for further starts."""
        await self._spare.close()

    async def _start(self, path: Path, environ: Mapping[str, str]) -> Process:
        """A process that serves what the settings at `path` say."""
        process = await self._spare.take(environ, path)
        if self._keeps_spare:
            self._spare.replace_soon(environ)
        if process is not None:
            return process
        # A session of its own: Ctrl-C at a terminal reaches the node alone, which then drains.
        return await asyncio.create_subprocess_exec(
            *self._command, str(path), stdin=DEVNULL, start_new_session=True, env=environ
        )


@contextmanager
def open_private_directory(parent: Path | None = None) -> Generator[Path]:
    """A new directory for pipes and settings that only this user may enter; gone after the block.

    A node that is killed cannot tidy up after itself, so that each start removes what dead ones of
    the same user have left. `parent` is the system's temporary folder unless it is given.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as name:
        directory = Path(name)
        unfinished = directory / f"{_LOCK}.new"
        with unfinished.open("wb") as file:
            # Locked before it has its name: nobody ever finds it free while we live.
            fcntl.flock(file, fcntl.LOCK_EX)
            unfinished.rename(directory / _LOCK)
            yield directory


def _remove_abandoned(parent: Path) -> None:
    """Removes the directories of nodes that are dead."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it went meanwhile, or is not ours
            status = directory.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                _remove_if_abandoned(directory)


def _remove_if_abandoned(directory: Path) -> None:
    """Removes `directory` if its lock is free. Raises: `OSError` while somebody holds it."""
    with (directory / _LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)
        structlog.get_logger().info("what a dead node left was removed", directory=str(directory))
