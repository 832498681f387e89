"""How long hot standby has not been heard: counted from its own reads, not from operators'."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import pytest

from contracts.fleet_view import PLACEMENT_PATH
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedNode

CREDENTIAL: Final = "hot-standby-of-these-tests-0123456789"


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway that hot standby may read by a credential of its own."""
    standby = {"credential": CREDENTIAL}
    async with run_gateway(tmp_path, database_template, [node], standby=standby) as running:
        yield running


async def read_silence(gateway: RunningGateway) -> float:
    """What the metric says."""
    reply = await gateway.send("GET", "/metrics", api_token=gateway.operator, origin=gateway.admin)
    name = "hearth_gateway_standby_silent_seconds "
    (line,) = [line for line in reply.body.decode().splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


async def read_fleet(gateway: RunningGateway, credential: str) -> None:
    """One look at where weights are."""
    reply = await gateway.send("GET", PLACEMENT_PATH, api_token=credential, origin=gateway.admin)
    assert reply.status == 200


async def test_silence_begins_with_hot_standbys_own_reads(gateway: RunningGateway) -> None:
    await read_fleet(gateway, gateway.operator)
    assert await read_silence(gateway) == 0.0
    await read_fleet(gateway, CREDENTIAL)
    first = await read_silence(gateway)
    assert first > 0.0
    await asyncio.sleep(0.5)
    await read_fleet(gateway, gateway.operator)
    grown = await read_silence(gateway)
    assert grown >= first + 0.4
    await read_fleet(gateway, CREDENTIAL)
    assert await read_silence(gateway) < grown
