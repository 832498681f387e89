"""The hard filters that a node has to pass, in their fixed order, the law first.

Pure. Owns which reason is given; whether a node is any good is not asked here.
Read next: `gateway.routing.search`, `gateway.routing.empty_choice`.
"""

from contracts.node_roles import NodeRole
from gateway.routing.pace import Pace
from gateway.routing.room import count_room
from gateway.routing.route_plan import (
    NodeSnapshot,
    Rejection,
    RouteBounds,
    RouteNeed,
    Sent,
    is_lawful,
    takes_adapter,
)


def find_rejection(
    node: NodeSnapshot, sent: Sent, need: RouteNeed, bounds: RouteBounds, now_s: float
) -> Rejection | None:
    """The first hard filter that `node` fails, None when it passes all."""
    if node.region is None:
        return Rejection.UNKNOWN
    if not is_lawful(node, need):
        return Rejection.RESIDENCY
    load, card = node.loads.get(need.model), node.cards.get(need.model)
    if load is None or card is None:
        return Rejection.MODEL_ABSENT
    if need.adapter is not None and not takes_adapter(card, need):
        return Rejection.ADAPTER
    if need.revision is not None and card.revision != need.revision:
        return Rejection.OTHER_REVISION
    if card.max_prompts < need.num_prompts:
        return Rejection.PROMPTS
    if need.has_bad_words and not card.takes_bad_words:
        return Rejection.BAD_WORDS
    if card.context_window < need.min_context:
        return Rejection.CONTEXT
    if need.leaves_nothing and card.may_keep:
        return Rejection.RETENTION
    if not node.is_connected:
        return Rejection.UNREACHABLE
    if node.is_leaving:
        return Rejection.DRAINING
    if now_s - node.reported_s > bounds.report_ttl_s:
        return Rejection.REPORT_STALE
    if count_room(load, sent, bounds) < 1:
        return Rejection.SATURATED
    if need.rejects_busy and load.num_waiting:
        return Rejection.BUSY
    return Rejection.TRIED if node.node_id in need.tried else None


def find_unready(node: NodeSnapshot, pace: Pace) -> Rejection | None:
    """The filters that come last and give way."""
    if not pace.can_wake:
        return Rejection.MODEL_NOT_READY
    return Rejection.PREFILL_ONLY if node.role is NodeRole.PREFILL else None
