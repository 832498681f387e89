"""Drains of nodes, on every back end."""

import msgspec
import pytest

from contracts.errors import Forbidden, InvalidRequest, NotFound
from contracts.fleet_view import NodeDrain
from contracts.ids import AccountId, GatewayId, NodeId, RegionId
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

NODE = NodeId("gpu-7")


async def test_a_drain_is_kept_replaced_and_ended_and_gateways_hear_of_each(
    tenancy: ActingTenancy, clock: ManualClock
) -> None:
    epochs = [await tenancy.read_epoch()]
    assert await tenancy.list_node_drains() == []
    drain = await tenancy.drain_node(NODE)
    assert drain == NodeDrain(node_id=NODE, begun_unix_s=int(clock()), move_after_s=None)
    epochs.append(await tenancy.read_epoch())
    other = await tenancy.drain_node(NodeId("a"), 0)
    later = await tenancy.drain_node(NODE, 60)
    assert await tenancy.list_node_drains() == [other, later]
    assert await tenancy.directory.list_node_drains() == [other, later]  # as gateways read it
    epochs.append(await tenancy.read_epoch())
    await tenancy.undrain_node(NODE)
    epochs.append(await tenancy.read_epoch())
    assert sorted(set(epochs)) == epochs
    with pytest.raises(NotFound):
        await tenancy.undrain_node(NODE)
    assert await tenancy.list_node_drains() == [other]
    entries = await tenancy.list_audit_entries(AuditFilter(resource_id=NODE))
    assert [entry.action for entry in entries] == ["node.undrain", "node.drain", "node.drain"]
    assert msgspec.json.decode(entries[1].details)["move_after_s"] == 60


async def test_what_is_no_node_and_no_time_is_refused(tenancy: ActingTenancy) -> None:
    for node_id, move_after_s in (("a node", None), (NODE, -1)):
        with pytest.raises(InvalidRequest):
            await tenancy.drain_node(NodeId(node_id), move_after_s)


@pytest.mark.parametrize("name", ["\0", "gpu-7\0", "\ud800", "x" * 100_000, "' OR 1=1 --"])
async def test_a_name_that_no_node_can_have_ends_no_drain_and_is_nobody_s_fault(
    tenancy: ActingTenancy, name: str
) -> None:
    drain = await tenancy.drain_node(NODE)
    with pytest.raises(NotFound):
        await tenancy.undrain_node(NodeId(name))
    assert await tenancy.list_node_drains() == [drain]


async def test_enrolments_and_removals_are_in_the_log_and_move_no_gateway(
    tenancy: ActingTenancy,
) -> None:
    epoch = await tenancy.directory.read_epoch()
    await tenancy.note_enrolment(NODE, GatewayId("gateway-1"), RegionId("weur"), "5c2f")
    await tenancy.note_removal(NODE, GatewayId("gateway-1"))
    removed, enrolled = await tenancy.list_audit_entries(AuditFilter())
    assert [enrolled.action, removed.action] == ["node.enrol", "node.remove"]
    assert enrolled.resource_id == removed.resource_id == NODE
    details = {"gateway_id": "gateway-1", "region": "weur", "key": "5c2f"}
    assert msgspec.json.decode(enrolled.details) == details
    assert await tenancy.directory.read_epoch() == epoch


async def test_an_api_token_s_actor_gets_no_further(tenancy: ActingTenancy) -> None:
    acting = tenancy.act_as(Actor(ActorKind.API_TOKEN, "a" * 32, AccountId("b" * 32)))
    for call in (
        acting.administration.drain_node(NODE),
        acting.administration.undrain_node(NODE),
        acting.administration.list_node_drains(),
        acting.administration.note_node_key(NODE, "k"),
        acting.administration.note_enrolment(NODE, GatewayId("g"), RegionId("weur"), "k"),
        acting.administration.note_removal(NODE, GatewayId("g")),
    ):
        with pytest.raises(Forbidden):
            await call
