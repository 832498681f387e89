"""Gateways that answer as none should: each is left out of the round, and the others go on."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from contracts.ids import BootId, NodeId
from contracts.placement import PlacementPlan, Tier
from contracts.settings import Secret
from hot_standby import pool_control
from hot_standby.pool_control import GatewayControl, create_pool_control
from hot_standby.settings import GatewayAddress
from tests.gateway.conftest import database_template, gateway, node
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import ScriptedNode
from tests.hot_standby.test_controller import report

__all__ = ["database_template", "gateway", "node"]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
TIMEOUT_S = 1.0
PATIENCE_S = 15.0
"""Far more than a round may take, on a slow machine too."""


async def drip() -> AsyncIterator[bytes]:
    """One byte and another, each before anybody's patience is over."""
    while True:
        yield b" "
        await asyncio.sleep(TIMEOUT_S / 10)


async def flood() -> AsyncIterator[bytes]:
    """An answer without an end."""
    while True:
        yield b" " * 65_536
        await asyncio.sleep(0)


async def nest() -> AsyncIterator[bytes]:
    """Brackets in a field that nobody reads."""
    yield b'{"x": ' + b"[" * 100_000


async def garble() -> AsyncIterator[bytes]:
    """Text that is none."""
    yield b'{"result": {"gateway_id": "\xff"}}'


ANSWERS = {"drip": drip, "flood": flood, "nest": nest, "garble": garble}


@asynccontextmanager
async def run_liar(answer: str) -> AsyncGenerator[str]:
    """A gateway's address where everything is answered so."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            async for piece in ANSWERS[answer]():
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_gateway_that_answers_nonsense_is_left_out_and_the_others_go_on(
    gateway: RunningGateway, node: ScriptedNode, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_control, "MAX_VIEW_BYTES", 1 << 20)
    await report(node, Tier.GPU)
    async with run_liar(answer) as liar:
        addresses = [GatewayAddress(url=url) for url in (liar, gateway.admin)]
        pool = create_pool_control(addresses, Secret(gateway.operator), TIMEOUT_S)
        async with asyncio.timeout(PATIENCE_S):
            views = await pool.read()
        assert [control.url for control, _ in views] == [gateway.admin]
        await pool.close()


@pytest.mark.parametrize("answer", ["drip", "flood"])
async def test_a_plan_is_put_however_much_is_answered(answer: str) -> None:
    plan = PlacementPlan(node_id=NodeId("n"), boot_id=BootId("0" * 16), number=1, targets=())
    async with run_liar(answer) as liar:
        control = GatewayControl(GatewayAddress(url=liar), Secret("x"), TIMEOUT_S)
        async with asyncio.timeout(PATIENCE_S):
            assert await control.put(plan)
        await control.close()


async def test_the_log_says_once_what_a_gateway_refuses_with(gateway: RunningGateway) -> None:
    control = GatewayControl(GatewayAddress(url=gateway.admin), Secret("x"), PATIENCE_S)
    with capture_logs() as lines:
        assert await control.read() is None
        assert await control.read() is None
    await control.close()
    (line,) = [line for line in lines if line["event"] == "gateway_not_read"]
    assert (line["url"], line["status"]) == (gateway.admin, 401)
