"""Which node serves a request: hard filters in a fixed order, then the least cost in seconds.

Pure: no clock, no I/O, no state. Owns the order of the filters, the search and its reasons.
Regions are searched nearest first and only where the law allows; the search ends where the way is
longer than all that the best node so far would make the request wait: a farther one saves no more.
Read next: `gateway.routing.cost`, `gateway.routing.empty_choice`, `gateway.routing.fleet`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from contracts.errors import InvariantBroken
from contracts.fleet import NodeRole
from contracts.ids import NodeId
from gateway.routing.cost import (
    NOTHING_SENT,
    estimate_cost_s,
    estimate_own_s,
    estimate_wake_s,
    measure_load_tokens,
)
from gateway.routing.empty_choice import explain_empty_choice, is_lawful
from gateway.routing.room import count_room
from gateway.routing.route_plan import (
    LAST_RESORTS,
    NO_HINTS,
    TROUBLES,
    FleetState,
    Hints,
    NodeSnapshot,
    Pick,
    Rejection,
    RouteBounds,
    RouteNeed,
    RoutePlan,
    Sent,
    estimate_cached_tokens,
)

MAX_LOOKED_AT: Final = 8
"""Nodes of a region that are all looked at; of more, so many are drawn."""
MAX_LOAD_RATIO: Final = 1.25
"""How far above the mean the load of a session's node may be before the session moves on."""
Draw = Callable[[int], int]
"""A number below the one given, at random."""


class _Search:
    """The best node so far."""

    __slots__ = (
        "_hints",
        "_loads",
        "_need",
        "_now_s",
        "_seen",
        "_state",
        "best",
        "rejected",
        "savable_s",
    )

    def __init__(self, state: FleetState, need: RouteNeed, hints: Hints, now_s: float) -> None:
        """Nothing seen yet."""
        self._state = state
        self._need = need
        self._hints = hints
        self._now_s = now_s
        self._seen: dict[NodeId, tuple[bool, float] | None] = {}
        """What each costs; None: it does not come into question."""
        self._loads: list[int] = []
        self.best: NodeId | None = None
        self.savable_s = float("inf")
        """What an idle node like the best one would save, the way there included."""
        self.rejected: list[tuple[NodeId, Rejection]] = []

    @property
    def num_seen(self) -> int:
        """Nodes looked at."""
        return len(self._seen)

    @property
    def should_wait(self) -> bool:
        """True when the best node is in trouble, and one in order is merely full."""
        reasons = dict(self.rejected)
        is_troubled = self.best is not None and reasons.get(self.best) in TROUBLES
        return is_troubled and Rejection.SATURATED in reasons.values()

    def look_at(self, node_id: NodeId, latency_s: float, bounds: RouteBounds) -> None:
        """Weighs a node, once."""
        if node_id in self._seen:
            return
        node, need = self._state.nodes[node_id], self._need
        sent = self._state.sent.get((node_id, need.model), NOTHING_SENT)
        reason = find_rejection(node, sent, need, bounds, self._now_s)
        reason = reason or self._state.troubled.get(node_id) or _find_unready(node, need)
        if reason is not None:
            self.rejected.append((node_id, reason))
            if reason not in LAST_RESORTS:
                self._seen[node_id] = None
                return
        load = node.loads[need.model]
        cached = estimate_cached_tokens(need, self._hints, node_id)
        away_s = latency_s + estimate_wake_s(node.find_wake_s(need.model))
        cost = (reason is not None, estimate_cost_s(load, sent, need, cached, away_s))
        self._seen[node_id] = cost
        if reason is None:
            self._loads.append(measure_load_tokens(load, sent))
        best = None if self.best is None else self._seen[self.best]
        if best is None or cost < best:
            self.best = node_id
            if reason is None:
                own_s = estimate_own_s(load, need, cached)
                self.savable_s = cost[1] - own_s

    def may_keep(self, node_id: NodeId) -> bool:
        """True when a session may go there: in order, and not much busier than the others."""
        cost = self._seen.get(node_id)
        if cost is None or cost[0]:
            return False
        load = self._state.nodes[node_id].loads[self._need.model]
        sent = self._state.sent.get((node_id, self._need.model), NOTHING_SENT)
        mean = sum(self._loads) / len(self._loads)
        own = self._need.num_prompt_tokens  # the session's own prompt alone overloads nobody
        return measure_load_tokens(load, sent) <= MAX_LOAD_RATIO * mean + own

    def get_cost_s(self, node_id: NodeId) -> float:
        """What a node costs that comes into question."""
        cost = self._seen[node_id]
        assert cost is not None
        return cost[1]


