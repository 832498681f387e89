"""What a node writes where gateways look for nodes, in a real Redis that comes and goes."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio import Redis

from contracts.ids import BootId, GatewayId, NodeId, RegionId
from contracts.membership import Heartbeat, name_heartbeat, open_heartbeat
from contracts.pair_key import PairKey
from contracts.settings import Secret
from gpu_pool.connection_settings import GatewaySettings, MembershipSettings
from gpu_pool.server.gateway_keys import GatewayKeys
from gpu_pool.server.heartbeats import Membership, create_membership
from gpu_pool.server.node_status import NodeStatus
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.redis_server import RedisServer, needs_redis, run_redis

pytestmark = needs_redis
NODE, FIRST, SECOND = NodeId("gpu-1"), GatewayId("gw-1"), GatewayId("gw-2")


class Scene:
    """A node's status, its keys and what it writes."""

    def __init__(self, folder: Path, url: str) -> None:
        self.ahead_ms = 0
        """Of this node's clock."""
        self.keys_by_gateway = {FIRST: PairKey(b"1" * 32), SECOND: PairKey(b"2" * 32)}
        gateways = []
        for gateway_id, key in self.keys_by_gateway.items():
            path = folder / f"{gateway_id}.key"
            path.write_text(key.key.hex())
            path.chmod(0o600)
            gateways.append(GatewaySettings(gateway_id=gateway_id, key_file=path))
        self.status = NodeStatus(NODE, BootId("b"), RegionId("weur"), "eu", time.monotonic)
        self.keys = GatewayKeys(gateways, time.time)
        settings = MembershipSettings(
            url=Secret(url), advertised_url="wss://gpu-1:8790", budget_s=0.2
        )
        self.writer: Membership = create_membership(
            settings, self.status, self.keys, self.read_clock
        )

    def read_clock(self) -> int:
        """Milliseconds since 1970, as the node has it."""
        return time.time_ns() // 1_000_000 + self.ahead_ms


async def read(server: RedisServer, key: PairKey) -> Heartbeat | None:
    """What a gateway with `key` finds."""
    client: Any = redis.asyncio.Redis(port=server.port)
    async with client:
        sealed = await client.get(name_heartbeat(NODE))
        return None if sealed is None else open_heartbeat(sealed, NODE, key)


@asynccontextmanager
async def open_scene(folder: Path, url: str) -> AsyncGenerator[Scene]:
    scene = Scene(folder, url)
    scene.writer.start()
    try:
        yield scene
    finally:
        await scene.writer.stop()


async def wait_for(server: RedisServer, key: PairKey, after_ms: int = 0) -> Heartbeat:
    """The first heartbeat that is later than one."""
    async with asyncio.timeout(10):
        while True:
            heartbeat = await read(server, key)
            if heartbeat is not None and heartbeat.unix_ms > after_ms:
                return heartbeat
            await asyncio.sleep(0.01)


async def test_a_node_speaks_to_each_of_its_gateways_until_its_last_word(tmp_path: Path) -> None:
    with run_redis(tmp_path) as server:
        async with open_scene(tmp_path, server.url) as scene:
            first = await wait_for(server, scene.keys_by_gateway[FIRST])
            assert (first.url, first.report.region) == ("wss://gpu-1:8790", "weur")
            assert first == await wait_for(server, scene.keys_by_gateway[SECOND])
            new = PairKey(b"3" * 32)
            scene.keys.stage(FIRST, new.key, scene.keys_by_gateway[FIRST])
            scene.status.publish()
            later = await wait_for(server, scene.keys_by_gateway[FIRST], first.unix_ms)
            assert later == await read(server, new)  # by both keys while one is replaced
            scene.status.start_draining()
            while not (await wait_for(server, new)).report.is_draining:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        last = await read(server, new)
        assert last is not None
        assert last.is_leaving
        client: Any = Redis(port=server.port)
        async with client:
            assert 0 < await client.ttl(name_heartbeat(NODE)) <= 120


@pytest.mark.parametrize("ahead_ms", [3_600_000, 5_000], ids=["far", "the control"])
async def test_a_clock_that_is_set_right_is_followed_and_a_little_of_it_made_up_for(
    tmp_path: Path, ahead_ms: int
) -> None:
    """Who has heard a later word takes no earlier one; nobody hears one from so far ahead."""
    with run_redis(tmp_path) as server:
        async with open_scene(tmp_path, server.url) as scene:
            key = scene.keys_by_gateway[FIRST]
            scene.ahead_ms = ahead_ms
            scene.status.publish()
            before = await wait_for(server, key, scene.read_clock() - 1000)
            scene.ahead_ms = 0
            scene.status.publish()
            async with asyncio.timeout(10):
                while (after := await read(server, key)) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert after is not None
            assert (after.unix_ms > before.unix_ms) == (ahead_ms == 5_000)
            assert abs(after.unix_ms - scene.read_clock()) < 10_000


async def test_a_store_that_is_away_or_a_black_hole_holds_nothing_up(tmp_path: Path) -> None:
    with run_redis(tmp_path) as server:
        proxy = FaultProxy("127.0.0.1", server.port)
        async with proxy.serve():
            url = f"redis://127.0.0.1:{proxy.port}/0"
            async with open_scene(tmp_path, url) as scene:
                key = scene.keys_by_gateway[FIRST]
                first = await wait_for(server, key)
                proxy.swallow()
                for _ in range(3):
                    scene.status.publish()
                    await asyncio.sleep(0.1)
                proxy.restore()
                server.kill()
                scene.status.publish()
                await asyncio.sleep(0.1)
                server.start()
                publishing = asyncio.create_task(scene.status.run())
                assert (await wait_for(server, key, first.unix_ms)).report.node_id == NODE
                publishing.cancel()
                proxy.swallow()
            # its last word reached nobody, and the end was reached all the same
            last = await read(server, key)
            assert last is not None
            assert not last.is_leaving


async def test_stopping_in_the_middle_of_a_write_ends(tmp_path: Path) -> None:
    with run_redis(tmp_path) as server:
        for number in range(30):
            scene = Scene(tmp_path, server.url)
            scene.writer.start()
            await asyncio.sleep(number * 0.0002)
            async with asyncio.timeout(5):
                await scene.writer.stop()
