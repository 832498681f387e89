"""The decision for one request: who answers, and who computes the prompt.

Pure. Joins both choices, and says of a node or a plan whether it would be one. Read next:
`gateway.routing.choose_node`, `gateway.routing.prefill_choice`.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from contracts.errors import ServiceError
from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from gateway.routing.choose_node import Draw, choose_node
from gateway.routing.cost import NOTHING_SENT
from gateway.routing.empty_choice import explain_empty_choice
from gateway.routing.filters import find_rejection
from gateway.routing.hand_over_meter import HandOverMeter
from gateway.routing.prefill_choice import choose_prefill
from gateway.routing.route_plan import (
    NO_HINTS,
    FleetState,
    Hints,
    NodeSnapshot,
    PrefillPlan,
    Rejection,
    RouteNeed,
    RoutePlan,
    is_lawful,
    keep_only,
)
from gateway.routing.search import Search

MAX_EXPLAINED: Final = 256
"""Nodes that are looked at to explain why nobody was chosen."""


def choose_route(
    state: FleetState,
    need: RouteNeed,
    draw: Draw,
    hand_over: HandOverMeter,
    hints: Hints = NO_HINTS,
    at: NodeId | None = None,
) -> RoutePlan:
    """Both endpoints: the node that answers, `at` if it is given, and, where that is better,
    another for the prompt.

    Raises: what `choose_node` raises.
    """
    candidates = state if at is None else keep_only(state, at)
    plan = choose_node(candidates, need, draw, hints)
    prefill = choose_prefill(state, need, plan, hand_over, draw, hints)
    return plan if prefill is None else msgspec.structs.replace(plan, prefill=prefill)


def choose_next_prefill(
    state: FleetState,
    need: RouteNeed,
    plan: RoutePlan,
    draw: Draw,
    hand_over: HandOverMeter,
    hints: Hints,
) -> PrefillPlan | None:
    """The next node for the prompt of a request that `plan` has placed; None: its own node does no
    worse.
    """
    return choose_prefill(state, need, plan, hand_over, draw, hints)


def explain_unoffered(state: FleetState, need: RouteNeed) -> ServiceError:
    """Why nobody can be chosen for a model that no node has ever offered."""
    return explain_empty_choice(state, need, set())


def list_rejections(state: FleetState, need: RouteNeed) -> Sequence[tuple[NodeId, Rejection]]:
    """Why each node that is passed over would be, of `MAX_EXPLAINED` nodes at most: clients ask for
    this, and a fleet may have thousands. Those with the model in regions that are allowed come
    first.
    """
    search = Search(state, need, NO_HINTS)
    lawful = (
        node_id
        for ring in (*state.rings, *state.prefill_rings)
        if need.may_use(ring.region)
        for node_id in ring.node_ids
    )
    for node_id in chain(lawful, state.nodes):
        if search.num_seen == MAX_EXPLAINED:
            break
        search.look_at(node_id, 0.0)
    return search.rejected


def may_answer(state: FleetState, node_id: NodeId, need: RouteNeed) -> bool:
    """True for a node in order, and with room, that is there for answers."""
    node = state.nodes[node_id]
    sent = state.sent.get((node_id, need.model), NOTHING_SENT)
    return (
        node.role is not NodeRole.PREFILL
        and node_id not in state.troubled
        and find_rejection(node, sent, need, state.bounds, state.now_s) is None
    )


def has_one_in_order(state: FleetState, need: RouteNeed) -> bool:
    """True where some node of `state.rings` that the law allows is in no trouble, full or not."""
    return any(
        node_id not in state.troubled and is_lawful(state.nodes[node_id], need)
        for ring in state.rings
        for node_id in ring.node_ids
    )


def is_still_lawful(nodes: Mapping[NodeId, NodeSnapshot], plan: RoutePlan, need: RouteNeed) -> bool:
    """True when neither the answer nor its prompt would go to a node that has gone, or that the law
    does not allow by now.
    """
    wanted = [plan.node_id, *([] if plan.prefill is None else [plan.prefill.node_id])]
    found = [nodes.get(node_id) for node_id in wanted]
    return all(node is not None and is_lawful(node, need) for node in found)
