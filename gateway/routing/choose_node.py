"""Which node serves a request: hard filters in a fixed order, then the least cost in seconds.

Pure: no clock, no I/O, no state. Owns where is looked, in which order, and when that is enough.
Regions are searched nearest first and only where the law allows; the search ends where the way is
longer than all that the best node so far would make the request wait: a farther one saves hardly
more.
Read next: `gateway.routing.search` (the comparison), `gateway.routing.fleet`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from contracts.errors import InvariantBroken
from contracts.ids import NodeId
from gateway.routing.empty_choice import explain_empty_choice
from gateway.routing.region_policy import list_spill_over
from gateway.routing.route_plan import (
    NO_HINTS,
    FleetState,
    Hints,
    Pick,
    Ring,
    RouteNeed,
    RoutePlan,
    is_lawful,
)
from gateway.routing.search import MAX_LOOKED_AT, Candidate, Search

_MAX_NEAR: Final = 4
"""Rings that are all visited while the best node's wait is longer than the way there."""
_MOST_LOOKED_AT: Final = 256
"""Nodes of a preferred group that are looked at before a request goes on, and of all that are awake
before another is woken: where so many are full, it is, and the next request looks at others.
"""
_FEW: Final = 2
"""Nodes that are looked at of any ring but the first."""
Draw = Callable[[int], int]
"""A number below the one given, at random."""


def choose_node(
    state: FleetState,
    need: RouteNeed,
    draw: Draw,
    hints: Hints = NO_HINTS,
) -> RoutePlan:
    """The node with the least cost of those that pass every filter; the first of equals.

    Where regions are preferred, only those of the first group that has a node in order, and with
    room, are compared. Nodes that have failed lately or whose model is not ready are the last
    resort, the former not for a request that can wait for one that is merely full. `draw` picks
    whom to look at where a region has many.
    Raises: `ResidencyViolation`, `UnknownModel`, `ModelFailed`, `AdapterUnsupported`,
    `UnsupportedFeature`, `PoolSaturated`, `NoEndpoint`.
    """
    if not need.preferred:
        return _choose_anywhere(state, need, draw, hints)
    for num_spilled, rings in _list_preferred_rings(state, need):
        plan = _choose_preferred(state, need, rings, draw, hints)
        if plan is not None:
            return msgspec.structs.replace(plan, num_spilled=num_spilled)
    plan = _choose_anywhere(state, need, draw, hints)
    return msgspec.structs.replace(plan, num_spilled=len(need.preferred))


def _list_preferred_rings(
    state: FleetState, need: RouteNeed
) -> Iterator[tuple[int, Sequence[Ring]]]:
    """The rings of each group of preferred regions that has some, and how many groups come before
    it. What is in a group before had no room: nobody looks there twice.
    """
    left = {ring.region: place for place, ring in enumerate(state.rings)}
    for num_before, group in enumerate(list_spill_over(need)):
        places = sorted(left.pop(region) for region in left.keys() & group)
        if places:
            yield num_before, [state.rings[place] for place in places]


def _choose_preferred(
    state: FleetState,
    need: RouteNeed,
    rings: Sequence[Ring],
    draw: Draw,
    hints: Hints,
) -> RoutePlan | None:
    """The best node in order, and with room, in `rings`; None where there is none."""
    latencies_s = {ring.region: ring.latency_s for ring in rings}
    state = msgspec.structs.replace(state, rings=rings, latencies_s=latencies_s)
    search = Search(state, need, hints)
    _look_around(search, state, draw)
    best = search.find_best()
    if best is None or best.is_last_resort:  # the drawn ones are no good: look at many more
        _look_at_many(search, [(ring, ring.node_ids) for ring in rings], draw)
        best = search.find_best()
    if best is not None and not best.is_last_resort and not best.pace.is_awake:
        _look_at_awake(search, state, draw)
        best = search.find_best()
    if best is None or best.is_last_resort:
        return None
    return _decide(state, need, best, search)


def _choose_anywhere(
    state: FleetState,
    need: RouteNeed,
    draw: Draw,
    hints: Hints,
) -> RoutePlan:
    """The best node that is allowed, if need be a last resort. Raises: what `choose_node` does."""
    search = Search(state, need, hints)
    if len(state.nodes) <= MAX_LOOKED_AT:
        _look_at_all(search, state)
    else:
        _look_around(search, state, draw)
    best = search.find_best()
    if best is None and not _is_offered(state, need):
        raise explain_empty_choice(state, need, set())
    if best is None or best.is_last_resort:  # the drawn ones are no good: look at every one
        _look_at_all(search, state)
        best = search.find_best()
    elif not best.pace.is_awake:  # those that were drawn have no room: perhaps others have
        _look_at_awake(search, state, draw)
        best = search.find_best()
    if best is None or (need.may_wait and search.should_wait(best)):
        raise explain_empty_choice(state, need, {reason for _, reason in search.rejected})
    return _decide(state, need, best, search)


