"""SIGKILL of a gateway in mid-upload, on a real PostgreSQL, and how much memory an upload takes."""

import asyncio
import contextlib
import re
from collections.abc import Generator
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import URL, make_url, text

from migrations.upgrade import upgrade_database
from tests.fixtures.fault_proxy import FaultProxy
from tests.gateway.cloudflare_client import ALL
from tests.gateway.finetune_client import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    ask,
    begin_upload,
    complete,
    create,
    encode_form,
    upload,
)
from tests.gateway.finetunes.adapter_files import describe_pair, format_config, format_weights
from tests.gateway.gateway_process import GatewayProcess, open_tenancy_of, run_processes
from tests.gateway.raw_http import connect, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode
from tests.gateway.test_finetune_uploads import count_pieces
from tests.tenancy.postgres_server import create_database, is_postgres_expected, postgres_server

__all__ = ["postgres_server"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not is_postgres_expected(), reason="PostgreSQL is not installed"),
]
MIB = 2**20
SETTINGS = {"piece_timeout_s": 3.0, "sweep_s": 0.3}


@pytest.fixture
def database_url(postgres_server: str) -> Generator[str]:
    """A database of this test's own."""
    with create_database(postgres_server) as url:
        upgrade_database(url)
        yield url


def make_large(num_bytes: int) -> bytes:
    """A sound file of about this size."""
    width = num_bytes // (2 * 8 * 4)
    return format_weights(describe_pair(rank=8, width=width), 2 * 8 * 4 * width)


async def is_clean(gateway: RunningGateway, num_pieces: int) -> bool:
    return await count_pieces(gateway) == (num_pieces, 0)


