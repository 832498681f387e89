"""A store of members that is not trusted: what it holds is forged, put back and exchanged here.

Each time with a control that shows what would come of it if nobody looked.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from contracts.ids import NodeId, RegionId
from contracts.membership import (
    Heartbeat,
    HeartbeatRefusal,
    name_heartbeat,
)
from contracts.pair_key import PairKey
from gateway.membership.enrolments import (
    remove_enrolment,
)
from gateway.routing.snapshots import Vouched
from gateway.sources import create_sources
from tests.fixtures.redis_server import RedisServer, needs_redis
from tests.gateway.member_words import (
    enrol,
    open_scene,
    put,
    say,
    server,
    store,
)
from tests.gateway.routing.fleet_words import NEED, create_fleet, create_report
from tests.gateway.scripted_node import ScriptedNode

__all__ = ["server", "store"]
pytestmark = needs_redis


def believe(sealed: bytes, node_id: NodeId, key: PairKey) -> Heartbeat:
    """The control: reads whatever lies there."""
    heartbeat = msgspec.msgpack.decode(msgspec.msgpack.decode(sealed)[0], type=Heartbeat)
    return replace_node(heartbeat, node_id)


def replace_node(heartbeat: Heartbeat, node_id: NodeId) -> Heartbeat:
    """The same, said by another node."""
    report = msgspec.structs.replace(heartbeat.report, node_id=node_id)
    return msgspec.structs.replace(heartbeat, report=report)


@pytest.mark.parametrize("attack", ["a stranger's key", "another member's key", "another's word"])
async def test_nobody_speaks_for_a_node_but_itself(
    tmp_path: Path, server: RedisServer, store: Any, attack: str
) -> None:
    victim, member = ScriptedNode("gpu-1"), ScriptedNode("gpu-2")
    victim.port = member.port = 9
    enrol(tmp_path, victim)
    enrol(tmp_path, member)
    lie = msgspec.structs.replace(say(victim), url="ws://127.0.0.1:6666")
    if attack == "a stranger's key":
        await put(store, "gpu-1", lie, bytes(32))
    elif attack == "another member's key":
        await put(store, "gpu-1", lie, member.pair_key)
    else:
        await put(store, "gpu-1", say(member), member.pair_key)
    async with open_scene(tmp_path, server.url) as scene:
        await scene.desk.look()
        assert scene.members == {}
        assert scene.desk.num_refused[HeartbeatRefusal.SIGNATURE] == 1
    async with open_scene(tmp_path, server.url, believe) as scene:  # the control
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]


async def test_an_old_word_put_back_brings_nobody_back(
    tmp_path: Path, server: RedisServer, store: Any
) -> None:
    node = ScriptedNode("gpu-1")
    node.port = 9
    enrol(tmp_path, node)
    now_ms = time.time_ns() // 1_000_000
    async with open_scene(tmp_path, server.url) as scene:
        old = await put(store, "gpu-1", say(node, unix_ms=now_ms), node.pair_key)
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]
        leaving = say(node, unix_ms=now_ms + 1, is_leaving=True)
        await put(store, "gpu-1", leaving, node.pair_key)
        await scene.desk.look()
        assert scene.members == {}
        await store.set(name_heartbeat(node.node_id), old)
        await scene.desk.look()
        assert scene.members == {}
        assert scene.desk.num_refused[HeartbeatRefusal.REPLAY] == 1
        scene.desk._last_unix_ms.clear()  # the control: who does not remember believes it
        scene.desk._seen.clear()
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]


async def test_a_gateway_that_remembers_nothing_is_not_fooled_by_an_old_word_for_long(
    tmp_path: Path, server: RedisServer, store: Any
) -> None:
    node = ScriptedNode("gpu-1")
    node.port = 9
    enrol(tmp_path, node)
    await put(store, "gpu-1", say(node, unix_ms=time.time_ns() // 10**6 - 20_000), node.pair_key)
    async with open_scene(tmp_path, server.url) as scene:
        await scene.desk.look()
        assert scene.members == {}
        assert scene.desk.num_refused[HeartbeatRefusal.CLOCK] == 1
    async with open_scene(tmp_path, server.url, skew_s=3600.0) as scene:  # the control
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]
        await asyncio.sleep(0.06)
        await scene.desk.look()  # and even then it is gone once it is silent
        assert scene.members == {}


@pytest.mark.parametrize("claim", [("enam", "us"), ("weur", "us"), ("enam", "eu")])
async def test_where_a_node_is_operators_say(
    tmp_path: Path, server: RedisServer, store: Any, claim: tuple[str, str]
) -> None:
    node = ScriptedNode("gpu-1")
    node.port = 9
    region, jurisdiction = claim
    heartbeat = say(node)
    report = msgspec.structs.replace(
        heartbeat.report, region=RegionId(region), jurisdiction=jurisdiction
    )
    enrol(tmp_path, node)
    await put(store, "gpu-1", msgspec.structs.replace(heartbeat, report=report), node.pair_key)
    async with open_scene(tmp_path, server.url) as scene:
        await scene.desk.look()
        assert scene.members == {}
        assert scene.desk.num_refused[HeartbeatRefusal.REGION] == 1
        # nor by what it says over its own link, once it is in by an honest word
        await put(store, "gpu-1", say(node), node.pair_key)
        await scene.desk.look()
        scene.fleet.record_report(report)
        assert scene.members["gpu-1"].region == "weur"
        assert scene.members["gpu-1"].jurisdiction == "eu"
    remove_enrolment(tmp_path, node.node_id)
    enrol(tmp_path, node, region=RegionId(region), jurisdiction=jurisdiction)
    await put(store, "gpu-1", msgspec.structs.replace(say(node), report=report), node.pair_key)
    async with open_scene(tmp_path, server.url) as scene:  # the control
        await scene.desk.look()
        assert scene.members["gpu-1"].region == region


async def test_plain_text_to_another_machine_needs_the_operators_word(
    tmp_path: Path, server: RedisServer, store: Any
) -> None:
    node = ScriptedNode("gpu-1")
    heartbeat = msgspec.structs.replace(say(node), url="ws://10.0.0.1:8790")
    enrol(tmp_path, node)
    await put(store, "gpu-1", heartbeat, node.pair_key)
    async with open_scene(tmp_path, server.url) as scene:
        await scene.desk.look()
        assert scene.members == {}
        assert scene.desk.num_refused[HeartbeatRefusal.ADDRESS] == 1
    remove_enrolment(tmp_path, node.node_id)
    enrol(tmp_path, node, allow_plaintext=True)
    async with open_scene(tmp_path, server.url) as scene:  # the control
        await scene.desk.look()
        assert list(scene.members) == ["gpu-1"]


async def test_values_of_any_kind_and_size_harm_nobody_else(
    tmp_path: Path, server: RedisServer, store: Any
) -> None:
    honest, *odd = (ScriptedNode(f"gpu-{number}") for number in range(4))
    for node in (honest, *odd):
        node.port = 9
        enrol(tmp_path, node)
    await put(store, honest.node_id, say(honest), honest.pair_key)
    await store.set(name_heartbeat(odd[0].node_id), bytes(10_000_000))
    await store.lpush(name_heartbeat(odd[1].node_id), "a", "list")
    await store.set(name_heartbeat(odd[2].node_id), b"\xc1")
    async with open_scene(tmp_path, server.url) as scene:
        await scene.desk.look()
        assert list(scene.members) == [honest.node_id]
        assert scene.desk.num_refused[HeartbeatRefusal.MALFORMED] == 2


def test_requests_of_a_node_that_has_left_are_counted_out(tmp_path: Path) -> None:
    fleet = create_fleet("a", sources=create_sources())
    fleet.admit(NodeId("b"), Vouched(RegionId("weur"), "eu"))
    fleet.record_report(create_report("b"))
    plans = [fleet.plan(NEED) for _ in range(3)]
    assert {plan.node_id for plan in plans} == {"b"}
    fleet.dismiss(NodeId("b"))
    fleet.release(plans[0])
    fleet.note_failure(NodeId("b"), 0)
    fleet.record_link_lost(NodeId("b"))
    fleet.record_report(create_report("b"))
    assert [node.node_id for node in fleet.roster.snapshots] == ["a"]
    with contextlib.suppress(Exception):
        fleet.plan(NEED)
    fleet.admit(NodeId("b"), Vouched(RegionId("weur"), "eu"))
    fleet.record_report(create_report("b"))
    fleet.release(plans[1])
    again = fleet.plan(NEED)
    fleet.release(plans[2])
    fleet.release(again)
    assert replace(fleet.roster.snapshots[1], num_reports=0).node_id == "b"
    assert fleet.health.count_under_way(NodeId("b")) == 0
