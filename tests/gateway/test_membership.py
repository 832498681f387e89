"""Nodes that come and go while a gateway runs: enrolled by operators, found in a real Redis."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.ids import RegionId
from gateway.membership.enrolments import (
    remove_enrolment,
)
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.redis_server import RedisServer, needs_redis
from tests.gateway.member_words import (
    enrol,
    server,
    speaking,
    store,
)
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import run_node

__all__ = ["server", "store"]
pytestmark = needs_redis
ASK = {"prompt": "Hi"}


@asynccontextmanager
async def run_fleet_gateway(
    folder: Path, template: Path, url: str, **changes: Any
) -> AsyncGenerator[RunningGateway]:
    """A gateway whose settings name no node."""
    section: dict[str, Any] = {"url": url, "folder": str(folder / "members"), "poll_s": 0.05}
    section |= {"gone_after_s": 0.5, "budget_s": 0.5} | changes
    async with run_gateway(folder, template, [], membership=section) as running:
        yield running


async def read_metric(gateway: RunningGateway, name: str) -> float:
    """One value from the operators' port."""
    reply = await gateway.send("GET", "/metrics", api_token=gateway.operator, origin=gateway.admin)
    (line,) = [one for one in reply.body.decode().splitlines() if one.startswith(f"{name} ")]
    return float(line.split()[1])


async def test_an_enrolled_node_serves_without_a_restart_moves_and_leaves(
    tmp_path: Path, database_template: Path, server: RedisServer, store: Any
) -> None:
    async with (
        run_node("gpu-1") as node,
        run_fleet_gateway(tmp_path, database_template, server.url) as gateway,
    ):
        async with speaking(store, node):
            await asyncio.sleep(0.2)
            assert await read_metric(gateway, "hearth_gateway_members") == 0  # nobody said so yet
            enrol(tmp_path / "members", node)
            await gateway.wait_until_ready()
            assert (await gateway.run(ASK)).status == 200
            nodes = (
                await gateway.send(
                    "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
                )
            ).json
            (shown,) = nodes.get("result", nodes) if isinstance(nodes, dict) else nodes
            assert shown["is_connected"]
            assert shown["heartbeat_age_s"] < 2
            await node.stop()
            node.port = 0  # it comes back elsewhere
            await node.start()
            await wait_until_async(lambda: _is_answered(gateway))
        await node.stop()
        await wait_until_async(lambda: _has_members(gateway, 0))
        assert gateway.gateway._pool.fleet.roster.list_models() == []
        await node.start()


async def test_an_account_that_is_bound_to_nodes_which_are_away_is_told_to_come_back(
    tmp_path: Path, database_template: Path, server: RedisServer, store: Any
) -> None:
    members = tmp_path / "members"
    async with (
        run_node("gpu-1", "weur") as home,
        run_node("gpu-2", "enam") as abroad,
        run_fleet_gateway(tmp_path, database_template, server.url) as gateway,
        speaking(store, abroad),
    ):
        enrol(members, home)
        enrol(members, abroad, region=RegionId("enam"))
        bound = await gateway.add_tenant(regions=["weur"])
        async with speaking(store, home):
            await wait_until_async(lambda: _has_members(gateway, 2))
            await wait_until(lambda: all(gateway.gateway._pool.links.up.values()))
            assert (await gateway.run(ASK, tenant=bound)).status == 200
        await home.stop()
        await wait_until_async(lambda: _has_members(gateway, 1))
        reply = await gateway.run(ASK, tenant=bound)
        assert (reply.status, reply.headers["x-should-retry"]) == (429, "true")
        assert (await gateway.run(ASK)).status == 200
        remove_enrolment(members, home.node_id)

        async def is_against_the_law() -> bool:  # the control: nobody counts on it any more
            return (await gateway.run(ASK, tenant=bound)).status == 403

        await wait_until_async(is_against_the_law)
        await home.start()
        assert not any(one.grant.account_id == bound.account_id for one in abroad.streams)


