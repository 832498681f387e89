"""Uploads that go wrong: what is no adapter, clients that stall or leave, too many at once."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tests.gateway.cloudflare_client import ALL
from tests.gateway.finetune_client import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    ask,
    begin_upload,
    create,
    upload,
)
from tests.gateway.finetunes.adapter_files import (
    describe_pair,
    format_config,
    format_weights,
    make_weights,
)
from tests.gateway.raw_http import Writer, connect, read_head, read_status
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import ScriptedNode

LARGE = make_weights(num_layers=40, width=1024)
"""Some pieces."""
SETTINGS: dict[str, Any] = {
    "idle_timeout_s": 1.0,
    "max_bytes": 8_000_000,
    "max_uploads_per_account": 2,
    "max_uploads": 3,
    "sweep_s": 0.2,
}


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway of little patience, in front of a node that takes adapters."""
    node.max_adapter_rank = 16
    settings = {"finetunes": SETTINGS}
    async with run_gateway(tmp_path, database_template, [node], **settings) as running:
        yield running


async def count_pieces(gateway: RunningGateway) -> tuple[int, int]:
    """Pieces and unfinished uploads in the store."""
    async with gateway.tenancy.directory._database.read() as connection:  # pyright: ignore[reportPrivateUsage]
        tables = ("finetune_pieces", "finetune_uploads")
        found = [
            (await connection.execute(text(f"SELECT COUNT(*) FROM {table}"))).scalar_one()
            for table in tables
        ]
    return found[0], found[1]


async def wait_until_clean(gateway: RunningGateway, num_pieces: int = 0) -> None:
    """Returns once the store has these pieces only, nothing half-done and all places are free."""

    async def is_clean() -> bool:
        return await count_pieces(gateway) == (num_pieces, 0)

    await wait_until_async(is_clean, 30)
    assert count_uploads(gateway) == 0


def count_uploads(gateway: RunningGateway) -> int:
    """Those under way."""
    return gateway.gateway._finetunes.desk.places.num_taken  # pyright: ignore[reportPrivateUsage]


async def is_whole(gateway: RunningGateway, tenant: Tenant, name: str = "mine") -> bool:
    """True when the weights are there, as their owner is told."""
    return (await ask(gateway, tenant, "GET", f"/{name}")).json["result"]["num_bytes"] is not None


@pytest.mark.parametrize(
    ("file_name", "data", "words"),
    [
        ("adapter_model.bin", b"x", "file_name"),
        ("", b"x", "file_name"),
        ("../adapter_config.json", b"{}", "file_name"),
        ("x" * 300, b"x", "file_name"),
        (CONFIG_FILE, b"", "JSON"),
        (CONFIG_FILE, b"{}", "peft_type"),
        (CONFIG_FILE, format_config(use_dora=True), "use_dora"),
        (CONFIG_FILE, format_config(r=17), "`r`"),
        (CONFIG_FILE, b" " * 70_000 + format_config(), "longer than 65536"),
        (WEIGHTS_FILE, b"", "not whole"),
        (WEIGHTS_FILE, b"\x80\x02}q\x00" * 10, "no safetensors file"),
        (WEIGHTS_FILE, format_weights({}), "no tensors"),
        (WEIGHTS_FILE, format_weights(describe_pair(rank=17), 2176), "rank 17"),
        (WEIGHTS_FILE, make_weights()[:-1], "not whole"),
        (WEIGHTS_FILE, make_weights() + b"x", "longer than"),
        (WEIGHTS_FILE, make_weights()[:20], "not whole"),
        (WEIGHTS_FILE, LARGE[:-1], "not whole"),
        (WEIGHTS_FILE, LARGE + bytes(100_000), "longer than"),
    ],
)
@pytest.mark.parametrize("is_file_first", [False, True])
async def test_what_is_no_adapter_is_refused_with_a_sentence_and_leaves_nothing(
    gateway: RunningGateway,
    admin: Tenant,
    file_name: str,
    data: bytes,
    words: str,
    is_file_first: bool,
) -> None:
    made = await create(gateway, admin)
    reply = await upload(gateway, admin, "mine", file_name, data, is_file_first=is_file_first)
    assert (reply.status, reply.code) == (400, 5006), reply.body
    if file_name == CONFIG_FILE and len(data) > 65_536 and is_file_first:
        words = "no safetensors file"  # so long that it can only be weights
    assert words in reply.json["errors"][0]["message"]
    assert (await ask(gateway, admin, "GET", "/mine")).json["result"] == made
    await wait_until_clean(gateway)
    # The control: what is sound is taken after that.
    assert (await upload(gateway, admin, "mine", WEIGHTS_FILE, LARGE)).status == 200
    assert (await upload(gateway, admin, "mine", CONFIG_FILE, format_config())).status == 200


