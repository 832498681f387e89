"""A gateway as its operator starts it: a process of its own, a settings file, real signals.

Stands in `RunningGateway` where a gateway of the test's own process would: it has the same ports.
"""

import asyncio
import json
import os
import re
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp

from tenancy.audit.heads import HeadFile
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_key_ring
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.gateway.running_gateway import NodeAddress, RunningGateway, create_settings_table

START_TIMEOUT_S = 150
"""Far above the second that it takes: machines can be very busy."""


class GatewayProcess:
    """One settings file and the process that runs on it, if one does."""

    def __init__(
        self, folder: Path, database_url: str, nodes: Iterable[NodeAddress], **sections: Any
    ) -> None:
        """Everything but the database lies in `folder`; a key ring there is kept."""
        limits = {"shutdown_grace_s": 1, **sections.pop("limits", {})}
        table = create_settings_table(folder, database_url, nodes, limits=limits, **sections)
        self.config = folder / "gateway.toml"
        self.config.write_text(format_toml(table))
        self.program: tuple[str, ...] = ("cli", "gateway")
        """The module that is run, and its arguments but for `--config`."""
        self.log = b""
        """What the process that ended last has said once it served."""
        self.port = 0
        self.admin_port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[bytes] | None = None

    async def start(self) -> None:
        """Returns once it listens."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *self.program, "--config", str(self.config)),
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"HEARTH_GATEWAY__LOG__FORMAT": "json"},
        )
        assert process.stderr is not None
        self.port, self.admin_port = await read_ports(process)
        self._reader = asyncio.create_task(process.stderr.read())  # its pipe must never be full

    async def kill(self) -> None:
        """SIGKILL; returns when nothing is left of it."""
        await self._end(is_killed=True)

    async def stop(self) -> None:
        """SIGTERM, and the time that it takes."""
        await self._end(is_killed=False)

    def signal(self, number: int) -> None:
        """Sends one that it outlives."""
        assert self._process is not None
        self._process.send_signal(number)

    async def _end(self, *, is_killed: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill() if is_killed else process.terminate()
        await asyncio.wait_for(process.wait(), START_TIMEOUT_S)
        if self._reader is not None:
            self.log = await self._reader


async def read_ports(process: asyncio.subprocess.Process) -> tuple[int, int]:
    """The ports that the process tells once it serves."""
    assert process.stderr is not None
    told: list[str] = []
    while True:
        line = (await asyncio.wait_for(process.stderr.readline(), START_TIMEOUT_S)).decode()
        assert line, "\n".join(("the gateway has ended", *told))
        told.append(line)
        found = re.search(r'"port": (\d+), "admin_port": (\d+)', line)
        if found:
            return int(found[1]), int(found[2])


def format_toml(table: dict[str, Any]) -> str:
    """Tables of plain values, and lists of them: what settings files are made of."""

    def format_values(values: dict[str, Any]) -> list[str]:
        return [f"{key} = {json.dumps(value)}" for key, value in values.items()]

    plain = {key: value for key, value in table.items() if not isinstance(value, dict | list)}
    lines = format_values(plain)
    for name, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{name}]", *format_values(value)]
        elif isinstance(value, list):
            for entry in value:
                lines += [f"[[{name}]]", *format_values(entry)]
    return "\n".join(lines) + "\n"


def open_tenancy_of(folder: Path, database_url: str) -> ActingTenancy:
    """The tenancy of a process whose key ring lies in `folder`, as the command line opens it."""
    ring = load_key_ring(folder / "key_ring.json")
    heads = HeadFile(folder / "audit_heads.jsonl")
    return ActingTenancy(create_tenancy(database_url, ring, time.time, secrets.token_bytes, heads))


@asynccontextmanager
async def run_processes(
    processes: list[GatewayProcess], tenancy: ActingTenancy
) -> AsyncGenerator[list[RunningGateway]]:
    """The processes, ready to serve, with one tenant; killed after the block if they still run."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        running = [RunningGateway(cast(Any, one), tenancy, session) for one in processes]
        try:
            await asyncio.gather(*(one.start() for one in processes))
            tenant = await running[0].add_tenant()
            for one in running[1:]:
                one.tenants.append(tenant)
            await asyncio.gather(*(one.wait_until_ready() for one in running))
            yield running
        finally:
            await asyncio.gather(*(one.kill() for one in processes))
            await tenancy.close()
