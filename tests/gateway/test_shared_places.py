"""One account's open requests, and the room that they leave in a gateway for everybody else's."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.gateway.raw_http import Reader, connect, format_request, read_status
from tests.gateway.running_gateway import run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import run_node

ASK: dict[str, Any] = {"prompt": "Hi"}
NUM_PLACES = 36
NUM_OWN = 32
"""Of those: eight times what is left."""


async def test_who_sends_no_bodies_leaves_places_for_others(
    tmp_path: Path, database_template: Path
) -> None:
    limits = {"max_concurrent_requests": NUM_PLACES}
    async with (
        run_node() as node,
        run_gateway(tmp_path, database_template, [node], limits=limits) as gateway,
    ):
        await gateway.wait_until_ready()
        others = [await gateway.add_tenant() for _ in range(3)]
        async with AsyncExitStack() as stack:
            head = format_request(gateway, ASK).removesuffix(b'{"prompt":"Hi"}')
            assert head.endswith(b"\r\n\r\n")
            readers = list[Reader]()
            for _ in range(2 * NUM_PLACES):
                reader, writer = await stack.enter_async_context(connect(gateway))
                writer.write(head)
                readers.append(reader)
            answers = [asyncio.create_task(read_status(reader)) for reader in readers]
            try:
                await wait_until(lambda: sum(one.done() for one in answers) >= NUM_PLACES)
                replies = [await gateway.run(ASK, tenant=other) for other in others]
                assert [reply.status for reply in replies] == [200] * len(others)
                own = await gateway.run(ASK)
                assert (own.status, own.code) == (429, 3040)
                refused = [one.result() for one in answers if one.done()]
                assert set(refused) == {429}
                assert len(answers) - len(refused) == NUM_OWN  # alone it may have nearly all
            finally:
                for one in answers:
                    one.cancel()
                await asyncio.gather(*answers, return_exceptions=True)

        async def is_let_in() -> bool:
            return (await gateway.run(ASK)).status == 200

        await wait_until_async(is_let_in)  # its connections are gone, and so are their places


MAX_BYTES = 9_000_000
PADDED = b'{"prompt":"Hi"' + b" " * 990_000 + b"}"
"""A body that says nearly nothing, and is large; nine fit."""
LONG = b'{"prompt":"Hi"' + b" " * 200_000 + b"}"


async def test_who_sends_large_bodies_leaves_memory_for_those_of_others(
    tmp_path: Path, database_template: Path
) -> None:
    limits = {"max_body_bytes_in_all": MAX_BYTES}
    async with (
        run_node() as node,
        run_gateway(tmp_path, database_template, [node], limits=limits) as gateway,
    ):
        await gateway.wait_until_ready()
        others = [await gateway.add_tenant() for _ in range(3)]
        request = format_request(gateway, PADDED)
        async with AsyncExitStack() as stack:
            readers = list[Reader]()
            for _ in range(12):
                reader, writer = await stack.enter_async_context(connect(gateway))
                writer.write(request[:-1])  # its end never comes
                readers.append(reader)
            answers = [asyncio.create_task(read_status(reader)) for reader in readers]
            try:
                await wait_until(lambda: sum(one.done() for one in answers) >= 3)
                replies = [await gateway.run(LONG, tenant=other) for other in others]
                assert [reply.status for reply in replies] == [200] * len(others)
                refused = [one.result() for one in answers if one.done()]
                assert set(refused) == {429}
            finally:
                for one in answers:
                    one.cancel()
                await asyncio.gather(*answers, return_exceptions=True)

        async def is_let_in() -> bool:
            return (await gateway.run(PADDED)).status == 200

        await wait_until_async(is_let_in)
        assert (
            gateway.gateway._listeners.tenants.num_body_bytes == 0
        )  # what has gone is held no more
