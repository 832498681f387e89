"""The processes of the benchmark: started, pinned, waited for, and ended.

What is measured has core 0 to itself as far as the machine allows; all else shares core 1.
Read next: `bench_overhead`.
"""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.ids import AccountId
from migrations.upgrade import upgrade_database_async
from tenancy.administration import Actor, ActorKind
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import create_key_ring_file
from tenancy.interfaces import Permission

MEASURED_CORE, OTHER_CORE = 0, 1
QUICK, PACED = "@hearth/fake/quick", "@hearth/fake/paced"
TICK_S, NUM_EVENTS = 0.025, 40


@dataclass(frozen=True)
class Subject:
    """Something that is measured: where it listens and which process it is."""

    provider: str
    port: int
    pid: int
    account_id: AccountId
    api_token: str


@asynccontextmanager
async def start_gateway(folder: Path) -> AsyncGenerator[Subject]:
    """The real gateway before two fake nodes, with a SQLite tenancy of one account."""
    database = f"sqlite+aiosqlite:///{folder / 'hearth.db'}"
    await upgrade_database_async(database)
    key_ring = create_key_ring_file(folder / "key_ring.json", secrets.token_bytes)
    tenancy = create_tenancy(database, key_ring, time.time, secrets.token_bytes)
    administration = tenancy.act_as(Actor(ActorKind.COMMAND_LINE, "bench"))
    account = await administration.create_account("bench")
    issued = await administration.create_api_token(
        account.account_id, "bench", frozenset({Permission.WORKERS_AI_READ})
    )
    await tenancy.close()
    (folder / "pair.key").write_text(secrets.token_hex(32))
    (folder / "pair.key").chmod(0o600)
    ports = [choose_port() for _ in range(4)]
    config = folder / "gateway.toml"
    config.write_text(_format_config(folder, database, ports))
    with ExitStack() as stack:
        stack.enter_context(_start_node(folder, "quick", ports[2], QUICK, 0.0, 1, " word" * 40))
        stack.enter_context(
            _start_node(folder, "paced", ports[3], PACED, TICK_S, NUM_EVENTS, " word")
        )
        process = stack.enter_context(
            start(MEASURED_CORE, "cli", "gateway", "--config", str(config), port=ports[0])
        )
        await asyncio.sleep(1.5)  # both links, and both first reports
        yield Subject("hearth", ports[0], process.pid, account.account_id, issued.value.reveal())


@contextmanager
def start_relay() -> Generator[Subject]:
    """The bare relay before an HTTP upstream."""
    upstream_port, port = choose_port(), choose_port()
    upstream = ("benchmarks.gateway.http_upstream", str(upstream_port), str(TICK_S))
    with (
        start(OTHER_CORE, *upstream, str(NUM_EVENTS), port=upstream_port),
        start(
            MEASURED_CORE,
            "benchmarks.gateway.relay",
            str(port),
            f"http://127.0.0.1:{upstream_port}",
            port=port,
        ) as process,
    ):
        yield Subject("bare relay", port, process.pid, AccountId("0" * 32), "-")


@contextmanager
def start(
    core: int, module: str, *arguments: str, port: int
) -> Generator["subprocess.Popen[bytes]"]:
    """A process of ours on `core`, once it listens on `port`; ended after the block."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        pin(process.pid, core)
        deadline = time.monotonic() + 20
        while not _is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{module} did not start")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def pin(pid: int, core: int) -> None:
    """Keeps a process on one core, where the machine has that many."""
    if core in os.sched_getaffinity(0):
        os.sched_setaffinity(pid, {core})


def read_cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def choose_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _start_node(
    folder: Path, name: str, port: int, model: str, tick_s: float, num_events: int, text: str
) -> Generator[None]:
    options = {
        "--port": port,
        "--key-file": folder / "pair.key",
        "--gateway-id": "bench-gateway",
        "--node-id": name,
        "--model": model,
        "--tick-s": tick_s,
        "--num-events": num_events,
        "--text": text,
    }
    words = [str(word) for pair in options.items() for word in pair]
    with start(OTHER_CORE, "benchmarks.fake_node", *words, port=port):
        yield


def _format_config(folder: Path, database: str, ports: list[int]) -> str:
    """The gateway's TOML."""
    nodes = "".join(
        f'[[nodes]]\nnode_id = "{name}"\nurl = "ws://127.0.0.1:{port}"\n'
        f'key_file = "{folder / "pair.key"}"\n'
        for name, port in (("quick", ports[2]), ("paced", ports[3]))
    )
    return (
        'gateway_id = "bench-gateway"\n'
        f"[listen]\nport = {ports[0]}\n[admin]\nport = {ports[1]}\n"
        f'[database]\nurl = "{database}"\n[key_ring]\nfile = "{folder / "key_ring.json"}"\n'
        f'[log]\nlevel = "error"\n{nodes}'
    )
