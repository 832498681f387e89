"""Whether another attempt at a request may follow the one that has failed.

Owns the bounds: of each request, and of all together. Must not know how an attempt is made.
Read next: `gateway.routing.retry_budget`, `gateway.attempts`.
"""

from typing import Final

from contracts.errors import ContextTooLong, DeadlineExceeded, Retry, ServiceError
from gateway.attempt_grant import finds_fault
from gateway.request_context import RequestContext
from gateway.routing.fleet import Fleet
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.route_plan import RouteNeed, RoutePlan
from gateway.settings import RoutingSettings
from gateway.sources import Sources

_RETRIES_PER_S: Final = 1.0


class Retries:
    """Of all requests of a gateway."""

    def __init__(self, fleet: Fleet, settings: RoutingSettings, sources: Sources) -> None:
        """Nothing has been tried again."""
        self.settings: Final = settings
        self._roster = fleet.roster
        self._is_clock_refuted = fleet.is_clock_refuted
        self._monotonic_s = sources.monotonic_s
        self._budget = RetryBudget(settings.retry_reserve, _RETRIES_PER_S, sources.monotonic_s())

    def earn(self) -> None:
        """A request has come in: it pays for a part of a retry."""
        self._budget.earn()

    def may_try_longer(self, context: RequestContext, plan: RoutePlan, error: ServiceError) -> bool:
        """True when the request was too long for its node, and has an attempt left for a node with
        a longer context: those of a model have as much as their memory has room for.

        That is nobody's trouble, and costs no retry that others may need.
        """
        return (
            isinstance(error, ContextTooLong)
            and self._has_attempt(context)
            and self._roster.has_longer(plan.card)
        )

    def may_doubt(
        self, context: RequestContext, need: RouteNeed, plan: RoutePlan, error: ServiceError
    ) -> bool:
        """True when the node finds fault with the request, as it does with all of its kind: who is
        right shows at another node, which is asked once. It costs no retry that others may need.
        """
        return (
            finds_fault(error, need, plan.card)
            and context.doubted == plan.node_id
            and self._has_attempt(context)
        )

    def may_try_again(self, context: RequestContext, *, has_begun: bool) -> bool:
        """True when this request has an attempt left, and all requests together one more retry;
        they have more of them for an answer that `has_begun`.

        Leaving a node that is being emptied costs none: operators want it of all that run there.
        """
        node_id = context.node_id
        node = None if node_id is None else self._roster.find(node_id)
        if node is not None and node.is_leaving and node.node_id not in context.emptied:
            context.emptied |= {node.node_id}
            return self.has_time(context)
        if not self._has_attempt(context) or self._is_clock_refuted():
            return False
        principal = context.principal
        assert principal is not None
        takers = principal.account_id, context.model
        return self._budget.spend(self._monotonic_s(), takers, leaves_half=not has_begun)

    def find_patience_end_s(self) -> float:
        """Until when a request waits that was lost with its node, by the monotonic clock."""
        return self._monotonic_s() + self.settings.resume_patience_s

    def has_time(self, context: RequestContext) -> bool:
        """True before the request's deadline, which is that of all of its attempts together."""
        return self._monotonic_s() < context.deadline_s

    def _has_attempt(self, context: RequestContext) -> bool:
        """True while there is time, and one is left of those that count against the bound."""
        num_counted = context.num_attempts - len(context.emptied)
        return self.has_time(context) and num_counted < self.settings.max_attempts


def may_retry(error: ServiceError) -> bool:
    """True when another attempt could end better, within the same deadline."""
    return error.retry in (Retry.SAME, Retry.ELSEWHERE) and not isinstance(error, DeadlineExceeded)
