"""Whether a node has to be told of a plan: it is another one, or the node has strayed from it.

Pure. Requests wake models between plans, some so short that no round of the planner sees them: then
the plan is the same as before, and the node is not where it was. Read next:
`hot_standby.controller`.
"""

from collections.abc import Iterable
from typing import Final

from contracts.fleet_view import FleetView, NodeView
from contracts.placement import PlacementPlan, Tier

REMIND_MS: Final = 5000
"""A node that has strayed is told again after so long: it may be on its way, or unable to."""


def is_news(plan: PlacementPlan, views: Iterable[FleetView]) -> bool:
    """False where the node has been told the same already, in this life, by whomever, and has done
    it or not had the time yet.
    """
    nodes = [
        node
        for view in views
        for node in view.nodes
        if node.node_id == plan.node_id and node.boot_id == plan.boot_id
    ]
    told = [node.plan for node in nodes if node.plan is not None]
    newest = max(told, key=lambda each: each.number, default=None)
    if newest is None or newest.boot_id != plan.boot_id:
        return True
    if _list_words(newest) != _list_words(plan):
        return True
    if plan.number - newest.number < REMIND_MS:
        return False
    # A gateway that has lost the node knows only where weights were.
    heard = [node for node in nodes if node.is_connected]
    return bool(heard) and all(_has_strayed(node, plan) for node in heard)


def _list_words(plan: PlacementPlan) -> tuple[object, ...]:
    """What a plan says, whatever its number."""
    return plan.targets, plan.eviction_order, plan.role


def _has_strayed(node: NodeView, plan: PlacementPlan) -> bool:
    """True when it has not the role that it was given, or when a model should be on the device that
    is neither there nor on its way.
    """
    if plan.role is not None and not plan.role.is_suggestion and node.role is not plan.role.role:
        return True
    wanted = {target.name for target in plan.targets if target.tier is Tier.GPU}
    return any(
        placed.name in wanted and placed.tier is not Tier.GPU and not placed.is_moving
        for placed in node.placements
    )
