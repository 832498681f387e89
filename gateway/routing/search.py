"""The nodes that a choice has looked at, and which of them is the best.

Pure. Owns the comparison: seconds of waiting plus seconds of work, of which the latter count for
more the busier the nodes are. Work that a cache would have saved holds up not this request alone:
where prefill is in use for the share `u` of the time, one more second of it keeps requests waiting
for 1/(1-u) seconds until the queue is as it would have been. The share is taken from those nodes
that are looked at: how many had prompts to compute when they last reported. Answers share a step by
what they hold, so that a node's share counts by its tokens where all nodes tell of theirs.
Read next: `gateway.routing.choose_node`, `gateway.routing.cost`.
"""

from typing import Final

import msgspec

from contracts.ids import NodeId
from gateway.routing.cost import (
    NOTHING_SENT,
    count_queued_tokens,
    count_sharing,
    estimate_opening_s,
    estimate_wait_s,
    estimate_wake_s,
    estimate_work_s,
    measure_load_tokens,
    tells_held,
)
from gateway.routing.filters import find_rejection, find_unready
from gateway.routing.route_plan import (
    LAST_RESORTS,
    TROUBLES,
    FleetState,
    Hints,
    Rejection,
    RouteBounds,
    RouteNeed,
    estimate_cached_tokens,
)

MAX_LOOKED_AT: Final = 8
"""Nodes of the nearest region that are all looked at; of more, so many are drawn."""
MAX_LOAD_RATIO: Final = 1.1
"""How far above the mean the load of a session's node may be before the session moves on."""


class Candidate(msgspec.Struct, frozen=True):
    """A node that comes into question. Units: seconds, tokens."""

    node_id: NodeId
    is_last_resort: bool
    wait_s: float
    """Before and beside the request's own prompt, the way there included."""
    work_s: float
    """For what is to be computed of the prompt."""
    savable_s: float
    """Of the wait, what an idle node like this one would save."""
    num_cached: int
    num_load: int
    """Tokens that it holds or has to compute."""
    num_sharing: int
    """Requests that it has."""
    opening_s: float
    """What the first tokens of the answer take of its decode, for each of those."""
    is_idle: bool
    """It had no prompt to compute, as it said last."""


class Search:
    """What one choice has seen."""

    __slots__ = ("_all_tell", "_now_s", "_seen", "_state", "found", "hints", "need", "rejected")

    def __init__(self, state: FleetState, need: RouteNeed, hints: Hints, now_s: float) -> None:
        """Nothing seen yet."""
        self._state = state
        self.need = need
        self.hints = hints
        self._now_s = now_s
        self._seen: set[NodeId] = set()
        self._all_tell = True
        """Those that are found say what their requests hold."""
        self.found: list[Candidate] = []
        self.rejected: list[tuple[NodeId, Rejection]] = []

    @property
    def num_seen(self) -> int:
        """Nodes looked at."""
        return len(self._seen)

    def look_at(self, node_id: NodeId, latency_s: float, bounds: RouteBounds) -> None:
        """Weighs a node, once."""
        if node_id in self._seen:
            return
        self._seen.add(node_id)
        node, need = self._state.nodes[node_id], self.need
        sent = self._state.sent.get((node_id, need.model), NOTHING_SENT)
        reason = find_rejection(node, sent, need, bounds, self._now_s)
        wake_s = None
        if reason is None:
            wake_s = node.find_wake_s(need.model)
            reason = self._state.troubled.get(node_id) or find_unready(node, wake_s)
        if reason is not None:
            self.rejected.append((node_id, reason))
            if reason not in LAST_RESORTS:
                return
        load = node.loads[need.model]
        self._all_tell = self._all_tell and tells_held(load)
        num_cached = estimate_cached_tokens(need, self.hints, node_id)
        opening_s = estimate_opening_s(load, need)
        wait_s = estimate_wait_s(load, sent, need.num_prompt_tokens - num_cached, opening_s)
        wait_s += latency_s + estimate_wake_s(wake_s)
        self.found.append(
            Candidate(
                node_id,
                reason is not None,
                wait_s,
                estimate_work_s(load, need.num_prompt_tokens - num_cached),
                wait_s - opening_s,
                num_cached,
                measure_load_tokens(load, sent),
                count_sharing(load, sent),
                opening_s,
                not count_queued_tokens(load),
            )
        )

    def should_wait(self, best: Candidate) -> bool:
        """True when the best node is in trouble, and one in order is merely full."""
        reasons = dict(self.rejected)
        return reasons.get(best.node_id) in TROUBLES and Rejection.SATURATED in reasons.values()

    def is_enough(self, latency_s: float) -> bool:
        """True when nodes that are `latency_s` away, or farther, cannot be better: the wait that
        even an idle one would save is shorter than the way there. A session's own node is left only
        for more than what it has of the prompt is worth, which the others have not.
        """
        pinned = self.find_pinned() if len(self._seen) >= MAX_LOOKED_AT else None
        if pinned is not None:
            load = self._state.nodes[pinned.node_id].loads[self.need.model]
            usable = [one for one in self.found if not one.is_last_resort]
            worth_s = measure_dearness(usable) * estimate_work_s(load, pinned.num_cached)
            return pinned.savable_s <= latency_s + worth_s
        best = self.find_best()
        return best is not None and best.savable_s <= latency_s

    def find_best(self) -> Candidate | None:
        """The one with the least cost so far, the first of equals; last resorts only where there is
        nobody else.
        """
        if len(self.found) == 1:
            return self.found[0]
        usable = [one for one in self.found if not one.is_last_resort] or self.found
        dearness = measure_dearness(usable)
        per_token = measure_sharing_per_token(usable) if self._all_tell else 0.0
        best, least_s = None, float("inf")
        for one in usable:
            cost_s = one.wait_s + dearness * one.work_s
            if per_token:  # the wait goes by the number of requests
                cost_s += one.opening_s * (per_token * one.num_load - one.num_sharing)
            if best is None or cost_s < least_s:
                best, least_s = one, cost_s
        return best

    def find_pinned(self) -> Candidate | None:
        """The session's node if that is in order, and not much busier than the others."""
        pinned = self.hints.pinned
        if pinned is None:
            return None
        usable = [one for one in self.found if not one.is_last_resort]
        own = self.need.num_prompt_tokens  # the session's own prompt alone overloads nobody
        for one in usable:
            if one.node_id == pinned:
                limit = MAX_LOAD_RATIO * sum(each.num_load for each in usable) / len(usable) + own
                return one if one.num_load <= limit else None
        return None


def measure_dearness(nodes: list[Candidate]) -> float:
    """For how many seconds a second of work keeps requests waiting, as far as `nodes` tell.

    1/(1-u), where u is the share that has prompts to compute; by Laplace's rule of succession,
    since a few nodes are a small sample.
    """
    num_idle = 0
    for one in nodes:
        num_idle += one.is_idle
    return (len(nodes) + 2) / (num_idle + 1)


def measure_sharing_per_token(nodes: list[Candidate]) -> float:
    """Requests for each token that `nodes` hold, on average: by that a node with few large ones is
    as busy as one with many small ones. 0 where nobody holds any.
    """
    num_requests = num_tokens = 0
    for one in nodes:
        num_requests += one.num_sharing
        num_tokens += one.num_load
    return num_requests / num_tokens if num_tokens > 0 else 0.0
