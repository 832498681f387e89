"""What a node may do for one attempt, and which failures of an attempt are the node's own.

Read next: `gateway.attempts`, `gateway.hand_over`.
"""

from typing import Final

import structlog

from contracts.errors import (
    AccessError,
    AdapterUnsupported,
    CapacityError,
    ConstraintUnmet,
    ContextTooLong,
    DeadlineExceeded,
    ErrorReport,
    InternalError,
    InvalidRequest,
    NodeUnreachable,
    RequestError,
    ServiceError,
    StreamBroken,
    UpstreamError,
    from_error_report,
)
from contracts.fleet import ModelCard
from contracts.grant import Grant
from contracts.ids import NodeId
from contracts.inference import RESUMPTION
from contracts.prefix_keys import pack_keys
from gateway.request_context import RequestContext
from gateway.routing.route_plan import PrefillPlan, RouteNeed, RoutePlan
from gateway.routing.wishes import format_explanation
from gateway.upstream.node_stream import NodeStream

log = structlog.get_logger(__name__)
_SKEW_S: Final = 1.0
"""By which clocks may differ without anybody being to blame."""
_REFUSALS: Final = (RequestError, AccessError, CapacityError, NodeUnreachable)
"""What nodes say of what they have not begun; the last one of an engine of others behind them."""
_FEW_BYTES: Final = 2
"""Of a request for each token of its prompt: text has about four, and much text hardly fewer."""


def create_grant(
    context: RequestContext, need: RouteNeed, plan: RoutePlan | PrefillPlan, attempt: int
) -> Grant:
    """What the node of `plan` may do for this attempt, and no more."""
    principal = context.principal
    assert principal is not None
    num_prompt_tokens = plan.num_cached_tokens + plan.num_new_tokens
    return Grant(
        context.request_id,
        attempt,
        principal.account_id,
        principal.cache_salt,
        plan.card.name,
        need.allowed_regions,
        principal.priority,
        principal.retention,
        context.deadline_unix_ms,
        plan.card.context_window,
        trace=context.trace.carry(attempt),
        session=need.session or 0,
        prefixes=pack_keys(need.prefix_keys),
        cached_share=plan.num_cached_tokens / max(num_prompt_tokens, 1),
    )


def explain_choice(context: RequestContext, plan: RoutePlan) -> None:
    """Tells a client why the node was chosen."""
    context.explanation = format_explanation(plan, context.queued_s)


def read_node_error(node_id: NodeId | None, report: ErrorReport) -> ServiceError:
    """What a node says went wrong. Who may do what is for gateways to say: a node that does not
    take our word for it has another key, region or opinion than it told, and the client has done
    nothing that it could hear of.
    """
    error = from_error_report(report)
    if isinstance(error, AccessError):
        log.error("grant_refused", node_id=node_id, error=error.code, reason=error.message)
        return NodeUnreachable("The request could not be handed to a node.")
    return error


def read_failure(context: RequestContext, report: ErrorReport, now_s: float) -> ServiceError:
    """Why an attempt has ended. A deadline that is not over by our clock is no end of the request:
    the node's clock is wrong, and it would refuse or cut whatever came to it.
    """
    error = read_node_error(context.node_id, report)
    left_s = context.deadline_s - now_s
    if isinstance(error, DeadlineExceeded) and left_s > _SKEW_S:
        log.warning("clock_of_node_ahead", node_id=context.node_id, left_s=round(left_s, 1))
        return StreamBroken("The node has ended the request before its time.")
    return error


def is_fault_of_node(error: ServiceError) -> bool:
    """True for what nodes in order do not answer."""
    return isinstance(error, UpstreamError | InternalError) and not isinstance(
        error, DeadlineExceeded
    )


def is_refusal(report: ErrorReport, stream: NodeStream) -> bool:
    """True where a node has said that it takes the request or prompt not, for want of room or since
    something is wrong with it: then nothing of it was computed there.

    Whatever else ends one that was not accepted leaves that open: nodes accept once they compute.
    """
    if stream.is_accepted or stream.is_cut:
        return False
    return isinstance(from_error_report(report), _REFUSALS)


def finds_fault(error: ServiceError, need: RouteNeed, card: ModelCard) -> bool:
    """True for what nodes in order say of a request that is wrong, whichever of them is asked. How
    long one may be differs from node to node: that counts where the context that the node offers
    seems to have room.
    """
    if isinstance(error, ContextTooLong):
        num_tokens = need.num_bytes // _FEW_BYTES + need.num_asked_tokens
        return need.num_bytes > 0 and num_tokens <= card.context_window
    return isinstance(error, RequestError)


def hold_to_word(error: ServiceError, stream: NodeStream, need: RouteNeed) -> ServiceError:
    """What a node's error comes to: one that finds fault with what it has taken has broken off.

    Nodes in order look at a request first, though at further prompts one after another; but an
    answer may find no way on, or its adapter none back. What we have ended is not their word. Who
    goes on may find fault with what another node has said.
    """
    if isinstance(error, InvalidRequest) and error.param == RESUMPTION:
        log.warning("answer_cannot_go_on", node_id=stream.node_id, reason=error.message)
        return StreamBroken("The node that began this answer has said what none can go on from.")
    if not isinstance(error, RequestError) or not stream.is_accepted or stream.is_ours:
        return error
    if need.num_prompts > 1 or isinstance(error, ConstraintUnmet):
        return error
    if need.adapter is not None and isinstance(error, AdapterUnsupported):
        return error
    log.warning("taken_request_refused", node_id=stream.node_id, error=error.code)
    return StreamBroken("The node has refused a request that it had taken.")
