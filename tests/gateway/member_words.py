"""Nodes that are enrolled and heard of through a real Redis, for tests: the store, what operators
and nodes write, and a desk that reads it.

Read next: `test_membership`, `test_lying_members`, `test_membership_troubles`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.ids import NodeId, RegionId
from contracts.membership import (
    Heartbeat,
    name_heartbeat,
    open_heartbeat,
    seal_heartbeat,
)
from contracts.pair_key import PairKey
from contracts.settings import Secret
from gateway.membership.desk import MemberPool, MembershipDesk, OpenHeartbeat
from gateway.membership.enrolments import (
    EnrolmentFolder,
    NodeEnrolment,
    write_enrolment,
)
from gateway.membership.heartbeat_store import HeartbeatStore
from gateway.routing.fleet import Fleet
from gateway.settings import LimitSettings, MembershipSettings
from gateway.sources import Sources, create_sources
from gateway.store_client import create_redis
from gateway.upstream.links import create_node_links
from tests.fixtures.redis_server import RedisServer, run_redis
from tests.gateway.routing.fleet_words import create_fleet
from tests.gateway.scripted_node import ScriptedNode

EU = ("weur", "eu")
GONE_AFTER_S = 0.05
"""How long a member of a scene may be silent."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer]:
    """One server for all tests; each empties it."""
    with run_redis(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
async def store(server: RedisServer) -> AsyncGenerator[Any]:
    """A client of the empty server, as an attacker has it."""
    redis: Any = create_redis(server.url, 5.0)
    await redis.flushall()
    yield redis
    await redis.aclose()


def enrol(folder: Path, node: ScriptedNode, **changes: Any) -> None:
    """What operators do."""
    folder.mkdir(exist_ok=True)
    key = folder / f"{node.node_id}.key"
    key.write_text(node.pair_key.hex() + "\n")
    key.chmod(0o600)
    region, jurisdiction = EU
    fields = {"region": RegionId(region), "jurisdiction": jurisdiction, "key_file": key.name}
    write_enrolment(folder, node.node_id, NodeEnrolment(**(fields | changes)))


def say(node: ScriptedNode, *, unix_ms: int | None = None, is_leaving: bool = False) -> Heartbeat:
    """What the node would write now."""
    now_ms = time.time_ns() // 1_000_000 if unix_ms is None else unix_ms
    return Heartbeat(now_ms, node.url, node._report().report, is_leaving)


async def put(store: Any, node_id: str, heartbeat: Heartbeat, key: bytes) -> bytes:
    """Writes it under a name, signed with a key."""
    sealed = seal_heartbeat(heartbeat, [PairKey(key)])
    await store.set(name_heartbeat(NodeId(node_id)), sealed)
    return sealed


@asynccontextmanager
async def speaking(store: Any, *nodes: ScriptedNode) -> AsyncGenerator[None]:
    """The nodes write heartbeats until the end of the block, and then leave."""
    is_over = asyncio.Event()

    async def speak() -> None:
        while not is_over.is_set():  # the client can lose a cancellation before Python 3.12
            for node in nodes:
                await put(store, node.node_id, say(node), node.pair_key)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(speak())
    try:
        yield
    finally:
        is_over.set()
        await asyncio.gather(task, return_exceptions=True)
        for node in nodes:
            await put(store, node.node_id, say(node, is_leaving=True), node.pair_key)


class Scene:
    """A desk over a real store and a fleet that connects to nobody."""

    def __init__(
        self, folder: Path, url: str, open_one: OpenHeartbeat, sources: Sources, skew_s: float
    ) -> None:
        self.fleet: Fleet = create_fleet(sources=sources)
        self.links = create_node_links(
            [],
            NodeId("gw"),
            LimitSettings(),
            10.0,
            self.fleet,
            sources,  # type: ignore[arg-type]
        )
        settings = MembershipSettings(
            url=Secret(url), folder=folder, gone_after_s=GONE_AFTER_S, max_skew_s=skew_s
        )
        self.store = HeartbeatStore(create_redis(url, 5.0), 5.0)
        pool = MemberPool(self.fleet, self.links)
        self.desk = MembershipDesk(
            settings, EnrolmentFolder(folder), self.store, pool, sources, open_one
        )

    @property
    def members(self) -> dict[str, Any]:
        """By name."""
        return {node.node_id: node for node in self.fleet.roster.snapshots}


@asynccontextmanager
async def open_scene(
    folder: Path, url: str, open_one: OpenHeartbeat = open_heartbeat, skew_s: float = 15.0
) -> AsyncGenerator[Scene]:
    """A scene until the end of the block."""
    scene = Scene(folder, url, open_one, create_sources(), skew_s)
    try:
        yield scene
    finally:
        await scene.desk.close()
        await scene.links.close()
