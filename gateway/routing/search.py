"""The nodes that a choice has looked at, and which of them is the best.

Pure. Owns the comparison: seconds of waiting plus seconds of work, of which the latter count for
more the busier the nodes are. Work that a cache would have saved holds up not this request alone,
but all that come before the queue is as it would have been. Answers share a step by what they hold,
so that a node's share counts by its tokens where all nodes tell of theirs. Others send to farther
nodes as well: who is a little less busy there is so no longer when one gets there.
Read next: `gateway.routing.choose_node`, `gateway.routing.cost`, `gateway.routing.dearness`,
`gateway.routing.farther`.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from contracts.ids import NodeId
from gateway.routing.cost import (
    NOTHING_SENT,
    count_held_tokens,
    count_opening_tokens,
    count_openings,
    count_places,
    estimate_wait_s,
    estimate_work_s,
)
from gateway.routing.dearness import LONGEST, measure_length, measure_others
from gateway.routing.farther import expect_queues, expect_waits, list_doubted
from gateway.routing.filters import find_rejection, find_unready
from gateway.routing.pace import Pace
from gateway.routing.route_plan import (
    FleetState,
    Hints,
    Rejection,
    RouteNeed,
    estimate_cached_tokens,
)

MAX_LOOKED_AT: Final = 8
"""Nodes of the nearest region that are all looked at; of more, so many are drawn, and as many of
those that are awake."""
MAX_LOAD_RATIO: Final = 1.1
"""How far above the mean the load of a session's node may be before the session moves on."""
_FAR_MORE: Final = 8
"""Times the figure of the middle one of several: what has so much is broken, or fails to end."""


class Candidate(msgspec.Struct, frozen=True):
    """A node that comes into question. Units: seconds, tokens."""

    node_id: NodeId
    pace: Pace
    is_last_resort: bool
    latency_s: float
    """The way there and back."""
    wait_s: float
    """Until the first tokens of the answer, less the way, the wake and the request's own prompt."""
    work_s: float
    """For what is to be computed of the prompt."""
    num_cached: int
    num_load: int
    """Tokens that it holds or has to compute."""
    num_sharing: int
    """Requests that share its steps."""
    num_ahead: int
    """Answers that have to end there before this one has a place."""
    opening_s: float
    """What the first tokens of the answer take of its decode, for each of those."""
    queue: float
    """What is to be computed there before the prompt, in usual requests, `LONGEST` at most; 0 where
    nobody knows those."""
    own: float
    """The same of the prompt itself, without a bound."""

    @property
    def delay_s(self) -> float:
        """Until the first tokens of the answer, less the request's own prompt."""
        return self.latency_s + self.pace.wake_s + self.wait_s

    @property
    def savable_s(self) -> float:
        """Of that, what an idle node like this one at no distance would save."""
        return self.delay_s - self.opening_s

    def expect_opening(self, opening_s: float) -> "Candidate":
        """The same node, if the opening of the answer took so long."""
        longer_s = opening_s - self.opening_s
        wait_s = self.wait_s + count_openings(self.num_sharing, self.num_ahead) * longer_s
        return msgspec.structs.replace(self, opening_s=opening_s, wait_s=wait_s)


_LOAD: Final[Callable[[Candidate], int]] = attrgetter("num_load")
_SHARING: Final[Callable[[Candidate], int]] = attrgetter("num_sharing")