def choose_node(
    state: FleetState,
    need: RouteNeed,
    bounds: RouteBounds,
    now_s: float,
    draw: Draw,
    hints: Hints = NO_HINTS,
) -> RoutePlan:
    """The node with the least cost of those that pass every filter; the first of equals.

    Nodes that have failed lately or whose model is not ready are the last resort, the former not
    for a request that can wait for one that is merely full. `draw` picks whom to look at where a
    region has many.
    Raises: `ResidencyViolation`, `UnknownModel`, `ModelFailed`, `PoolSaturated`, `NoEndpoint`.
    """
    search = _Search(state, need, hints, now_s)
    if len(state.nodes) <= MAX_LOOKED_AT:
        _look_at_all(search, state, bounds)
    _look_at_hints(search, state, hints, bounds)
    for ring in state.rings:
        if search.savable_s <= ring.latency_s:
            break
        if need.allowed_regions is None or ring.region in need.allowed_regions:
            for node_id in draw_some(ring.node_ids, draw):
                search.look_at(node_id, ring.latency_s, bounds)
    if search.savable_s == float("inf"):  # the drawn ones are no good: look at every one
        _look_at_all(search, state, bounds)
    chosen, pick = search.best, Pick.COST
    if chosen is None or (need.may_wait and search.should_wait):
        raise explain_empty_choice(
            list(state.nodes.values()), need, {reason for _, reason in search.rejected}
        )
    if hints.pinned is not None and search.may_keep(hints.pinned):
        chosen, pick = hints.pinned, Pick.SESSION
    cached = estimate_cached_tokens(need, hints, chosen)
    node = state.nodes[chosen]
    if node.region is None or not is_lawful(node, need):
        raise InvariantBroken("The router left the regions that the account allows.")
    return RoutePlan(
        chosen,
        node.region,
        node.cards[need.model],
        node.num_reports,
        Pick.PREFIX if pick is Pick.COST and cached else pick,
        search.get_cost_s(chosen),
        cached,
        need.num_prompt_tokens - cached,
        search.num_seen,
        tuple(search.rejected),
    )


def _look_at_hints(search: _Search, state: FleetState, hints: Hints, bounds: RouteBounds) -> None:
    """Weighs the nodes that have the prompt or the session, wherever they are."""
    wanted = [*hints.holders] if hints.pinned is None else [*hints.holders, hints.pinned]
    if wanted:
        latencies = {ring.region: ring.latency_s for ring in state.rings}
        for node_id in wanted:
            node = state.nodes.get(node_id)
            region = None if node is None else node.region
            if region is not None and region in latencies:
                search.look_at(node_id, latencies[region], bounds)


def _look_at_all(search: _Search, state: FleetState, bounds: RouteBounds) -> None:
    """Weighs every node there is, also those of no known region and without the model."""
    latencies = {ring.region: ring.latency_s for ring in state.rings}
    for node in state.nodes.values():
        latency_s = 0.0 if node.region is None else latencies.get(node.region, 0.0)
        search.look_at(node.node_id, latency_s, bounds)


def draw_some(node_ids: Sequence[NodeId], draw: Draw) -> Sequence[NodeId]:
    """All of a few nodes, or a few of many; some may be drawn twice."""
    count = len(node_ids)
    if count <= MAX_LOOKED_AT:
        return node_ids
    return [node_ids[draw(count)] for _ in range(MAX_LOOKED_AT)]


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
    if need.revision is not None and card.revision != need.revision:
        return Rejection.OTHER_REVISION
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


def _find_unready(node: NodeSnapshot, need: RouteNeed) -> Rejection | None:
    """The filters that come last and give way."""
    if node.find_wake_s(need.model) is None:
        return Rejection.MODEL_NOT_READY
    return Rejection.PREFILL_ONLY if node.role is NodeRole.PREFILL else None
