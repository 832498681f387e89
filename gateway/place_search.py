"""How one request gets its place at a node: at once, or after waiting in front of all of them.

Owns which nodes it has tried, which of those may be asked again, and whether and how long it waits.
Every place is where the account's regions allow it by then: they may have been narrowed since the
request came. Must not know what is done at a node.
Read next: `gateway.attempts`, `gateway.fair_queue.queue`, `gateway.auth.standing`.
"""

import contextlib
from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.errors import (
    ContextTooLong,
    PoolSaturated,
    ResidencyViolation,
    Retry,
    ServiceError,
    StoreUnavailable,
    StreamBroken,
)
from contracts.ids import NodeId
from contracts.inference import NodeRequest
from gateway.attempts import Attempts, Place
from gateway.auth.standing import Standing
from gateway.fair_queue.queue import FairQueue
from gateway.fair_queue.waiter import UNDER_WAY, Waiter, rejects_waiting, weigh
from gateway.need_description import explain_residency, narrow_need
from gateway.request_context import Asker, RequestContext
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import RouteNeed, RoutePlan
from gateway.upstream.node_stream import NodeStream

_NOBODY: Final = frozenset[NodeId]()
_MOST_PASSED_OVER: Final = 8
"""Nodes whose opinion nobody asks for: where more find fault with all, it is the requests."""


@dataclass(frozen=True, slots=True)
class PlaceParts:
    """What every search needs."""

    attempts: Attempts
    fleet: Fleet
    queue: FairQueue
    standing: Standing