async def test_a_gateway_killed_in_mid_upload_leaves_nothing_that_counts(
    tmp_path: Path, database_url: str, node: ScriptedNode
) -> None:
    node.max_adapter_rank = 16
    process = GatewayProcess(tmp_path, database_url, [node], finetunes=SETTINGS)
    data = make_large(5 * MIB)
    async with run_processes([process], open_tenancy_of(tmp_path, database_url)) as (gateway,):
        admin = await gateway.add_tenant(permissions=ALL)
        await create(gateway, admin)
        done = await upload(gateway, admin, "mine", CONFIG_FILE, format_config())
        assert done.status == 200
        async with connect(gateway) as (reader, writer):
            await begin_upload(gateway, writer, admin, "mine", data, 3 * MIB + 1000)

            async def has_pieces() -> bool:
                return await count_pieces(gateway) == (3, 1)

            await wait_until_async(has_pieces, 30)
            await process.kill()
            assert await reader.read() == b""
        assert await count_pieces(gateway) == (3, 1)  # the control: it was in the middle
        await process.start()
        await gateway.wait_until_ready()
        shown = (await ask(gateway, admin, "GET", "/mine")).json["result"]
        assert (shown["ready"], shown["num_bytes"]) == (False, None)
        body = {"prompt": "Hi", "lora": "mine"}
        assert (await gateway.run(body, tenant=admin)).code == 3039
        # Until its lease ends nobody else may begin; then it is as if it had never been.

        async def is_taken() -> bool:
            reply = await upload(gateway, admin, "mine", WEIGHTS_FILE, data)
            assert reply.status in (200, 409), reply.body
            return reply.status == 200

        await wait_until_async(is_taken, 60)
        await wait_until_async(lambda: is_clean(gateway, -(-len(data) // MIB)), 60)
        assert (await gateway.run(body, tenant=admin)).status == 200


async def test_a_gateway_killed_at_any_moment_of_an_upload_leaves_all_of_it_or_none(
    tmp_path: Path, database_url: str, node: ScriptedNode
) -> None:
    """The kill comes ever later, past the end."""
    node.max_adapter_rank = 16
    process = GatewayProcess(tmp_path, database_url, [node], finetunes=SETTINGS)
    data = make_large(4 * MIB)
    outcomes: list[bool] = []
    async with run_processes([process], open_tenancy_of(tmp_path, database_url)) as (gateway,):
        admin = await gateway.add_tenant(permissions=ALL)
        for number, delay_s in enumerate((0.0, 0.02, 0.04, 0.08, 0.15, 2.0)):
            name = f"n{number}"
            await create(gateway, admin, name)
            sent = asyncio.ensure_future(upload(gateway, admin, name, WEIGHTS_FILE, data))
            await asyncio.sleep(delay_s)
            await process.kill()
            is_answered = False
            with contextlib.suppress(aiohttp.ClientError):
                is_answered = (await sent).status == 200
            await process.start()
            await gateway.wait_until_ready()
            shown = (await ask(gateway, admin, "GET", f"/{name}")).json["result"]
            is_whole = shown["num_bytes"] == len(data)
            assert is_whole or shown["num_bytes"] is None
            assert is_whole or not is_answered  # what was answered is there
            outcomes.append(is_whole)
        num_pieces = sum(outcomes) * -(-len(data) // MIB)
        await wait_until_async(lambda: is_clean(gateway, num_pieces), 60)
        await check_files(gateway, data)
    assert outcomes[-1]  # the control: in the end it came first


async def check_files(gateway: RunningGateway, data: bytes) -> None:
    """Every stored file is whole."""
    async with gateway.tenancy.directory._database.read() as connection:  # pyright: ignore[reportPrivateUsage]
        query = text("SELECT weights_sha256 FROM finetunes WHERE upload_id IS NOT NULL")
        digests = (await connection.execute(query)).scalars().all()
    for digest in digests:
        pieces = [
            await gateway.tenancy.read_finetune_piece(bytes(digest), index)
            for index in range(-(-len(data) // MIB))
        ]
        assert b"".join(pieces) == data


async def test_a_large_upload_takes_little_memory(
    tmp_path: Path, database_url: str, node: ScriptedNode
) -> None:
    node.max_adapter_rank = 16
    process = GatewayProcess(tmp_path, database_url, [node])
    size, room = 160 * MIB, 40 * MIB
    async with run_processes([process], open_tenancy_of(tmp_path, database_url)) as (gateway,):
        admin = await gateway.add_tenant(permissions=ALL)
        await create(gateway, admin, "small")
        await create(gateway, admin, "large")
        small = make_large(4 * MIB)
        assert (await upload(gateway, admin, "small", WEIGHTS_FILE, small)).status == 200
        before = read_peak(process)
        data = make_large(size)
        body, content_type = encode_form(WEIGHTS_FILE, data)
        path = gateway.account_path("/ai/finetunes/large/finetune-assets", admin)
        headers = {"content-type": content_type}
        reply = await gateway.send("POST", path, body, api_token=admin.api_token, headers=headers)
        assert reply.status == 200
        assert read_peak(process) - before < room < size
        assert await count_pieces(gateway) == (-(-len(data) // MIB) + -(-len(small) // MIB), 0)


def read_peak(process: GatewayProcess) -> int:
    """The most memory that the process has held, in bytes."""
    running = process._process  # pyright: ignore[reportPrivateUsage]
    assert running is not None
    status = Path(f"/proc/{running.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("fault", ["swallow", "cut"])
async def test_a_database_that_goes_away_in_mid_upload_ends_it_and_known_adapters_serve_on(
    tmp_path: Path, database_url: str, node: ScriptedNode, fault: str
) -> None:
    node.max_adapter_rank = 16
    url = make_url(database_url)
    proxy = FaultProxy(str(url.host), url.port or 5432)
    sections = {
        "finetunes": SETTINGS | {"idle_timeout_s": 60.0, "piece_timeout_s": 20.0},
        "shared_limits": {"url": "redis://127.0.0.1:1/0"},
        "auth": {"max_staleness_s": 60.0},
    }
    data = make_large(4 * MIB)
    async with (
        proxy.serve(),
        run_gateway(tmp_path, find_url(url, proxy), [node], **sections) as gateway,
    ):
        admin = await gateway.add_tenant(permissions=ALL)
        await complete(gateway, admin, "known")
        await create(gateway, admin)
        body = {"prompt": "Hi", "lora": "known"}
        assert (await gateway.run(body, tenant=admin)).status == 200
        async with connect(gateway) as (reader, writer):
            rest = await begin_upload(gateway, writer, admin, "mine", data, 2 * MIB + 1000)

            async def has_pieces() -> bool:
                return (await count_pieces(gateway))[0] == 3  # one of them is the other's

            await wait_until_async(has_pieces, 30)
            getattr(proxy, fault)()
            assert (await gateway.run(body, tenant=admin)).status == 200
            writer.write(rest)
            assert await asyncio.wait_for(read_status(reader), 60) == 503
        unknown = await gateway.run({"prompt": "Hi", "lora": "other"}, tenant=admin)
        assert unknown.status == 503  # nobody can say that there is none
        proxy.restore()

        async def is_taken() -> bool:
            reply = await upload(gateway, admin, "mine", WEIGHTS_FILE, data)
            return reply.status == 200

        await wait_until_async(is_taken, 90)
        await wait_until_async(lambda: is_clean(gateway, 1 + -(-len(data) // MIB)), 60)


def find_url(url: URL, proxy: FaultProxy) -> str:
    """The database through the proxy, which listens."""
    return url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
