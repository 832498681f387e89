"""Roles on the wire, between this version and those before it."""

from typing import Any

import msgspec

from contracts import wire
from contracts.fleet import NodeReport
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole, RoleWish
from contracts.placement import PlacementPlan, PlacementTarget, Tier

PLAN = PlacementPlan(
    node_id=NodeId("n"),
    boot_id=BootId("b"),
    number=1,
    targets=(PlacementTarget(name=ModelName("@a/b"), tier=Tier.GPU),),
)
WISHED = msgspec.structs.replace(PLAN, role=RoleWish(role=NodeRole.PREFILL))


class PlanBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as it was before roles were planned."""

    node_id: str
    boot_id: str
    number: int
    targets: tuple[PlacementTarget, ...]
    eviction_order: tuple[ModelName, ...] = ()


class StrictPlanBefore(PlanBefore, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As gateways' operator ports read it."""


class ReportBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a report that matters here, before nodes told which roles they may take."""

    node_id: str
    role: NodeRole = NodeRole.MIXED
    kv_endpoints: tuple[Any, ...] = ()


def test_a_wish_reaches_a_node() -> None:
    for plan in (PLAN, WISHED):
        frame = wire.encode_frame([(0, 0, wire.Place(plan))])
        (entry,) = wire.decode_frame(frame)
        assert wire.decode_to_node(entry.message) == wire.Place(plan)


def test_a_node_of_the_version_before_reads_the_plan_and_passes_the_wish_over() -> None:
    for plan in (PLAN, WISHED):
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=PlanBefore)
        assert (read.number, read.targets, read.eviction_order) == (1, PLAN.targets, ())


def test_a_gateway_of_the_version_before_takes_plans_that_say_nothing_of_roles() -> None:
    msgspec.json.decode(msgspec.json.encode(PLAN), type=StrictPlanBefore)
    try:  # the control, and why such a gateway is sent none with a wish
        msgspec.json.decode(msgspec.json.encode(WISHED), type=StrictPlanBefore)
    except msgspec.ValidationError:
        return
    raise AssertionError("a form that forbids unknown fields has taken one")


def test_plans_and_reports_of_the_version_before_are_read_here() -> None:
    before = PlanBefore(node_id="n", boot_id="b", number=1, targets=PLAN.targets)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=PlacementPlan) == PLAN
    report = NodeReport(
        node_id=NodeId("n"),
        boot_id=BootId("b"),
        region=RegionId("weur"),
        jurisdiction="eu",
        is_draining=False,
        models=(),
        loads=(),
        role=NodeRole.DECODE,
        roles=(NodeRole.PREFILL, NodeRole.DECODE),
        suggested_role=NodeRole.PREFILL,
    )
    content = msgspec.msgpack.encode(report)
    assert msgspec.msgpack.decode(content, type=ReportBefore).role is NodeRole.DECODE
    fields = msgspec.msgpack.decode(content)
    del fields["roles"], fields["suggested_role"]
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=NodeReport)
    assert (old.role, old.roles, old.suggested_role) == (NodeRole.DECODE, (), None)
