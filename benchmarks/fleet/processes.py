"""The fleet's processes: started at their sites, signalled, waited for, ended.

Owns process ids and log files; must not know what the processes serve. Read next:
`benchmarks.fleet.fleet`.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import aiohttp

LONGEST_WAIT_S = 180.0
"""Far above what a start takes: machines can be busy."""
_LOOK_S = 0.05


class FleetError(Exception):
    """The fleet did not do what it must do; the message says what."""


class Account(TypedDict, total=False):
    """As whom a program runs, in the words of `Popen`; empty: as who starts it."""

    user: str
    group: str
    extra_groups: list[str]


@dataclass
class Member:
    """One program of the fleet, through all of its lives."""

    name: str
    site: str
    command: list[str]
    log: Path
    health_url: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    stop_signal: int = signal.SIGTERM
    """What ends it in good order."""
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Starts it; `wait_ready` says when it serves."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | self.environ,
                **self.account,
            )

    def send(self, number: int) -> None:
        """Sends a signal to the program; its own children end with it."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def stop(self) -> None:
        """Its own signal, and all the time that it takes. Raises: `FleetError` if it ends badly."""
        self.send(self.stop_signal)
        status = await asyncio.wait_for(self._wait(), LONGEST_WAIT_S)
        if status:
            raise FleetError(f"{self.name} ended with status {status}: see {self.log}")

    async def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            await self._wait()

    async def wait_ready(self, session: aiohttp.ClientSession) -> None:
        """Returns once its health page says yes."""

        async def is_ready() -> bool:
            process = self.process
            if process is not None and process.poll() is not None:
                raise FleetError(f"{self.name} has ended: {read_tail(self.log)}")
            return await is_healthy(session, self.health_url)

        await wait_until(is_ready, f"{self.name} to be ready")

    async def _wait(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait)


async def is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    """True when a page answers 200 soon."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=1.0)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def wait_until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Returns once `condition` holds. Raises: `FleetError`, naming `what` was awaited."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + LONGEST_WAIT_S
    while not await condition():
        if loop.time() > end_s:
            raise FleetError(f"waited in vain for {what}")
        await asyncio.sleep(_LOOK_S)


def read_tail(log: Path) -> str:
    """The end of a log."""
    return log.read_bytes()[-1500:].decode(errors="replace")
