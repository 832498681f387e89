"""A gateway before a node whose models take turns on the device: what clients see of it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from contracts.errors import NodeUnreachable
from contracts.fleet import NodeReport
from contracts.ids import NodeId
from contracts.placement import PlacementPlan, PlacementTarget, Tier
from contracts.pricing import TokenRates
from gateway.settings import LimitSettings, NodeSettings
from gateway.sources import create_sources
from gateway.upstream.links import create_node_links
from tests.fixtures.crowded_node import A, B, C, CrowdedAddress, find, run_crowded
from tests.fixtures.double_node import DoubleNode
from tests.fixtures.node_process import GATEWAY
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async

PROMPT = {"prompt": "Hello", "max_tokens": 5}


@dataclass
class Site:
    """Both ends."""

    gateway: RunningGateway
    node: DoubleNode


@pytest.fixture
async def site(tmp_path: Path, database_template: Path) -> AsyncGenerator[Site]:
    checkpoint = write_random_checkpoint(tmp_path / "model")
    async with (
        run_crowded(tmp_path, checkpoint) as node,
        run_gateway(tmp_path, database_template, [CrowdedAddress(node)]) as gateway,
    ):
        await gateway.tenancy.set_price("*", TokenRates(0, 0, 0, 0))

        async def is_priced() -> bool:
            return (await gateway.run(PROMPT, A)).status == 200

        await wait_until_async(is_priced)
        yield Site(gateway, node)


async def test_all_models_of_a_crowded_node_answer(site: Site) -> None:
    for model in (A, B, C, A):
        reply = await site.gateway.run(PROMPT, model)
        assert reply.status == 200, reply.body
    assert find(site.node, A).tier is Tier.GPU


async def test_who_will_not_wait_for_a_wake_is_told_when_to_come_back(site: Site) -> None:
    impatient = {**PROMPT, "options": {"rejectIfBusy": True}}
    reply = await site.gateway.run(impatient, B)
    assert (reply.status, reply.code) == (429, 3040)
    expected_s = find(site.node, B).wake_s
    assert 0 < expected_s <= int(reply.headers["retry-after"]) < expected_s + 2
    assert find(site.node, B).num_wakes == 0
    assert (await site.gateway.run(impatient, A)).status == 200  # the control


class Ignorant:
    """Wants to know nothing of nodes."""

    def record_report(self, report: NodeReport) -> None: ...

    def record_link_lost(self, node_id: NodeId) -> None: ...

    def choose_report_ms(self, node_id: NodeId) -> int:
        return 1000


async def test_a_plan_reaches_its_node(site: Site, tmp_path: Path) -> None:
    plan = PlacementPlan(
        node_id=site.node.settings.node_id,
        boot_id=site.node.server.parts.status.boot_id,
        number=1,
        targets=(PlacementTarget(name=A, tier=Tier.HOST), PlacementTarget(name=C, tier=Tier.GPU)),
    )
    key_file = tmp_path / f"{site.node.settings.node_id}.key"  # the gateway's own
    address = CrowdedAddress(site.node)
    settings = NodeSettings(node_id=address.node_id, url=address.url, key_file=key_file)
    links = create_node_links(
        [settings], GATEWAY, LimitSettings(), 10.0, Ignorant(), create_sources()
    )
    await links.start()
    try:
        await wait_until(lambda: all(links.up.values()))
        links.place(plan)
        await wait_until(lambda: find(site.node, C).tier is Tier.GPU)
        assert find(site.node, A).tier is Tier.HOST
        with pytest.raises(NodeUnreachable):
            links.place(msgspec.structs.replace(plan, node_id="nobody"))
    finally:
        await links.close()