async def _is_answered(gateway: RunningGateway) -> bool:
    return (await gateway.run(ASK)).status == 200


async def _has_members(gateway: RunningGateway, count: int) -> bool:
    return await read_metric(gateway, "hearth_gateway_members") == count


async def test_a_removed_enrolment_ends_the_link_and_streams_go_on_elsewhere(
    tmp_path: Path, database_template: Path, server: RedisServer, store: Any
) -> None:
    members = tmp_path / "members"
    async with (
        run_node("gpu-1") as first,
        run_node("gpu-2") as second,
        run_fleet_gateway(tmp_path, database_template, server.url) as gateway,
        speaking(store, first, second),
    ):
        enrol(members, first)
        enrol(members, second)
        await wait_until_async(lambda: _has_members(gateway, 2))
        links = gateway.gateway._pool.links
        await wait_until(lambda: all(links.up.values()))
        began = asyncio.Event()

        async def never_end(stream: Any) -> None:
            began.set()
            await asyncio.Event().wait()

        first.script = second.script = never_end
        asked = asyncio.create_task(gateway.run(ASK))
        await began.wait()
        held, free = (first, second) if first.streams else (second, first)

        async def answer(stream: Any) -> None:
            await stream.answer("Hel", "lo")

        free.script = answer
        remove_enrolment(members, held.node_id)
        assert (await asked).status == 200
        assert await _has_members(gateway, 1)
        await asyncio.sleep(0.3)  # it goes on writing, and nobody believes it any more
        assert await _has_members(gateway, 1)
        assert not (members / f"{held.node_id}.key").exists()


@pytest.mark.parametrize("fault", ["black hole", "cut", "slow"])
async def test_without_the_store_the_last_known_members_go_on_and_come_back_by_themselves(
    tmp_path: Path, database_template: Path, server: RedisServer, store: Any, fault: str
) -> None:
    proxy = FaultProxy("127.0.0.1", server.port)
    async with (
        proxy.serve(),
        run_node("gpu-1") as node,
        run_node("gpu-2") as newcomer,
        run_fleet_gateway(
            tmp_path, database_template, f"redis://127.0.0.1:{proxy.port}/0", budget_s=0.2
        ) as gateway,
        speaking(store, node, newcomer),
    ):
        enrol(tmp_path / "members", node)
        await gateway.wait_until_ready()
        {
            "black hole": proxy.swallow,
            "cut": proxy.cut,
            "slow": lambda: proxy.slow_down(1.0),
        }[fault]()

        async def is_degraded() -> bool:
            return await read_metric(gateway, "hearth_gateway_membership_degraded") == 1

        await wait_until_async(is_degraded)
        enrol(tmp_path / "members", newcomer)
        node.drop_connections()  # longer than `gone_after_s` it is unknown whether it is there
        await asyncio.sleep(0.7)
        await wait_until_async(lambda: _is_answered(gateway))
        assert await _has_members(gateway, 1)
        proxy.restore()
        await wait_until_async(lambda: _has_members(gateway, 2))

        async def has_recovered() -> bool:  # a busy machine may be slow to answer once more
            return not await is_degraded()

        await wait_until_async(has_recovered)


async def test_who_is_silent_in_the_store_stays_while_it_talks_to_us_and_goes_after_that(
    tmp_path: Path, database_template: Path, server: RedisServer, store: Any
) -> None:
    async with run_fleet_gateway(tmp_path, database_template, server.url) as gateway:
        async with run_node("gpu-1") as node:
            enrol(tmp_path / "members", node)
            async with speaking(store, node):
                await gateway.wait_until_ready()
            await store.flushall()  # and its goodbye with it
            await asyncio.sleep(0.8)
            assert (await gateway.run(ASK)).status == 200
        await wait_until_async(lambda: _has_members(gateway, 0))
        assert (await gateway.run(ASK)).status != 200
