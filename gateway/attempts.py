"""One request at one node: its place there, its grant, its end, and whether another may follow.

Owns what all attempts have in common, those before the first byte and those that go on with half an
answer. Read next: `gateway.forwarding`, `gateway.continuation`.
"""

from dataclasses import dataclass
from typing import Final

from contracts.errors import (
    DeadlineExceeded,
    InternalError,
    Retry,
    ServiceError,
    UpstreamError,
)
from contracts.grant import Grant
from gateway.request_context import RequestContext
from gateway.routing.fleet import Fleet
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.route_plan import RouteNeed, RoutePlan
from gateway.routing.wishes import format_explanation
from gateway.settings import RoutingSettings
from gateway.sources import Sources
from gateway.telemetry import Step, Telemetry
from gateway.upstream.links import NodeLinks
from gateway.upstream.node_stream import NodeStream

_RETRIES_PER_S: Final = 1.0


@dataclass(slots=True)
class Attempt:
    """One request at one node."""

    need: RouteNeed
    plan: RoutePlan
    stream: NodeStream
    is_open: bool = True
    """False once the node's place is given back."""


class Attempts:
    """Opens and closes attempts."""

    def __init__(
        self,
        fleet: Fleet,
        links: NodeLinks,
        telemetry: Telemetry,
        settings: RoutingSettings,
        sources: Sources,
    ) -> None:
        """`fleet` chooses, `links` carry."""
        self.settings: Final = settings
        self.sources: Final = sources
        self._fleet = fleet
        self._links = links
        self._telemetry = telemetry
        self._budget = RetryBudget(settings.retry_reserve, _RETRIES_PER_S, sources.monotonic_s())

    def earn(self) -> None:
        """A request has come in: it pays for a part of a retry."""
        self._budget.earn()

    def plan(self, need: RouteNeed) -> RoutePlan:
        """A node, where the request counts from now on. Raises: what routing raises."""
        began_s = self.sources.monotonic_s()
        plan = self._fleet.plan(need)
        self._telemetry.count_step(Step.ROUTING, self.sources.monotonic_s() - began_s)
        return plan

    def open(
        self, context: RequestContext, need: RouteNeed, plan: RoutePlan, body: bytes
    ) -> Attempt:
        """One more attempt, at the plan's node; `close` must follow.

        Raises: `NodeUnreachable`.
        """
        context.node_id, context.region = plan.node_id, plan.region
        if context.wants_explanation:
            context.explanation = format_explanation(plan)
        context.num_attempts += 1
        if context.num_attempts > 1:
            self._telemetry.count_retry()
        self.note(context, need, plan)
        try:
            stream = self._links.open(plan.node_id, _create_grant(context, need, plan), body)
        except BaseException:
            self._fleet.release(plan)
            raise
        return Attempt(need, plan, stream)

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

    def close(self, attempt: Attempt, error: ServiceError | None) -> None:
        """The attempt is over, with the error if it failed. The first call counts."""
        if not attempt.is_open:
            return
        attempt.is_open = False
        self._fleet.release(attempt.plan)
        if error is None:
            if attempt.stream.is_over and not attempt.stream.is_aborted:
                self._fleet.health.note_success(attempt.plan.node_id)
        elif _is_fault_of_node(error):
            self._fleet.note_failure(attempt.plan.node_id)

    def may_try_again(self, context: RequestContext) -> bool:
        """True when this request has an attempt left, and all requests together one more retry."""
        has_attempt = context.num_attempts < self.settings.max_attempts
        return has_attempt and self._budget.spend(self.sources.monotonic_s())


def may_retry(error: ServiceError) -> bool:
    """True when another attempt could end better, within the same deadline."""
    return error.retry in (Retry.SAME, Retry.ELSEWHERE) and not isinstance(error, DeadlineExceeded)


def _is_fault_of_node(error: ServiceError) -> bool:
    """True for what nodes in order do not answer."""
    return isinstance(error, UpstreamError | InternalError) and not isinstance(
        error, DeadlineExceeded
    )


def _create_grant(context: RequestContext, need: RouteNeed, plan: RoutePlan) -> Grant:
    """What the node may do for this attempt, and no more."""
    principal = context.principal
    assert principal is not None
    return Grant(
        context.request_id,
        context.num_attempts,
        principal.account_id,
        principal.cache_salt,
        plan.card.name,
        need.allowed_regions,
        principal.priority,
        principal.retention,
        context.deadline_unix_ms,
        plan.card.context_window,
    )
