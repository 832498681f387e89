"""Whether another node computes the prompt, and which: the second endpoint of a route.

Pure. The node that answers is chosen first. Compared is what either way costs in seconds that
streams wait: a prompt computed beside running answers holds up every one of them, one that comes
from elsewhere waits for that node's queue and for the way of its blocks. So the length below which
a hand-over does not pay follows from what was measured, and there is no threshold to be set.
Read next: `gateway.routing.hand_over_meter`, `gateway.routing.choose_node`.
"""

from typing import Final

from contracts.errors import InvariantBroken
from contracts.ids import NodeId
from contracts.kv_transfer import KvEndpoint
from contracts.node_roles import NodeRole
from gateway.routing.choose_node import Draw, draw_some
from gateway.routing.cost import NOTHING_SENT
from gateway.routing.filters import find_rejection
from gateway.routing.hand_over_meter import HandOverMeter
from gateway.routing.region_policy import find_bounds_beside
from gateway.routing.route_plan import (
    NO_HINTS,
    FleetState,
    Hints,
    NodeSnapshot,
    PrefillPlan,
    Ring,
    RouteNeed,
    RoutePlan,
    estimate_cached_tokens,
    is_lawful,
)

_PAUSE_S: Final = 0.025
_LEAST_PAUSE_TOKENS: Final = 256
"""How long answers are interrupted at a time, or for how much of a prompt where that takes longer:
what nodes keep to unless their settings say otherwise.
"""
_LONG_PAUSE_S: Final = 1.0
"""An answer that stops for so long is waited for as a first token is; shorter pauses are felt less,
in proportion, since text is read slower than it is made.
"""


def choose_prefill(
    state: FleetState,
    need: RouteNeed,
    plan: RoutePlan,
    hand_over: HandOverMeter,
    draw: Draw,
    hints: Hints = NO_HINTS,
) -> PrefillPlan | None:
    """The node whose blocks would be at the plan's node soonest; None when that had better compute
    the prompt itself, or has to.
    """
    if not need.may_move or not state.prefill_rings:
        return None
    node = state.nodes[plan.node_id]
    target = node.kv_endpoints.get(need.model)
    if target is None or need.model not in node.loads:  # it may have reported since it was chosen
        return None
    best = None
    least_s = _estimate_here_s(state, need, plan)
    moved_s = hand_over.estimate_s(need.num_prompt_tokens, state.now_s)
    regions = find_bounds_beside(need, plan.region)
    for ring in state.prefill_rings:
        if ring.latency_s + moved_s >= least_s:
            break
        if regions is not None and ring.region not in regions:
            continue
        looked_at = (*draw_some(ring.awake or ring.node_ids, draw), *_list_held(ring, hints))
        for node_id in dict.fromkeys(looked_at):
            node = state.nodes[node_id]
            endpoint = _find_endpoint(node, target)
            if endpoint is not None and _may_compute(state, node, need, plan):
                ends = endpoint, target
                found = _weigh(state, node, need, ring.latency_s + moved_s, hints, ends)
                if found.cost_s < least_s:
                    best, least_s = found, found.cost_s
    if best is not None and not is_lawful(state.nodes[best.node_id], need):
        raise InvariantBroken("The router left the regions that the account allows.")
    return best


def _list_held(ring: Ring, hints: Hints) -> list[NodeId]:
    """Nodes of the ring that are thought to have the prompt."""
    return [node_id for node_id in hints.prompt_holders if node_id in ring.node_ids]


def _find_endpoint(node: NodeSnapshot, target: KvEndpoint) -> KvEndpoint | None:
    """Where `node` would export blocks that can be read at `target`."""
    found = node.kv_endpoints.get(target.model)
    if found is None or (found.engine, found.layout) != (target.engine, target.layout):
        return None
    return found


def _may_compute(
    state: FleetState,
    node: NodeSnapshot,
    need: RouteNeed,
    plan: RoutePlan,
) -> bool:
    """True for a node in order that is there for prompts and has the very same weights."""
    if node.role is not NodeRole.PREFILL or node.node_id == plan.node_id:
        return False
    sent = state.sent.get((node.node_id, need.model), NOTHING_SENT)
    return (
        find_rejection(node, sent, need, state.bounds, state.now_s) is None
        and node.node_id not in state.troubled
        and node.cards[need.model].revision == plan.card.revision
        and node.loads[need.model].is_ready
    )


def _estimate_here_s(state: FleetState, need: RouteNeed, plan: RoutePlan) -> float:
    """What computing the prompt where it is answered costs: its own time there and, for as long as
    it takes, everybody's who is being answered, in pauses. What fits into the time of one step is
    not felt.
    """
    node = state.nodes[plan.node_id]
    load, pace = node.loads[need.model], node.find_pace(need.model)
    per_s = pace.prefill_per_s
    sent = state.sent.get((plan.node_id, need.model), NOTHING_SENT)
    waited_s = (pace.num_queued + sent.num_tokens) / per_s
    step_s = load.decode_step_s or load.num_running / pace.decode_per_s
    num_felt = max(plan.num_new_tokens - step_s * per_s, 0.0)
    pause_s = min(num_felt, max(_LEAST_PAUSE_TOKENS, _PAUSE_S * per_s)) / per_s
    share_felt = min(pause_s / _LONG_PAUSE_S, 1.0)
    return waited_s + (plan.num_new_tokens + share_felt * num_felt * load.num_running) / per_s


def _weigh(
    state: FleetState,
    node: NodeSnapshot,
    need: RouteNeed,
    away_s: float,
    hints: Hints,
    ends: tuple[KvEndpoint, KvEndpoint],
) -> PrefillPlan:
    """What it costs to compute the prompt at `node`, whose way here takes `away_s`."""
    pace, card = node.find_pace(need.model), node.cards[need.model]
    num_cached = estimate_cached_tokens(need, hints, node.node_id)
    num_new = max(need.num_prompt_tokens - num_cached, 1)
    sent = state.sent.get((node.node_id, need.model), NOTHING_SENT)
    num_before = pace.num_queued + sent.num_tokens
    cost_s = (num_before + num_new) / pace.prefill_per_s + away_s
    assert node.region is not None, "a node of no region passed the filters"
    return PrefillPlan(
        node.node_id, node.region, card, node.num_reports, cost_s, num_cached, num_new, *ends
    )