class Search:
    """What one choice has seen."""

    __slots__ = (
        "_least_savable_s",
        "_num_opening",
        "_seen",
        "_state",
        "found",
        "hints",
        "need",
        "rejected",
    )

    def __init__(self, state: FleetState, need: RouteNeed, hints: Hints) -> None:
        """Nothing seen yet."""
        self._state = state
        self.need = need
        self.hints = hints
        self._num_opening = count_opening_tokens(need)
        self._seen: set[NodeId] = set()
        self._least_savable_s = float("inf")
        """Of those that are found."""
        self.found: list[Candidate] = []
        self.rejected: list[tuple[NodeId, Rejection]] = []

    @property
    def num_seen(self) -> int:
        """Nodes looked at."""
        return len(self._seen)

    def look_at(self, node_id: NodeId, latency_s: float) -> None:
        """Weighs a node, once."""
        if node_id in self._seen:
            return
        self._seen.add(node_id)
        state, need = self._state, self.need
        node = state.nodes[node_id]
        sent = state.sent.get((node_id, need.model), NOTHING_SENT)
        reason = find_rejection(node, sent, need, state.bounds, state.now_s)
        if reason is not None:
            self.rejected.append((node_id, reason))
            return
        pace = node.find_pace(need.model)
        reason = state.troubled.get(node_id) or find_unready(node, pace)
        if reason is not None:
            self.rejected.append((node_id, reason))
        num_cached = estimate_cached_tokens(need, self.hints, node_id)
        num_new = need.num_prompt_tokens - num_cached
        num_held = count_held_tokens(pace, sent)
        opening_s = self._num_opening / pace.decode_per_s
        num_sharing, num_ahead = places = count_places(pace, sent)
        wait_s = estimate_wait_s(pace, sent, num_held + num_new, opening_s, places)
        usual = state.usual_new_tokens
        one = Candidate(
            node_id,
            pace,
            reason is not None,
            latency_s,
            wait_s,
            estimate_work_s(pace, num_new),
            num_cached,
            num_held + pace.num_queued,
            num_sharing,
            num_ahead,
            opening_s,
            min((pace.num_queued + sent.num_tokens) / usual, LONGEST) if usual else 0.0,
            num_new / usual if usual else 0.0,
        )
        self.found.append(one)
        self._least_savable_s = min(self._least_savable_s, one.savable_s)

    def should_wait(self, best: Candidate) -> bool:
        """True when the best node is in trouble, and one in order is merely full."""
        if best.node_id not in self._state.troubled:
            return False
        full = (node_id for node_id, why in self.rejected if why is Rejection.SATURATED)
        return any(map(self._is_in_order, full))

    def _is_in_order(self, node_id: NodeId) -> bool:
        """True for a node that would be no last resort."""
        node = self._state.nodes[node_id]
        is_ready = find_unready(node, node.find_pace(self.need.model)) is None
        return is_ready and node_id not in self._state.troubled

    def is_enough(self, latency_s: float) -> bool:
        """True when nodes that are `latency_s` away, or farther, cannot be better: the wait that
        even an idle one would save is shorter than the way there. A session's own node is left only
        for more than what it has of the prompt is worth, which the others have not.
        """
        pinned = self.find_pinned() if len(self._seen) >= MAX_LOOKED_AT else None
        if pinned is not None:
            return pinned.savable_s <= latency_s + self._find_worth_s(pinned)
        if self._least_savable_s > latency_s:
            return False  # as would come of it whoever is the best
        best = self.find_best()
        return best is not None and best.savable_s <= latency_s

    def find_best(self) -> Candidate | None:
        """The one with the least cost so far, the first of equals; last resorts only where there is
        nobody else.
        """
        if len(self.found) < 2:
            return self.found[0] if self.found else None
        usable = [one for one in self.found if not one.is_last_resort] or self.found
        awake, asleep = _part(usable)
        if not all(one.pace.tells_step for one in awake):
            awake = self._compare_by_rates(awake)
        others = measure_others([not one.pace.num_queued for one in awake])
        usable = [*awake, *asleep]
        waits_s = [*self._compare_waits(awake), *(one.wait_s for one in asleep)]
        queues = expect_queues(
            [one.queue for one in awake],
            [one.latency_s for one in awake],
            [one.queue for one in asleep],
        )
        best, least_s = None, float("inf")
        for one, wait_s, queue in zip(usable, waits_s, queues, strict=True):
            work_s = one.work_s * (1 + others * measure_length(queue, one.own))
            cost_s = one.latency_s + one.pace.wake_s + wait_s + work_s
            if best is None or cost_s < least_s:
                best, least_s = one, cost_s
        return best

    def _compare_by_rates(self, usable: Sequence[Candidate]) -> Sequence[Candidate]:
        """All of them by the most that they have generated: what that says cannot be compared with
        how long a step takes, which some do not say.
        """
        return [
            one.expect_opening(self._num_opening / one.pace.most_decode_per_s) for one in usable
        ]

    def _find_worth_s(self, pinned: Candidate) -> float:
        """What it would cost to compute anew what the session's node has of the prompt."""
        awake, _ = _part([one for one in self.found if not one.is_last_resort])
        others = measure_others([not one.pace.num_queued for one in awake])
        usual = self._state.usual_new_tokens
        own = pinned.num_cached / usual if usual else 0.0
        work_s = estimate_work_s(pinned.pace, pinned.num_cached)
        return work_s * (1 + others * measure_length(0.0, own))

    def _compare_waits(self, usable: Sequence[Candidate]) -> list[float]:
        """The wait at each node, by what its requests hold if all nodes tell that."""
        measure = _LOAD if all(one.pace.tells_held for one in usable) else _SHARING
        usual = list_usual(usable)
        per_token = measure_sharing_per_token(usual) if measure is _LOAD else 0.0
        waits_s = [one.wait_s for one in usable]
        if per_token:  # they count requests: what these hold counts instead
            for place, one in enumerate(usable):
                waits_s[place] += one.opening_s * (per_token * one.num_load - one.num_sharing)
        usual_load = sum(map(measure, usual)) / len(usual)
        loads = list(map(measure, usable))
        doubted = list_doubted([one.latency_s for one in usable], loads, usual_load)
        return expect_waits(waits_s, doubted) if doubted else waits_s

    def find_pinned(self) -> Candidate | None:
        """The session's node if that is in order and awake, or awake as soon as any, has a place,
        and is not much busier than the others. Else it is compared like them: what it has of the
        prompt may be worth a line.
        """
        pinned = self.hints.pinned
        if pinned is None:
            return None
        usable = [one for one in self.found if not one.is_last_resort]
        own = self.need.num_prompt_tokens  # the session's own prompt alone overloads nobody
        for one in usable:
            if one.node_id == pinned:
                awake, asleep = _part(usable)
                soonest_s = min(each.pace.wake_s for each in awake)
                if (asleep and not one.pace.is_awake) or one.pace.wake_s > soonest_s:
                    return None
                loads = [each.num_load for each in list_usual(awake)]
                limit = MAX_LOAD_RATIO * sum(loads) / len(loads) + own
                return one if one.num_load <= limit and not one.num_ahead else None
        return None


