"""The process: started from a file, stopped by a signal, without cutting anybody short."""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from contracts.usage import Outcome
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_key_ring
from tenancy.interfaces import Permission
from tests.fixtures.acting_tenancy import TESTER, open_tenancy
from tests.gateway.gateway_process import read_ports
from tests.gateway.running_gateway import wait_until, wait_until_async, write_settings
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

BODY = {"prompt": "Hi", "stream": True}


@asynccontextmanager
async def run_process(
    folder: Path, template: Path, node: ScriptedNode, grace_s: int, notice_s: float = 0
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int, int]]:
    """A gateway as `hearth gateway --config FILE` starts it, and its two ports."""
    database = folder / "hearth.db"
    shutil.copyfile(template, database)
    write_settings(folder, database, [node])
    config = folder / "gateway.toml"
    config.write_text(
        f"""
[listen]
port = 0
[admin]
port = 0
[database]
url = "sqlite+aiosqlite:///{database}"
[key_ring]
file = "{folder / "key_ring.json"}"
[limits]
shutdown_grace_s = {grace_s}
shutdown_notice_s = {notice_s}
[journal]
folder = "{folder / "journal"}"
[[nodes]]
node_id = "{node.node_id}"
url = "{node.url}"
key_file = "{folder / f"{node.node_id}.key"}"
"""
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "gateway", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"HEARTH_GATEWAY__LOG__FORMAT": "json"},
    )
    try:
        yield process, *await read_ports(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_for_status(session: aiohttp.ClientSession, port: int, status: int) -> None:
    """Returns once the readiness page of a port answers so."""

    async def has_status() -> bool:
        async with session.get(f"http://127.0.0.1:{port}/health/ready") as response:
            return response.status == status

    await wait_until_async(has_status)


async def is_refused(port: int) -> bool:
    """True when nothing listens there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def format_url(port: int, account_id: str) -> str:
    """Where the model is run."""
    return f"http://127.0.0.1:{port}/client/v4/accounts/{account_id}/ai/run/{MODEL}"


async def create_token(folder: Path) -> tuple[str, str]:
    """An account and a token, made while the gateway runs, as `hearth tokens create` does."""
    tenancy = create_tenancy(
        f"sqlite+aiosqlite:///{folder / 'hearth.db'}",
        load_key_ring(folder / "key_ring.json"),
        time.time,
        secrets.token_bytes,
    )
    administration = tenancy.act_as(TESTER)
    account = await administration.create_account("tests")
    issued = await administration.create_api_token(
        account.account_id, "tests", frozenset({Permission.WORKERS_AI_READ})
    )
    await tenancy.close()
    return account.account_id, issued.value.reveal()


async def read_charges(folder: Path) -> list[tuple[Outcome, int, int, bool]]:
    """What the ledger has of the one account: outcome, prompt and generated tokens, and whether
    they cost anything."""
    ring = load_key_ring(folder / "key_ring.json")
    tenancy = open_tenancy(folder / "hearth.db", ring)
    (account,) = await tenancy.list_accounts()
    records = await tenancy.list_usage_records(account.account_id, int(time.time() // 86_400))
    await tenancy.close()
    return [
        (one.outcome, one.tokens.num_uncached, one.tokens.num_output, one.cost_nano > 0)
        for one in records
    ]


async def test_a_running_stream_is_finished_before_the_process_ends(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    release = asyncio.Event()

    async def script(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hel", (1,)))
        await release.wait()
        await stream.put(Delta("lo", (2,)))
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 2)))

    node.script = script
    async with run_process(tmp_path, database_template, node, 20) as (process, port, admin_port):
        account_id, token = await create_token(tmp_path)
        headers = {"authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            await wait_for_status(session, port, 200)
            async with session.post(format_url(port, account_id), json=BODY) as response:
                await response.content.readuntil(b"Hel")
                process.send_signal(signal.SIGTERM)
                await wait_for_status(session, admin_port, 503)
                await wait_until_async(lambda: is_refused(port))
                release.set()
                rest = await response.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 20) == 0


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_what_outlasts_the_grace_is_aborted_and_told_so(
    tmp_path: Path, database_template: Path, node: ScriptedNode, is_streamed: bool
) -> None:
    async def script(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hel", (1,)))
        await stream.confirm_abort()

    node.script = script
    async with run_process(tmp_path, database_template, node, 1) as (process, port, _):
        account_id, token = await create_token(tmp_path)
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session:
            await wait_for_status(session, port, 200)
            body = BODY | {"stream": is_streamed}
            asked = asyncio.create_task(session.post(format_url(port, account_id), json=body))
            await wait_until(lambda: bool(node.streams))
            if is_streamed:
                await (await asked).content.readuntil(b"Hel")
            process.send_signal(signal.SIGINT)
            async with await asked as response:
                rest = await response.content.read()
        assert response.status == (200 if is_streamed else 503)
        assert b"This gateway is stopping" in rest
        assert b"[DONE]" not in rest
        await wait_until(node.streams[0].aborted.is_set)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    (charged,) = await read_charges(tmp_path)
    assert charged == (Outcome.FAILED, 7, 1, is_streamed)  # an answer that nobody saw is free


async def test_a_port_stays_open_for_as_long_as_balancers_take_to_look_elsewhere(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async with run_process(tmp_path, database_template, node, 1, notice_s=3600) as running:
        process, port, _ = running
        account_id, token = await create_token(tmp_path)
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session:
            await wait_for_status(session, port, 200)
            process.send_signal(signal.SIGTERM)
            await wait_for_status(session, port, 503)
            async with session.post(format_url(port, account_id), json={"prompt": "Hi"}) as asked:
                assert asked.status == 200


async def test_a_mistake_in_the_settings_is_named_and_nothing_starts(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("[limits]\nmax_boddy = 1\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "gateway", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    assert process.returncode != 0
    assert b"max_boddy" in error