async def test_a_file_beyond_the_bound_is_413_and_the_bound_of_other_bodies_is_none_here(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    fitting = format_weights(describe_pair(rank=8, width=120_000), 7_680_000)
    beyond = format_weights(describe_pair(rank=8, width=130_000), 8_320_000)
    told = format_weights(describe_pair(rank=8, width=10_000_000), 100)
    for data in (beyond, told):
        reply = await upload(gateway, admin, "mine", WEIGHTS_FILE, data)
        assert (reply.status, reply.code) == (413, 3006)
    await wait_until_clean(gateway)
    assert (await upload(gateway, admin, "mine", WEIGHTS_FILE, fitting)).status == 200
    assert await count_pieces(gateway) == (8, 0)


def send_form(gateway: RunningGateway, tenant: Tenant, body: bytes, content_type: str) -> Any:
    path = gateway.account_path("/ai/finetunes/mine/finetune-assets", tenant)
    headers = {"content-type": content_type}
    return gateway.send("POST", path, body, api_token=tenant.api_token, headers=headers)


async def test_forms_that_are_none_are_refused(gateway: RunningGateway, admin: Tenant) -> None:
    await create(gateway, admin)
    name = ("file_name", (None, CONFIG_FILE))
    file = ("file", ("upload", format_config()))
    wrong: dict[str, list[Any]] = {
        "no `file`": [name],
        "no `file_name`": [file],
        "`file` twice": [name, file, file],
        "`file_name` twice": [name, name, file],
        "unknown field `more`": [name, file, ("more", (None, "x"))],
    }
    for words, parts in wrong.items():
        request = httpx.Request("POST", "http://x", files=parts)
        reply = await send_form(gateway, admin, request.read(), request.headers["content-type"])
        assert (reply.status, reply.code) == (400, 5006)
        assert words in reply.json["errors"][0]["message"]
    request = httpx.Request("POST", "http://x", files=[name, file])
    body, content_type = request.read(), request.headers["content-type"]
    for spoiled, kind in (
        (body[:-20], content_type),
        (body, "application/json"),
        (body, "multipart/form-data; boundary=other"),
        (b"{}", content_type),
        (b"", content_type),
    ):
        reply = await send_form(gateway, admin, spoiled, kind)
        assert (reply.status, reply.code) == (400, 5006)
    path = gateway.account_path("/ai/finetunes/mine/finetune-assets", admin)
    headers = {"content-type": content_type, "content-encoding": "gzip"}
    coded = await gateway.send("POST", path, body, api_token=admin.api_token, headers=headers)
    assert coded.status == 415
    assert (await send_form(gateway, admin, body, content_type)).status == 200  # the control


async def test_a_client_that_stalls_is_told_and_everything_is_free_again(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    async with connect(gateway) as (reader, writer):
        await begin_upload(gateway, writer, admin, "mine", LARGE, 1_500_000)
        status, head = await asyncio.wait_for(read_head(reader), 30)
        assert status == 408
        assert "x-request-id" in head
    await wait_until_clean(gateway)
    assert not await is_whole(gateway, admin)
    assert (await upload(gateway, admin, "mine", WEIGHTS_FILE, LARGE)).status == 200


async def test_a_client_that_trickles_is_given_up_in_the_end(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    node.max_adapter_rank = 16
    settings = {"finetunes": SETTINGS | {"piece_timeout_s": 1.5}}
    async with run_gateway(tmp_path, database_template, [node], **settings) as gateway:
        admin = await gateway.add_tenant(permissions=ALL)
        await create(gateway, admin)
        async with connect(gateway) as (reader, writer):
            rest = await begin_upload(gateway, writer, admin, "mine", LARGE, 1000)
            answer = asyncio.ensure_future(read_head(reader))
            for at in range(len(rest)):
                if answer.done():
                    break
                writer.write(rest[at : at + 1])  # never idle
                await asyncio.sleep(0.05)
            assert (await answer)[0] == 408
        await wait_until_clean(gateway)


async def test_a_client_that_leaves_frees_everything_at_once(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    async with connect(gateway) as (_, writer):
        await begin_upload(gateway, writer, admin, "mine", LARGE, 1_500_000)
        await wait_until(lambda: count_uploads(gateway) == 1)

        async def has_piece() -> bool:
            return await count_pieces(gateway) == (1, 1)

        await wait_until_async(has_piece)
    await wait_until_clean(gateway)
    assert not await is_whole(gateway, admin)
    assert (await upload(gateway, admin, "mine", WEIGHTS_FILE, LARGE)).status == 200


async def test_an_account_uploads_so_many_at_once_and_others_are_not_held_up(
    gateway: RunningGateway, admin: Tenant
) -> None:
    other = await gateway.add_tenant(permissions=ALL)
    third = await gateway.add_tenant(permissions=ALL)
    for tenant in (admin, other, third):
        for name in ("a", "b", "c"):
            await create(gateway, tenant, name)
    async with connect(gateway) as (one, first), connect(gateway) as (two, second):
        rests = [
            (first, one, await begin_upload(gateway, first, admin, "a", LARGE, 1000)),
            (second, two, await begin_upload(gateway, second, admin, "b", LARGE, 1000)),
        ]
        await wait_until(lambda: count_uploads(gateway) == 2)
        refused = await upload(gateway, admin, "c", WEIGHTS_FILE, make_weights())
        assert (refused.status, refused.code) == (429, 7430)
        assert "retry-after" in refused.headers
        assert (await upload(gateway, other, "a", WEIGHTS_FILE, make_weights())).status == 200
        async with connect(gateway) as (_, last):
            await begin_upload(gateway, last, other, "b", LARGE, 1000)
            await wait_until(lambda: count_uploads(gateway) == 3)
            full = await upload(gateway, third, "a", WEIGHTS_FILE, make_weights())
            assert (full.status, full.code) == (429, 3040)
        # What else an account asks is answered meanwhile.
        assert (await ask(gateway, admin, "GET")).status == 200
        assert (await gateway.run({"prompt": "Hi"}, tenant=admin)).status == 200
        for writer, reader, rest in rests:
            writer.write(rest)
            assert await asyncio.wait_for(read_status(reader), 30) == 200
    await wait_until(lambda: count_uploads(gateway) == 0)
    assert (await upload(gateway, admin, "c", WEIGHTS_FILE, make_weights())).status == 200
    assert await is_whole(gateway, admin, "a")
    assert await is_whole(gateway, admin, "b")


async def begin_and_wait(gateway: RunningGateway, writer: Writer, tenant: Tenant) -> bytes:
    """What is left of an upload to `mine` whose first piece is in the store."""
    rest = await begin_upload(gateway, writer, tenant, "mine", LARGE, 1_500_000)

    async def has_begun() -> bool:
        return (await count_pieces(gateway))[0] == 1

    await wait_until_async(has_begun)
    return rest


async def test_of_two_uploads_to_one_finetune_the_first_wins(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    async with connect(gateway) as (reader, writer):
        rest = await begin_and_wait(gateway, writer, admin)
        for data in (LARGE, make_weights()):
            second = await upload(gateway, admin, "mine", WEIGHTS_FILE, data)
            assert (second.status, second.code) == (409, 7409)
            assert "under way" in second.json["errors"][0]["message"]
        writer.write(rest)
        assert await asyncio.wait_for(read_status(reader), 30) == 200
    again = await upload(gateway, admin, "mine", WEIGHTS_FILE, LARGE)
    assert (again.status, again.code) == (409, 7409)
    assert "cannot be changed" in again.json["errors"][0]["message"]
    shown = (await ask(gateway, admin, "GET", "/mine")).json["result"]
    assert shown["num_bytes"] == len(LARGE)


async def test_many_at_once_end_as_one(gateway: RunningGateway, admin: Tenant) -> None:
    await create(gateway, admin)
    replies: list[Reply] = await asyncio.gather(
        *(upload(gateway, admin, "mine", WEIGHTS_FILE, LARGE) for _ in range(6))
    )
    statuses = sorted(reply.status for reply in replies)
    assert statuses.count(200) == 1
    assert set(statuses) <= {200, 409, 429}
    await wait_until_clean(gateway, num_pieces=-(-len(LARGE) // 2**20))


async def test_a_finetune_deleted_in_mid_upload_ends_it(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    async with connect(gateway) as (reader, writer):
        rest = await begin_and_wait(gateway, writer, admin)
        assert (await ask(gateway, admin, "DELETE", "/mine")).status == 200
        writer.write(rest)
        assert await asyncio.wait_for(read_status(reader), 30) in (404, 409)
    await wait_until_clean(gateway)


async def test_who_may_not_upload_is_told_before_the_body_is_read(
    gateway: RunningGateway, admin: Tenant
) -> None:
    await create(gateway, admin)
    weak = await gateway.add_tenant()
    for tenant, name, expected in (
        (weak, "mine", 403),
        (Tenant(admin.account_id, weak.api_token), "mine", 403),
        (Tenant(admin.account_id, "nonsense"), "mine", 401),
        (admin, "none", 404),
    ):
        async with connect(gateway) as (reader, writer):
            await begin_upload(gateway, writer, tenant, name, LARGE, 1000)
            assert await asyncio.wait_for(read_status(reader), 30) == expected
