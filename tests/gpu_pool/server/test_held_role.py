"""Which plans give a node another role, and which do not."""

import pytest

from contracts.ids import BootId, NodeId
from contracts.node_roles import NodeRole, RoleWish
from contracts.placement import PlacementPlan
from gpu_pool.server.held_role import HeldRole

BOTH = (NodeRole.PREFILL, NodeRole.DECODE)


def create_plan(
    number: int, role: NodeRole | None, *, is_suggestion: bool = False
) -> PlacementPlan:
    """A plan that says this of the role, or nothing."""
    wish = None if role is None else RoleWish(role=role, is_suggestion=is_suggestion)
    return PlacementPlan(
        node_id=NodeId("n"), boot_id=BootId("b"), number=number, targets=(), role=wish
    )


def test_a_role_is_taken_and_an_older_plan_overtaken() -> None:
    held = HeldRole(NodeRole.DECODE, BOTH)
    assert held.take_plan(create_plan(2, NodeRole.PREFILL))
    assert held.current is NodeRole.PREFILL
    assert not held.take_plan(create_plan(1, NodeRole.DECODE))
    assert not held.take_plan(create_plan(3, None))
    assert not held.take_plan(create_plan(4, NodeRole.PREFILL))
    assert held.current is NodeRole.PREFILL
    assert held.take_plan(create_plan(5, NodeRole.DECODE))  # the control
    assert held.current is NodeRole.DECODE


def test_a_suggestion_is_told_and_taken_back_and_changes_nothing() -> None:
    held = HeldRole(NodeRole.DECODE, BOTH)
    assert held.take_plan(create_plan(1, NodeRole.PREFILL, is_suggestion=True))
    assert (held.current, held.suggested) == (NodeRole.DECODE, NodeRole.PREFILL)
    assert held.take_plan(create_plan(2, NodeRole.DECODE))
    assert (held.current, held.suggested) == (NodeRole.DECODE, None)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (HeldRole(NodeRole.DECODE), NodeRole.PREFILL),
        (HeldRole(), NodeRole.PREFILL),
        (HeldRole(NodeRole.DECODE, BOTH), NodeRole.MIXED),
    ],
)
def test_a_role_that_operators_have_not_named_is_not_taken(
    held: HeldRole, wanted: NodeRole
) -> None:
    before = held.current
    assert not held.take_plan(create_plan(1, wanted))
    assert held.current is before
