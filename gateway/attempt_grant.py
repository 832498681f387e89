"""What a node may do for one attempt, and which failures of an attempt are the node's own.

Read next: `gateway.attempts`, `gateway.hand_over`.
"""

from contracts.errors import DeadlineExceeded, InternalError, ServiceError, UpstreamError
from contracts.fleet import ModelCard
from contracts.grant import Grant
from gateway.request_context import RequestContext
from gateway.routing.route_plan import RouteNeed


def create_grant(context: RequestContext, need: RouteNeed, card: ModelCard, attempt: int) -> Grant:
    """What the node may do for this attempt, and no more."""
    principal = context.principal
    assert principal is not None
    return Grant(
        context.request_id,
        attempt,
        principal.account_id,
        principal.cache_salt,
        card.name,
        need.allowed_regions,
        principal.priority,
        principal.retention,
        context.deadline_unix_ms,
        card.context_window,
        trace=context.trace.carry(attempt),
        session=need.session or 0,
    )


def is_fault_of_node(error: ServiceError) -> bool:
    """True for what nodes in order do not answer."""
    return isinstance(error, UpstreamError | InternalError) and not isinstance(
        error, DeadlineExceeded
    )
