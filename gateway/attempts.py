"""One request at one node: its place there, its grant and its end.

Owns what all attempts have in common, those before the first byte and those that go on with half an
answer. Read next: `gateway.forwarding`, `gateway.continuation`, `gateway.retries`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.errors import (
    DeadlineExceeded,
    ErrorReport,
    ModelCold,
    PoolSaturated,
    ServiceError,
    StreamBroken,
)
from gateway.attempt_grant import (
    create_grant,
    explain_choice,
    finds_fault,
    hold_to_word,
    is_refusal,
    read_failure,
)
from gateway.attempt_watch import AttemptWatch
from gateway.hand_over import HandOver, StreamOpener
from gateway.request_context import RequestContext
from gateway.retries import Retries
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import RouteNeed, RoutePlan
from gateway.settings import RoutingSettings
from gateway.sources import Sources
from gateway.telemetry import Step, Telemetry
from gateway.upstream.node_stream import NodeStream

_NO_ROOM: Final = (PoolSaturated, ModelCold)
"""What nodes say, or we of them, that have no room whoever asks."""


class Place(msgspec.Struct, frozen=True):
    """Where a request may go, and counts already."""

    need: RouteNeed
    plan: RoutePlan
    note_over: Callable[[NodeStream | None], None] | None = None
    """Told of the stream that is over there, if there was one; None: nobody wants to know."""


@dataclass(slots=True)
class Attempt:
    """One request at one node."""

    place: Place
    stream: NodeStream
    number: int
    opened_s: float
    hand_over: HandOver | None = None
    """Of the prompt, where another node computes it."""
    is_continuation: bool = False
    """True where a part of the answer had come before."""
    is_refused: bool = False
    """True once the node has said that it does not take the request."""
    is_open: bool = True
    """False once the request is done with it."""
    was_late: bool = False
    """The node has taken its grant for passed, and nothing else."""
    has_place: bool = True
    """False once the node has said its last word: it has room for another."""

    @property
    def need(self) -> RouteNeed:
        """What the request asked of nodes."""
        return self.place.need

    @property
    def plan(self) -> RoutePlan:
        """The node, and why."""
        return self.place.plan


class Attempts:
    """Opens and closes attempts."""

    def __init__(
        self,
        fleet: Fleet,
        opener: StreamOpener,
        telemetry: Telemetry,
        settings: RoutingSettings,
        sources: Sources,
    ) -> None:
        """`fleet` chooses, `opener` reaches."""
        self.retries: Final = Retries(fleet, settings, sources)
        self.sources: Final = sources
        self._fleet = fleet
        self._opener = opener
        self.watch: Final = AttemptWatch(fleet, sources)
        self._telemetry = telemetry

    def plan(self, context: RequestContext, need: RouteNeed) -> RoutePlan:
        """A node, where the request counts from now on. Raises: what routing raises."""
        began_s = self.sources.monotonic_s()
        plan = self._fleet.plan(need)
        ended_s = self.sources.monotonic_s()
        self._telemetry.count_step(Step.ROUTING, ended_s - began_s)
        context.trace.note_routing(began_s, ended_s, (plan.node_id, plan.region))
        return plan

    def open(self, context: RequestContext, place: Place, body: bytes) -> Attempt:
        """One more attempt, at the node of `place`; `close` must follow.

        Raises: `NodeUnreachable`.
        """
        need, plan = place.need, place.plan
        context.node_id, context.region = plan.node_id, plan.region
        if context.wants_explanation:
            explain_choice(context, plan)
        context.num_attempts += 1
        if context.num_attempts > 1:
            self._telemetry.count_retry()
            context.is_refused = False
        self.note(context, need, plan)
        number = context.first_attempt + context.num_attempts
        opened_s = self.sources.monotonic_s()
        try:
            grant = create_grant(context, need, plan, number)
            stream, hand_over = self._opener.open(context, need, plan, grant, body)
        except BaseException as error:
            context.is_refused = True
            if place.note_over is not None:
                place.note_over(None)
            self._fleet.release(plan)
            code = error.code if isinstance(error, ServiceError) else type(error).__name__
            self._trace(context, plan, (number, False), opened_s, code)
            raise
        self.watch.add(stream, plan, need.owner)
        if context.seen:
            context.note_moved(context)
        attempt = Attempt(place, stream, number, opened_s, hand_over)
        stream.on_over = lambda: self._leave(attempt)
        return attempt

    def note(self, context: RequestContext, need: RouteNeed, outcome: RoutePlan | str) -> None:
        """Remembers for a while why the request went where it went, or nowhere."""
        principal = context.principal
        assert principal is not None
        self._fleet.decisions.note(
            self.sources.unix_s(),
            (context.request_id, principal.account_id),
            need.model,
            context.num_attempts,
            outcome,
        )

    def close(self, context: RequestContext, attempt: Attempt, error: ServiceError | None) -> None:
        """The attempt is over, with the error if it failed. The first call counts."""
        if not attempt.is_open:
            return
        attempt.is_open = False
        need, plan = attempt.need, attempt.plan
        numbered = attempt.number, attempt.is_continuation
        code = "" if error is None else error.code
        self._trace(context, plan, numbered, attempt.opened_s, code)
        has_failed = self.watch.end(attempt.stream, error)
        attempt.stream.on_over = None
        self._leave(attempt)
        if attempt.hand_over is not None:
            attempt.hand_over.close()
        if error is None:
            if attempt.stream.is_over and not attempt.stream.is_aborted:
                self._fleet.health.clock.note_taken()
                self._fleet.health.note_success(plan.node_id, need.owner)
            return
        _note_left(context, attempt)
        if has_failed and attempt.was_late and self._fleet.is_clock_doubted():
            return  # the node is right
        if has_failed:
            self._fleet.note_failure(plan.node_id, need.owner)
        elif attempt.stream.is_accepted or attempt.stream.is_ours:
            return
        elif isinstance(error, _NO_ROOM):
            self._fleet.note_refusal(plan.node_id, need)
        elif finds_fault(error, need, plan.card):
            self._note_blamed(context, attempt)

    def read_failure(
        self, context: RequestContext, attempt: Attempt, report: ErrorReport
    ) -> ServiceError:
        """Why the node has ended the latest attempt."""
        attempt.is_refused = is_refusal(report, attempt.stream)
        error = read_failure(context, report, self.sources.monotonic_s())
        is_early = report.code == DeadlineExceeded.code and isinstance(error, StreamBroken)
        if is_early and not attempt.stream.is_accepted and not attempt.was_late:
            attempt.was_late = True
            self._fleet.note_late(attempt.plan.node_id)
        return hold_to_word(error, attempt.stream, attempt.need)

    def _leave(self, attempt: Attempt) -> None:
        """The node has one request fewer. The first call counts.

        What the request has taken is told first: it decides who gets its place.
        """
        if attempt.has_place:
            attempt.has_place = False
            if attempt.place.note_over is not None:
                attempt.place.note_over(attempt.stream)
            self._fleet.release(attempt.plan)

    def _trace(
        self,
        context: RequestContext,
        plan: RoutePlan,
        numbered: tuple[int, bool],
        opened_s: float,
        error: str,
    ) -> None:
        """Tells the request's trace of an attempt that is over."""
        choice = plan.node_id, plan.region
        ended_s = self.sources.monotonic_s()
        context.trace.note_attempt(numbered, opened_s, ended_s, choice, error)

    def _note_blamed(self, context: RequestContext, attempt: Attempt) -> None:
        """The node has found fault with the request, before it took it."""
        node_id, refusals = attempt.plan.node_id, self._fleet.health.refusals
        if self._fleet.roster.find(node_id) is None:
            return  # it has left meanwhile, and nothing is kept of it
        refusals.note_blamed(node_id, attempt.need)
        if context.doubted is None and refusals.is_doubted(node_id, attempt.need):
            context.doubted = node_id

    def note_accepted(self, context: RequestContext, attempt: Attempt, num_prompt: int) -> None:
        """The node has taken the request, whose prompt has so many tokens, and so should others
        have done.
        """
        node_id, need = attempt.plan.node_id, attempt.need
        self._fleet.health.refusals.note_taken(node_id, need)
        self._fleet.health.clock.note_taken()
        if context.doubted is not None and context.doubted != node_id:
            if attempt.plan.card.engine:  # which may have guessed: no token is less than a byte
                num_prompt = max(num_prompt, need.num_bytes)
            self._fleet.note_contradicted(context.doubted, need, num_prompt)


def _note_left(context: RequestContext, attempt: Attempt) -> None:
    """The attempt has failed: where it was something may have been computed, unless it was refused
    there.
    """
    if attempt.is_refused:
        context.is_refused = True
    else:
        context.note_seen(attempt.plan.node_id, attempt.plan.region)