class PlaceSearch:
    """One request's."""

    __slots__ = (
        "_asker",
        "_attempts",
        "_context",
        "_fleet",
        "_need",
        "_num_bytes",
        "_queue",
        "_refused",
        "_request",
        "_spent",
        "_standing",
        "_tried",
    )

    def __init__(
        self,
        parts: PlaceParts,
        context: RequestContext,
        request: NodeRequest,
        need: RouteNeed,
        num_bytes: int,
        asker: Asker,
    ) -> None:
        """Nothing is tried yet. The request has `num_bytes` as it is sent."""
        self._attempts = parts.attempts
        self._fleet = parts.fleet
        self._queue = parts.queue
        self._standing = parts.standing
        self._context = context
        self._request = request
        self._need = need
        self._num_bytes = num_bytes
        self._asker = asker
        self._tried = self._spent = _NOBODY
        """Nodes that have failed the request, and those that have done so twice."""
        self._refused: dict[NodeId, int] = {}
        """Nodes that had no room after all, and how often they had reported by then."""

    async def find(self) -> Place:
        """The first place. Raises: what routing raises, what the queue and `narrow` do."""
        began_s = self._attempts.sources.monotonic_s()
        try:
            self._need = await self.narrow(self._need)
            place = self._find_now()
            if place is None:
                waiter = self._create_waiter(self._need, self._find_end_s())
                place = await self._wait(waiter, may_refuse=True)
            return place
        except ResidencyViolation:
            error = explain_residency(self._fleet, self._context, self._asker)
            self._note_refusal(error, began_s)
            raise error from None
        except ServiceError as error:
            self._note_refusal(error, began_s)
            raise

    async def find_after(self, place: Place, failure: ServiceError) -> Place:
        """The next one: at a node that has not failed, else at one that has once, if it may do
        better now; else one that is waited for.

        Where a node was lost with the request, another is waited for within bounds, as one is for
        an answer under way; not where nodes have failed it twice. Where those that are left are
        full, the request waits as if it had just come. Raises: `failure` when there is none, and
        what `narrow` and the queue do.
        """
        if self._attempts.retries.may_doubt(self._context, place.need, place.plan, failure):
            self._note_tried(place.plan.node_id)
            try:
                return await self._find_other_opinion(failure)
            except ServiceError:
                if not self._attempts.retries.may_try_longer(self._context, place.plan, failure):
                    raise
        self._note(place, failure)
        self._need = await self.narrow(self._need)
        wanted = [msgspec.structs.replace(self._need, tried=self._tried)]
        if failure.retry is Retry.SAME:
            wanted.append(msgspec.structs.replace(self._need, tried=self._spent))
        is_full = isinstance(failure, PoolSaturated)
        for need in wanted:
            try:
                return Place(need, self._attempts.plan(self._context, need))
            except ServiceError as error:
                is_full = is_full or isinstance(error, PoolSaturated)
        is_lost = isinstance(failure, StreamBroken) and not self._spent
        if is_lost:
            need = msgspec.structs.replace(wanted[-1], may_wait=False)
            end_s = self._attempts.retries.find_patience_end_s()
            waiter = self._create_waiter(need, end_s, UNDER_WAY)
        elif is_full:
            # Not `_tried`: while it waits, those that are full may go, and one that has failed it
            # once is back. Where all others were in that, it would wait for nobody.
            tried = self._spent.difference(self._refused)
            need = msgspec.structs.replace(self._need, tried=tried)
            waiter = self._create_waiter(need, self._find_end_s())
        else:
            raise failure
        try:
            return await self._wait(waiter, may_refuse=not is_lost)
        except PoolSaturated as error:
            raise (failure if is_lost else error) from None

    async def _find_other_opinion(self, failure: ServiceError) -> Place:
        """A node that has not failed the request, at best one that does not find fault with all of
        its kind itself. Nobody waits for it.

        Raises: `failure` when there is none; `Unauthenticated`, `AccountSuspended`.
        """
        try:
            self._need = await self.narrow(self._need)
        except StoreUnavailable:
            raise failure from None
        need = msgspec.structs.replace(self._need, tried=self._tried)
        doubted = frozenset(self._fleet.health.refusals.list_doubted(need))
        if len(doubted) > _MOST_PASSED_OVER:
            doubted = _NOBODY
        for others in (doubted, _NOBODY):
            wanted = msgspec.structs.replace(need, tried=self._tried | others)
            with contextlib.suppress(ServiceError):
                return Place(need, self._attempts.plan(self._context, wanted))
        raise failure

    def _note_refusal(self, error: ServiceError, began_s: float) -> None:
        """Operators and traces are told that no place was found."""
        self._attempts.note(self._context, self._need, error.message)
        ended_s = self._attempts.sources.monotonic_s()
        self._context.trace.note_routing(began_s, ended_s, None, error.code)

    async def narrow(self, need: RouteNeed) -> RouteNeed:
        """`need` with no region that the account's rules do not allow by now, where laws may have
        changed as well as rules.

        Raises: `Unauthenticated`, `AccountSuspended`, `StoreUnavailable`.
        """
        context = self._context
        assert context.principal is not None
        is_law_known = need.has_laws_of(self._fleet.roster.laws.version)
        if is_law_known and self._standing.is_current(need.generation):
            return need
        current = await self._standing.find(context.principal, need.generation)
        return narrow_need(self._fleet, need, current, self._standing.generation)

    async def find_to_resume(self, need: RouteNeed, end_s: float) -> Place | None:
        """A place for an answer that has begun, by `end_s` of the monotonic clock.

        Raises: `StoreUnavailable` where there was one and nobody could say whether it may be taken,
        which may be over before `end_s`.
        """
        try:
            return await self._wait(self._create_waiter(need, end_s, UNDER_WAY), may_refuse=False)
        except StoreUnavailable:
            raise
        except ServiceError:
            return None

    def _find_now(self) -> Place | None:
        """The first place, None where all are full. Either shows that the model is asked for."""
        need = self._need
        try:
            place = Place(need, self._attempts.plan(self._context, need))
        except PoolSaturated:
            place = None
        self._fleet.note_demand(need)
        self._context.model = need.model
        return place

    def _note(self, place: Place, failure: ServiceError) -> None:
        """The node has failed the request, or has too short a context for it."""
        if isinstance(failure, ContextTooLong):
            min_context = place.plan.card.context_window + 1
            self._need = msgspec.structs.replace(self._need, min_context=min_context)
            return
        node_id = place.plan.node_id
        if isinstance(failure, PoolSaturated):
            node = self._fleet.roster.find(node_id)
            self._refused[node_id] = 0 if node is None else node.num_reports
        self._note_tried(node_id)

    def _note_tried(self, node_id: NodeId) -> None:
        """The node has failed the request, once more or for the first time."""
        if node_id in self._tried:
            self._spent |= {node_id}
        self._tried |= {node_id}

    async def _wait(self, waiter: Waiter, *, may_refuse: bool) -> Place:
        """A place, as soon as it is the request's turn; `may_refuse` unless it has had one.

        Raises: what the queue raises.
        """
        if may_refuse and rejects_waiting(self._request):
            raise self._queue.refuse(waiter)
        context, monotonic_s = self._context, self._attempts.sources.monotonic_s
        began_s, choice, code = monotonic_s(), None, ""
        try:
            plan = await self._wait_in_law(waiter)
            choice = plan.node_id, plan.region
        except ServiceError as error:
            code = error.code
            raise
        finally:
            ended_s = monotonic_s()
            context.queued_s += ended_s - began_s
            context.trace.note_queue(began_s, ended_s, choice, code)

        def note_over(stream: NodeStream | None) -> None:
            self._queue.correct(waiter, None if stream is None else stream.read_usage())

        return Place(waiter.need, plan, note_over)

    async def _wait_in_law(self, waiter: Waiter) -> RoutePlan:
        """The queue's choice; one that is forbidden by then is given back, and another waited for.

        Raises: what the queue raises, and what `narrow` does.
        """
        while True:
            plan = await self._queue.wait(waiter, self._asker)
            try:
                waiter.need = await self.narrow(waiter.need)
            except BaseException:
                self._give_back(waiter, plan)
                raise
            if self._fleet.is_lawful(plan, waiter.need):
                return plan
            self._give_back(waiter, plan)

    def _give_back(self, waiter: Waiter, plan: RoutePlan) -> None:
        """The place of `plan` is not taken."""
        self._queue.correct(waiter, None)
        self._fleet.give_back(plan)

    def _create_waiter(self, need: RouteNeed, end_s: float, more_priority: int = 0) -> Waiter:
        """The request as the queue sees it."""
        principal = self._context.principal
        assert principal is not None
        return Waiter(
            need,
            principal.account_id,
            principal.priority + more_priority,
            weigh(self._request, self._num_bytes),
            self._num_bytes,
            self._context.started_s,
            min(end_s, self._context.deadline_s),
            dict(self._refused),
        )

    def _find_end_s(self) -> float:
        """Until when a request waits that has no place yet."""
        return self._context.started_s + self._queue.max_wait_s