def _part(usable: Sequence[Candidate]) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """Those that are awake, of whom the others' averages are, and those that sleep; who sleeps
    beside others that do is compared with them as they are.
    """
    awake = [one for one in usable if one.pace.is_awake]
    if len(awake) in (0, len(usable)):
        return usable, ()
    return awake, [one for one in usable if not one.pace.is_awake]


def list_usual(nodes: Sequence[Candidate]) -> Sequence[Candidate]:
    """`nodes` without those that hold far more than most, or have far more requests: that says
    nothing of the others. All of them where most have nothing.
    """
    for measure in (_LOAD, _SHARING):
        figures = list(map(measure, nodes))
        most = _FAR_MORE * sorted(figures)[len(figures) // 2] if figures else 0
        if most and max(figures) > most:
            nodes = [one for one, figure in zip(nodes, figures, strict=True) if figure <= most]
    return nodes


def measure_sharing_per_token(usual: Sequence[Candidate]) -> float:
    """Requests for each token that `usual` nodes hold, on average: by that a node with few large
    ones is as busy as one with many small ones. 0 where nobody holds any.
    """
    num_requests = sum(map(_SHARING, usual))
    num_tokens = sum(map(_LOAD, usual))
    return num_requests / num_tokens if num_tokens > 0 else 0.0
