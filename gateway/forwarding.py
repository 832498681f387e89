"""Route and forward: finds a node, sends the request there, and tries once more if that fails.

Owns the attempts of one request: nothing has been sent to the client while it works, so that a
retry shows nowhere. Must not know dialects. Read next: `gateway.routing.choose_node`,
`gateway.upstream.links`, then `gateway.answering`.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from contracts.codec import encode_request
from contracts.errors import (
    DeadlineExceeded,
    Forbidden,
    InvariantBroken,
    Retry,
    ServiceError,
    StreamBroken,
    Unauthenticated,
    from_error_report,
)
from contracts.grant import Grant
from contracts.ids import ModelName, NodeId
from contracts.inference import (
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    NodeRequest,
)
from gateway.middleware.exchange import HttpExchange
from gateway.request_context import RequestContext, Tally
from gateway.routing.choose_node import RouteNeed, RoutePlan
from gateway.routing.fleet import Fleet
from gateway.telemetry import Telemetry
from gateway.upstream.links import NodeLinks
from gateway.upstream.node_stream import NodeStream

log = structlog.get_logger(__name__)
MAX_ATTEMPTS: Final = 2


class Forwarded(msgspec.Struct, frozen=True):
    """A node's answer: its beginning for a stream, else all of it."""

    stream: NodeStream
    events: list[GenerationEvent]
    plan: RoutePlan


class Forwarder:
    """Brings requests to nodes."""

    def __init__(self, fleet: Fleet, links: NodeLinks, telemetry: Telemetry) -> None:
        """`fleet` chooses, `links` carry."""
        self.find_model: Final = fleet.find_model
        self._fleet = fleet
        self._links = links
        self._telemetry = telemetry

    async def forward(
        self,
        context: RequestContext,
        request: NodeRequest,
        exchange: HttpExchange,
        on_accepted: Callable[[int, int], Tally],
    ) -> Forwarded:
        """The answer of the first node that gives one; it ends when the client leaves.

        `release` must follow. `context` must have its principal and is told its node.
        `on_accepted` gets the prompt's tokens, and the cached ones among them, as a node says, and
        tells where the tokens of the attempt are counted.

        Raises: what routing raises, and the node's own error when no attempt is left.
        """
        assert context.principal is not None
        allowed_regions = context.principal.allowed_regions
        body = encode_request(request)
        tried: frozenset[NodeId] = frozenset()
        failure: ServiceError | None = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            need = RouteNeed(request.model, allowed_regions, tried)
            plan = self._plan(need, failure)
            if failure is not None:
                self._telemetry.count_retry()
            context.model = request.model
            context.node_id, context.region = plan.node_id, plan.region
            context.num_attempts = attempt
            try:
                stream = self._open(context, plan, body)
                stream.on_accepted = on_accepted
                return await self._try(context, plan, stream, is_streaming(request), exchange)
            except ServiceError as error:
                if not _may_retry(error) or exchange.is_lost:
                    raise
                failure = error
                context.set_usage_aside()
                tried |= {plan.node_id}
        assert failure is not None
        raise failure

    def find_context_window(self, context: RequestContext, model: ModelName) -> int:
        """The model's context in tokens, the longest that any node offers.

        Raises: what routing raises for a model that no node has.
        """
        assert context.principal is not None
        need = RouteNeed(model, context.principal.allowed_regions)
        return self._fleet.find_context_window(need)

    def release(self, forwarded: Forwarded) -> None:
        """The request is over: its place is free, and a stream that was cut short is aborted."""
        forwarded.stream.release()
        self._fleet.release(forwarded.plan)

    def _open(self, context: RequestContext, plan: RoutePlan, body: bytes) -> NodeStream:
        """A stream at the plan's node. Raises: `NodeUnreachable`."""
        try:
            return self._links.open(plan.node_id, _create_grant(context, plan), body)
        except BaseException:
            self._fleet.release(plan)
            raise

    async def _try(
        self,
        context: RequestContext,
        plan: RoutePlan,
        stream: NodeStream,
        is_streaming: bool,
        exchange: HttpExchange,
    ) -> Forwarded:
        """One attempt. Raises: the error that the answer begins with."""
        try:
            events = await _await_answer(context, stream, is_streaming, exchange)
            return Forwarded(stream, events, plan)
        except BaseException:
            self._fleet.release(plan)
            raise

    def _plan(self, need: RouteNeed, failure: ServiceError | None) -> RoutePlan:
        """The next node: one that has not failed, else the same if it may do better now.

        Raises: `failure`, if there is one, when none is left.
        """
        try:
            return self._fleet.plan(need)
        except ServiceError as error:
            if failure is None:
                raise
            if failure.retry is not Retry.SAME:
                raise failure from error
        try:
            return self._fleet.plan(msgspec.structs.replace(need, tried=frozenset()))
        except ServiceError as error:
            raise failure from error


def is_streaming(request: NodeRequest) -> bool:
    """True when the answer is to be passed on as it comes."""
    return isinstance(request, GenerateRequest) and request.stream


async def _await_answer(
    context: RequestContext, stream: NodeStream, is_streaming: bool, exchange: HttpExchange
) -> list[GenerationEvent]:
    """The answer's first events, or all; raises the error it is instead, its usage noted."""
    exchange.watch(stream.abort)
    try:
        events = await (stream.take() if is_streaming else stream.take_all())
    except BaseException:
        stream.release()  # this task is being cancelled: nobody will take the events
        context.usage = stream.read_usage()
        raise
    last = events[-1]
    if type(last) is Failed:
        context.usage = stream.read_usage()
        raise _to_client_error(from_error_report(last.error), stream.node_id)
    if type(last) is Finished and last.reason is FinishReason.ABORTED and not stream.is_aborted:
        context.usage = stream.read_usage()
        raise StreamBroken("The node gave the request up.")
    return events


def _to_client_error(error: ServiceError, node_id: NodeId) -> ServiceError:
    """`error`, unless it is about the gateway's own standing there: no affair of the client."""
    if isinstance(error, Forbidden | Unauthenticated):
        log.error("grant_refused", node_id=node_id, reason=error.message)
        return InvariantBroken("The request could not be handed to a node.")
    return error


def _may_retry(error: ServiceError) -> bool:
    """True when another attempt could end better, within the same deadline."""
    return error.retry in (Retry.SAME, Retry.ELSEWHERE) and not isinstance(error, DeadlineExceeded)


def _create_grant(context: RequestContext, plan: RoutePlan) -> Grant:
    """What the node may do for this attempt, and no more."""
    principal = context.principal
    assert principal is not None
    return Grant(
        context.request_id,
        context.num_attempts,
        principal.account_id,
        principal.cache_salt,
        plan.card.name,
        principal.allowed_regions,
        principal.priority,
        principal.retention,
        context.deadline_unix_ms,
        plan.card.context_window,
    )
