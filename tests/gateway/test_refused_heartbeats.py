"""Members that are not believed: the log hears of it in time, and operators see why."""

import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from contracts.ids import NodeId, RegionId
from contracts.membership import HeartbeatRefusal, HeartbeatRefused
from gateway.membership.refusals import AGAIN_S, RefusedHeartbeats
from tests.fixtures.redis_server import RedisServer, needs_redis
from tests.gateway.member_words import enrol, open_scene, put, say, server, speaking, store
from tests.gateway.running_gateway import RunningGateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode, run_node
from tests.gateway.test_membership import run_fleet_gateway

__all__ = ["server", "store"]
NODE, OTHER = NodeId("gpu-1"), NodeId("gpu-2")
REGION = HeartbeatRefused(HeartbeatRefusal.REGION)
CLOCK = HeartbeatRefused(HeartbeatRefusal.CLOCK)
ELSEWHERE = "it says it is in apac, operators that it is in weur"


def test_the_log_hears_when_it_begins_when_it_changes_and_now_and_then() -> None:
    refused = RefusedHeartbeats()
    assert refused.note(NODE, REGION, 0.0)
    assert not any(refused.note(NODE, REGION, float(second)) for second in range(1, 59))
    assert refused.note(OTHER, REGION, 1.0)
    assert refused.note(NODE, CLOCK, 2.0)
    assert not refused.note(NODE, CLOCK, 3.0)
    refused.forget(NODE)  # believed, and not again: a store may put old words back all the time
    assert refused.find(NODE) is None
    assert not refused.note(NODE, CLOCK, 4.0)
    assert refused.note(NODE, REGION, AGAIN_S)
    refused.keep_only([OTHER], [OTHER])
    assert (refused.find(NODE), refused.find(OTHER) is not None) == (None, True)
    assert refused.note(NODE, REGION, AGAIN_S + 1)  # enrolled anew


@pytest.mark.parametrize("reason", HeartbeatRefusal)
def test_each_reason_has_words(reason: HeartbeatRefusal) -> None:
    refused = RefusedHeartbeats()
    refused.note(NODE, HeartbeatRefused(reason), 0.0)
    assert len(refused.find(NODE) or "") > 20
    refused.note(NODE, HeartbeatRefused(reason, "more"), 0.0)
    assert refused.find(NODE) == "more"


@needs_redis
async def test_a_refusal_each_second_is_one_line_and_all_are_counted(
    tmp_path: Path, server: RedisServer, store: Any
) -> None:
    node = ScriptedNode("gpu-1", "apac")
    node.port = 9
    enrol(tmp_path, node)
    now_ms = time.time_ns() // 1_000_000
    async with open_scene(tmp_path, server.url) as scene:
        with capture_logs() as lines:
            for number in range(4):
                said = say(node, unix_ms=now_ms + number)
                await put(store, "gpu-1", said, node.pair_key)
                await scene.desk.look()
            await put(store, "gpu-1", say(node), bytes(32))
            await scene.desk.look()
        reasons = [line["reason"] for line in lines if line["event"] == "heartbeat_refused"]
        assert reasons == [HeartbeatRefusal.REGION, HeartbeatRefusal.SIGNATURE]
        assert scene.desk.num_refused[HeartbeatRefusal.REGION] == 4
        node.region = RegionId("weur")
        await put(store, "gpu-1", say(node), node.pair_key)
        await scene.desk.look()
        assert scene.desk.find_refusal(NODE) is None
        assert list(scene.members) == ["gpu-1"]  # the control


@needs_redis
async def test_a_member_that_comes_back_elsewhere_is_shown_as_it_was_and_why_it_is_refused(
    tmp_path: Path, database_template: Path, server: RedisServer, store: Any
) -> None:
    async with (
        run_node("gpu-1") as node,
        run_fleet_gateway(tmp_path, database_template, server.url) as gateway,
    ):
        enrol(tmp_path / "members", node)
        (shown,) = await show_nodes(gateway)
        assert (shown["region"], shown["report_age_s"], shown["refusal"]) == (None, None, None)
        async with speaking(store, node):
            await gateway.wait_until_ready()
            (shown,) = await show_nodes(gateway)
            assert (shown["is_connected"], shown["refusal"]) == (True, None)
        await node.stop()
        node.region = RegionId("apac")
        await node.start()
        async with speaking(store, node):

            async def is_refused() -> bool:
                (shown,) = await show_nodes(gateway)
                return shown["refusal"] == ELSEWHERE

            await wait_until_async(is_refused)
            (shown,) = await show_nodes(gateway)
            assert (shown["is_connected"], shown["region"]) == (False, "weur")
            assert shown["report_age_s"] > 0
            node.region = RegionId("weur")
            await gateway.wait_until_ready()
            (shown,) = await show_nodes(gateway)
            assert (shown["is_connected"], shown["refusal"]) == (True, None)


async def show_nodes(gateway: RunningGateway) -> list[dict[str, Any]]:
    """As operators see them."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    return reply.json["result"]
