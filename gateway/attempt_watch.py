"""How attempts get on at their nodes while nobody hears of it: which have begun, which stand still.

Looks at all that are open once a second or oftener, so that no event costs more. A node that takes
requests and says nothing more looks idle and would get the next ones as well: it has failed those
that it has forgotten by its own reports, and streams of which nothing came for long before their
deadline. Neither tells of a node that is merely slow: prompts are computed, requests wait and
answers that nobody reads pile up in silence, as do those that are given in one piece.
Read next: `gateway.attempts`, `gateway.routing.node_health`.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from contracts.errors import DeadlineExceeded, ServiceError
from contracts.fleet import ModelLoad, Task
from gateway.attempt_grant import is_fault_of_node
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import RoutePlan
from gateway.sources import Sources
from gateway.upstream.node_stream import CREDIT_WINDOW, NodeStream
from gateway.upstream.progress import Progress

log = structlog.get_logger(__name__)
SWEEP_S: Final = 0.25
"""While some node is on probation, which ends as answers begin."""
_QUIET_SWEEP_S: Final = 1.0
_FORGOTTEN_S: Final = 5.0
_FORGOTTEN_REPORTS: Final = 3
"""In a row, by which a node that has taken requests has none."""
_SILENCE_S: Final = 60.0
_SILENCE_RATIO: Final = 10.0
"""Silence is long by both: seconds, and times what the beginning was expected to take."""
_MOST_HELD: Final = CREDIT_WINDOW // 2
"""Events that wait for the client: with more, the node may have to wait as well."""


@dataclass(slots=True)
class _Watched:
    """One attempt."""

    plan: RoutePlan
    owner: int
    progress: Progress
    moved_s: float
    """When it was last seen to get on."""
    num_reports: int = 0
    """Of its node, when it was last seen to get on."""
    extent: int = 0
    """Of the answer, in a measure that every event adds to."""
    num_queued: int = 0
    """Tokens of prompts that its node had to compute."""
    has_begun: bool = False
    is_counted: bool = False
    """As a failure."""


class AttemptWatch:
    """All attempts that are open."""

    def __init__(self, fleet: Fleet, sources: Sources) -> None:
        """None is open."""
        self._fleet = fleet
        self._monotonic_s = sources.monotonic_s
        self._watched: dict[NodeStream, _Watched] = {}

    async def run(self) -> None:
        """Looks after them for ever."""
        while True:
            is_quiet = not self._fleet.health.of_all.concerned
            await asyncio.sleep(_QUIET_SWEEP_S if is_quiet else SWEEP_S)
            self.sweep()

    def add(self, stream: NodeStream, plan: RoutePlan, owner: int) -> None:
        """The attempt is open, for the account."""
        watched = _Watched(plan, owner, stream.progress, self._monotonic_s())
        watched.num_reports = self._count_reports(watched)
        self._watched[stream] = watched

    def end(self, stream: NodeStream, error: ServiceError | None) -> bool:
        """True when the end of the attempt is a failure of its node that is not counted yet."""
        watched = self._watched.pop(stream, None)
        if watched is None or error is None or watched.is_counted or stream.is_ours:
            return False
        if not isinstance(error, DeadlineExceeded):
            return is_fault_of_node(error)
        load = self._find_load(watched)
        if load is None or not stream.is_accepted or self._look_at(stream, watched, load):
            return False  # it would have gone on
        return self._is_forgotten(watched) or self._is_silent(stream, watched)

    def sweep(self) -> None:
        """Sees which have begun since the last time, and which their nodes have forgotten."""
        now_s = self._monotonic_s()
        for stream, watched in tuple(self._watched.items()):
            load = self._find_load(watched)
            if load is None or stream.is_over or stream.is_aborted:
                continue
            if not stream.is_accepted or self._look_at(stream, watched, load):
                watched.moved_s = now_s
                watched.num_reports = self._count_reports(watched)
            elif now_s - watched.moved_s >= _FORGOTTEN_S and self._is_forgotten(watched):
                self._count(watched)

    def _find_load(self, watched: _Watched) -> ModelLoad | None:
        """What its node says of the model; None while it says nothing."""
        node = self._fleet.roster.find(watched.plan.node_id)
        return None if node is None else node.loads.get(watched.plan.card.name)

    def _count_reports(self, watched: _Watched) -> int:
        """Of its node so far."""
        node = self._fleet.roster.find(watched.plan.node_id)
        return 0 if node is None else node.num_reports

    def _look_at(self, stream: NodeStream, watched: _Watched, load: ModelLoad) -> bool:
        """True when the attempt has got on since the last time, as far as can be told."""
        progress, extent = stream.progress, _measure(stream.progress)
        if progress is not watched.progress:  # it goes on with the answer of another
            watched.progress, watched.extent = progress, extent
            return True
        moves = extent != watched.extent or stream.num_held >= _MOST_HELD
        if extent != watched.extent and not watched.has_begun:
            watched.has_begun = True
            self._fleet.note_begun(watched.plan.node_id, watched.owner)
        if load.num_queued_tokens != watched.num_queued and not watched.has_begun:
            moves = True  # of its prompt, for all that is known
        watched.extent, watched.num_queued = extent, load.num_queued_tokens
        return moves or load.num_waiting > 0 or not load.is_ready

    def _is_forgotten(self, watched: _Watched) -> bool:
        """True when the node has said several times that it has nothing at all to do."""
        node, card = self._fleet.roster.find(watched.plan.node_id), watched.plan.card
        if node is None or card.task != Task.TEXT_GENERATION:
            return False
        latest = max(watched.num_reports, node.worked.get(card.name, 0))
        return node.num_reports - latest >= _FORGOTTEN_REPORTS

    def _is_silent(self, stream: NodeStream, watched: _Watched) -> bool:
        """True when nothing has come for long of an answer that should come as it is written."""
        silent_s = self._monotonic_s() - watched.moved_s
        least_s = max(_SILENCE_S, _SILENCE_RATIO * watched.plan.first_token_s)
        return not stream.is_whole and silent_s >= least_s

    def _count(self, watched: _Watched) -> None:
        """The node has failed a request of which it says nothing more."""
        if not watched.is_counted:
            watched.is_counted = True
            node_id = watched.plan.node_id
            log.warning("node_has_forgotten_a_request", node_id=node_id)
            self._fleet.note_failure(node_id, watched.owner)


def _measure(progress: Progress) -> int:
    """How much has come of an answer, in a measure that every event adds to."""
    num_chars = progress.num_text_chars + progress.num_reasoning_chars
    num_chars += progress.num_argument_chars
    return len(progress.token_ids) + num_chars + progress.num_calls + progress.has_scores