def _decide(state: FleetState, need: RouteNeed, best: Candidate, search: Search) -> RoutePlan:
    """The best of what was seen, unless the session has a node of its own."""
    pinned = search.find_pinned()
    if pinned is not None:
        best, pick = pinned, Pick.SESSION
    else:
        pick = Pick.PREFIX if best.num_cached else Pick.COST
    return _create_plan(state, need, best, pick, search)


def _is_offered(state: FleetState, need: RouteNeed) -> bool:
    """False where no node that the law allows has ever offered the model: clients can make up
    models and regions, which must not cost a look at each of thousands of nodes.
    """
    return any(need.may_use(ring.region) for ring in (*state.rings, *state.prefill_rings))


def _look_around(search: Search, state: FleetState, draw: Draw) -> None:
    """Weighs nodes until those that are left can be no better."""
    _look_at_hints(search, state, search.hints)
    for ring, count in _list_stops(state.rings, search.need, draw):
        if search.is_enough(ring.latency_s):
            return
        for node_id in _draw_of(ring, draw, count):
            search.look_at(node_id, ring.latency_s)


def _draw_of(ring: Ring, draw: Draw, count: int) -> Iterator[NodeId]:
    """Some nodes of the ring: of those that are awake, which may be few of many, and where there
    are others, of all.
    """
    num_awake = len(ring.awake)
    if num_awake:
        yield from draw_some(ring.awake, draw, count)
    if num_awake < len(ring.node_ids):
        yield from draw_some(ring.node_ids, draw, count)


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
        best.delay_s + best.work_s,
        best.num_cached,
        need.num_prompt_tokens - best.num_cached,
        search.num_seen,
        tuple(search.rejected),
    )


def _list_stops(rings: Sequence[Ring], need: RouteNeed, draw: Draw) -> Iterator[tuple[Ring, int]]:
    """Where to look, nearest first, and at how many nodes: every ring that is near, and farther
    out one for each doubling of their number, so that the search stays short in a large fleet.
    """
    num_near = 0
    for place, ring in enumerate(rings):
        if need.may_use(ring.region):
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


def _look_at_hints(search: Search, state: FleetState, hints: Hints) -> None:
    """Weighs the nodes that have the prompt or the session, wherever they are."""
    wanted = hints.holders if hints.pinned is None else (*hints.holders, hints.pinned)
    for node_id in wanted:
        node = state.nodes.get(node_id)
        if node is not None and node.region is not None:
            latency_s = state.latencies_s.get(node.region)
            if latency_s is not None:
                search.look_at(node_id, latency_s)


def _look_at_awake(search: Search, state: FleetState, draw: Draw) -> None:
    """Weighs many of those that are awake where the law allows it."""
    rings = [ring for ring in state.rings if ring.awake and search.need.may_use(ring.region)]
    _look_at_many(search, [(ring, ring.awake) for ring in rings], draw)


def _look_at_many(
    search: Search, pools: Sequence[tuple[Ring, Sequence[NodeId]]], draw: Draw
) -> None:
    """Weighs as many of these nodes as are ever drawn, of each ring its part."""
    for ring, node_ids in pools:
        for node_id in draw_some(node_ids, draw, _MOST_LOOKED_AT // len(pools) + 1):
            search.look_at(node_id, ring.latency_s)


def _look_at_all(search: Search, state: FleetState) -> None:
    """Weighs every node there is, also those of no known region and without the model."""
    for node in state.nodes.values():
        latency_s = 0.0 if node.region is None else state.latencies_s.get(node.region, 0.0)
        search.look_at(node.node_id, latency_s)


def draw_some(
    node_ids: Sequence[NodeId], draw: Draw, max_drawn: int = MAX_LOOKED_AT
) -> Sequence[NodeId]:
    """All of a few nodes, or a few of many; some may be drawn twice."""
    count = len(node_ids)
    if count <= max_drawn:
        return node_ids
    return [node_ids[draw(count)] for _ in range(max_drawn)]
