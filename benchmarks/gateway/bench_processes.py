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
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from contracts.pricing import TokenRates
from contracts.quotas import QuotaLimits, QuotaScope
from migrations.upgrade import upgrade_database_async
from tenancy.actors import Actor, ActorKind
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import create_key_ring_file
from tenancy.interfaces import Permission

MEASURED_CORE, OTHER_CORE = 0, 1
QUICK, PACED = "@hearth/fake/quick", "@hearth/fake/paced"
TICK_S, NUM_EVENTS = 0.025, 40


@dataclass(frozen=True)
class Subject:
    """Something that is measured: where it listens, and which process does the work."""

    provider: str
    port: int
    pid: int
    path: str
    """Where chat completions are."""
    upstream_pids: Sequence[int]
    """What stands behind it, whose CPU time is told apart."""
    api_token: str = "-"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@asynccontextmanager
async def start_gateway(
    folder: Path, limits_url: str | None = None, num_quick: int = 1
) -> AsyncGenerator[Subject]:
    """The real gateway before fake nodes: a SQLite tenancy of one account, limits, prices.

    The limits are so high that no request meets them; all that counts them runs. `limits_url` has
    them counted in Valkey or Redis. `num_quick` nodes have the model that answers at once, among
    which each request is placed where there are several; one has the other.
    """
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    database = f"sqlite+aiosqlite:///{folder / 'hearth.db'}"
    await upgrade_database_async(database)
    account_id, api_token = await _create_account(database, folder)
    (folder / "pair.key").write_text(secrets.token_hex(32))
    (folder / "pair.key").chmod(0o600)
    port, admin_port = choose_port(), choose_port()
    nodes = {f"quick-{number}": choose_port() for number in range(num_quick)}
    paced_port = choose_port()
    config = folder / "gateway.toml"
    every = nodes | {"paced": paced_port}
    config.write_text(_format_config(folder, database, port, admin_port, every, limits_url))
    with ExitStack() as stack:
        started = [
            _start_node(folder, name, node_port, QUICK, 0.0, 1, " word" * 40)
            for name, node_port in nodes.items()
        ]
        started.append(_start_node(folder, "paced", paced_port, PACED, TICK_S, NUM_EVENTS, " word"))
        upstream_pids = [stack.enter_context(node).pid for node in started]
        command = python("cli", "gateway", "--config", str(config))
        process = stack.enter_context(start(MEASURED_CORE, command, port=port))
        await asyncio.sleep(1.5)  # all links, and all first reports
        path = f"/client/v4/accounts/{account_id}/ai/v1/chat/completions"
        provider = "hearth" if limits_url is None else "hearth, limits in Redis"
        provider += f", {num_quick} nodes" if num_quick > 1 else ""
        yield Subject(provider, port, process.pid, path, upstream_pids, api_token)


@contextmanager
def start_upstream() -> Generator[tuple[int, int]]:
    """Port and process id of what answers over HTTP, in OpenAI's form."""
    port = choose_port()
    command = python("benchmarks.gateway.http_upstream", str(port), str(TICK_S), str(NUM_EVENTS))
    with start(OTHER_CORE, command, port=port) as process:
        yield port, process.pid


@contextmanager
def start_relay() -> Generator[Subject]:
    """The bare relay before an HTTP upstream."""
    port = choose_port()
    with start_upstream() as (upstream_port, upstream_pid):
        url = f"http://127.0.0.1:{upstream_port}"
        command = python("benchmarks.gateway.relay", str(port), url)
        with start(MEASURED_CORE, command, port=port) as process:
            yield Subject("bare relay", port, process.pid, "/v1/chat/completions", [upstream_pid])


def python(module: str, *arguments: str) -> list[str]:
    """The command line of a module of ours."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def start(
    core: int,
    command: Sequence[str],
    *,
    port: int,
    environment: Mapping[str, str] | None = None,
    log: int | None = None,
    patience_s: float = 20,
) -> Generator["subprocess.Popen[bytes]"]:
    """A process on `core`, once it listens on `port`; ended after the block.

    `log` is the file descriptor that gets what it prints; by default that is ours.
    """
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    try:
        pin(process.pid, core)
        deadline = time.monotonic() + patience_s
        while not _is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} did not start")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def pin(pid: int, core: int) -> None:
    """Keeps a process on one core, where the machine has that many."""
    if core in os.sched_getaffinity(0):
        os.sched_setaffinity(pid, {core})


def read_cpu_s(*pids: int) -> float:
    """User and system time so far of processes and of their children, in seconds."""
    ticks = 0
    waiting = list(pids)
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            threads = list((folder / "task").iterdir())
            children = [(thread / "children").read_text().split() for thread in threads]
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
        waiting += [int(child) for group in children for child in group]
    return ticks / os.sysconf("SC_CLK_TCK")


def choose_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _create_account(database: str, folder: Path) -> tuple[str, str]:
    """An account's id and API token, with limits, and prices for both models."""
    key_ring = create_key_ring_file(folder / "key_ring.json", secrets.token_bytes)
    tenancy = create_tenancy(database, key_ring, time.time, secrets.token_bytes)
    administration = tenancy.act_as(Actor(ActorKind.COMMAND_LINE, "bench"))
    account = await administration.create_account("bench")
    issued = await administration.create_api_token(
        account.account_id, "bench", frozenset({Permission.WORKERS_AI_READ})
    )
    limits = QuotaLimits(
        requests_per_min=10**8,
        tokens_per_min=10**9,
        concurrent_streams=10**5,
        spend_nano_per_month=10**18,
    )
    await administration.set_quota(QuotaScope(account.account_id), limits)
    for model in (QUICK, PACED):
        await administration.set_price(model, TokenRates(100, 10, 500, 500))
    await tenancy.close()
    return account.account_id, issued.value.reveal()


def _start_node(
    folder: Path, name: str, port: int, model: str, tick_s: float, num_events: int, text: str
) -> "AbstractContextManager[subprocess.Popen[bytes]]":
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
    return start(OTHER_CORE, python("benchmarks.fake_node", *words), port=port)


def _format_config(
    folder: Path,
    database: str,
    port: int,
    admin_port: int,
    ports_of_nodes: Mapping[str, int],
    limits_url: str | None,
) -> str:
    """The gateway's TOML."""
    limits = "" if limits_url is None else f'[shared_limits]\nurl = "{limits_url}"\n'
    nodes = "".join(
        f'[[nodes]]\nnode_id = "{name}"\nurl = "ws://127.0.0.1:{node_port}"\n'
        f'key_file = "{folder / "pair.key"}"\n'
        for name, node_port in ports_of_nodes.items()
    )
    return (
        'gateway_id = "bench-gateway"\n'
        f"[listen]\nport = {port}\n[admin]\nport = {admin_port}\n"
        f'[database]\nurl = "{database}"\n[key_ring]\nfile = "{folder / "key_ring.json"}"\n'
        f'[journal]\nfolder = "{folder / "journal"}"\n'
        f'[log]\nlevel = "error"\n{limits}{nodes}'
    )
