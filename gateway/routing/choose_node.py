"""Which node serves a request: hard filters in a fixed order, then the least cost in seconds.

Pure: no clock, no I/O, no state. Owns where is looked, in which order, and when that is enough.
Regions are searched nearest first and only where the law allows; the search ends where the way is
longer than all that the best node so far would make the request wait: a farther one saves no more.
Read next: `gateway.routing.search` (the comparison), `gateway.routing.fleet`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from contracts.errors import InvariantBroken
from contracts.ids import NodeId
from gateway.routing.empty_choice import explain_empty_choice, is_lawful
from gateway.routing.route_plan import (
    NO_HINTS,
    FleetState,
    Hints,
    Pick,
    Ring,
    RouteBounds,
    RouteNeed,
    RoutePlan,
)
from gateway.routing.search import MAX_LOOKED_AT, Candidate, Search

_MAX_NEAR: Final = 4
"""Rings that are all visited while the best node's wait is longer than the way there."""
_FEW: Final = 2
"""Nodes that are looked at of any ring but the first."""
Draw = Callable[[int], int]
"""A number below the one given, at random."""


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
    search = Search(state, need, hints, now_s)
    is_small = len(state.nodes) <= MAX_LOOKED_AT
    if is_small:
        look_at_all(search, state, bounds)
    rings = state.rings
    if not is_small or len(rings) != 1 or len(rings[0].node_ids) > 1:  # else there is but one
        _look_around(search, state, bounds, draw)
    best = search.find_best()
    if best is None or best.is_last_resort:  # the drawn ones are no good: look at every one
        look_at_all(search, state, bounds)
        best = search.find_best()
    if best is None or (need.may_wait and search.should_wait(best)):
        raise explain_empty_choice(
            list(state.nodes.values()), need, {reason for _, reason in search.rejected}
        )
    pinned = search.find_pinned()
    if pinned is not None:
        best, pick = pinned, Pick.SESSION
    else:
        pick = Pick.PREFIX if best.num_cached else Pick.COST
    return _create_plan(state, need, best, pick, search)


def _look_around(search: Search, state: FleetState, bounds: RouteBounds, draw: Draw) -> None:
    """Weighs nodes until those that are left can be no better."""
    _look_at_hints(search, state, search.hints, bounds)
    for ring, count in _list_stops(state.rings, search.need, draw):
        if search.is_enough(ring.latency_s):
            return
        for node_id in draw_some(ring.node_ids, draw, count):
            search.look_at(node_id, ring.latency_s, bounds)


def _create_plan(
    state: FleetState, need: RouteNeed, best: Candidate, pick: Pick, search: Search
) -> RoutePlan:
    """The decision, once more held against the law."""
    chosen = best.node_id
    node = state.nodes[chosen]
    if node.region is None or not is_lawful(node, need):
        raise InvariantBroken("The router left the regions that the account allows.")
    return RoutePlan(
        chosen,
        node.region,
        node.cards[need.model],
        node.num_reports,
        pick,
        best.wait_s + best.work_s,
        best.num_cached,
        need.num_prompt_tokens - best.num_cached,
        search.num_seen,
        tuple(search.rejected),
    )


def _list_stops(rings: Sequence[Ring], need: RouteNeed, draw: Draw) -> Iterator[tuple[Ring, int]]:
    """Where to look, nearest first, and at how many nodes: every ring that is near, and farther
    out one for each doubling of their number, so that the search stays short in a large fleet.
    """
    allowed = need.allowed_regions
    num_near = 0
    for place, ring in enumerate(rings):
        if allowed is None or ring.region in allowed:
            yield ring, _FEW if num_near else MAX_LOOKED_AT
            num_near += 1
            if num_near == _MAX_NEAR:
                yield from _list_far_stops(rings[place + 1 :], need, draw)
                return


def _list_far_stops(
    rings: Sequence[Ring], need: RouteNeed, draw: Draw
) -> Iterator[tuple[Ring, int]]:
    """One of the next two, one of the four behind them, and so on."""
    if need.allowed_regions is not None:
        allowed = frozenset(need.allowed_regions)
        rings = [ring for ring in rings if ring.region in allowed]
    first, width = 0, 2
    while first < len(rings):
        yield rings[first + draw(min(width, len(rings) - first))], _FEW
        first, width = first + width, width * 2


def _look_at_hints(search: Search, state: FleetState, hints: Hints, bounds: RouteBounds) -> None:
    """Weighs the nodes that have the prompt or the session, wherever they are."""
    wanted = hints.holders if hints.pinned is None else (*hints.holders, hints.pinned)
    for node_id in wanted:
        node = state.nodes.get(node_id)
        if node is not None and node.region is not None:
            latency_s = state.latencies_s.get(node.region)
            if latency_s is not None:
                search.look_at(node_id, latency_s, bounds)


def look_at_all(search: Search, state: FleetState, bounds: RouteBounds) -> None:
    """Weighs every node there is, also those of no known region and without the model."""
    for node in state.nodes.values():
        latency_s = 0.0 if node.region is None else state.latencies_s.get(node.region, 0.0)
        search.look_at(node.node_id, latency_s, bounds)


def draw_some(
    node_ids: Sequence[NodeId], draw: Draw, max_drawn: int = MAX_LOOKED_AT
) -> Sequence[NodeId]:
    """All of a few nodes, or a few of many; some may be drawn twice."""
    count = len(node_ids)
    if count <= max_drawn:
        return node_ids
    return [node_ids[draw(count)] for _ in range(max_drawn)]
