"""Translate: a node's events into the client's language, in one piece or as they come.

Owns what happens after the first byte: all text that waits goes out in one message, an error
becomes an event, and once the client has left the rest is only read for its usage. Must not know
routing. Read next: `gateway.dialects.dialect`.
"""

from collections.abc import Callable

from contracts.errors import InvariantBroken, ServiceError, StreamBroken, from_error_report
from contracts.inference import Delta, Failed, Finished, FinishReason, GenerationEvent
from gateway.dialects.dialect import Dialect, EventRenderer, ReplyHead
from gateway.errors import find_row, format_error_headers
from gateway.forwarding import Forwarded
from gateway.middleware.exchange import HttpExchange
from gateway.request_context import RequestContext


async def answer_whole(
    context: RequestContext,
    exchange: HttpExchange,
    dialect: Dialect,
    events: list[GenerationEvent],
    headers: bytes,
) -> int:
    """The status, once the whole answer is sent and its usage noted."""
    last = events[-1]
    if type(last) is not Finished:
        raise InvariantBroken("The answer has no end.")
    context.usage = last.usage
    head = _create_head(context, includes_usage=True)
    text = "".join([event.text for event in events if type(event) is Delta])
    await exchange.reply(200, dialect.render_reply(head, text, last.reason, last.usage), headers)
    return 200


async def answer_error(
    exchange: HttpExchange, dialect: Dialect, error: ServiceError, headers: bytes
) -> int:
    """The status of `error`, once it is sent; after the first byte the connection is cut."""
    status = find_row(error).status
    if exchange.has_started:
        exchange.cut()
    else:
        headers = format_error_headers(error) + headers
        await exchange.reply(status, dialect.render_error(error), headers)
    return status


async def answer_events(
    context: RequestContext,
    exchange: HttpExchange,
    renderer: EventRenderer,
    forwarded: Forwarded,
    on_first_text: Callable[[], None],
) -> int:
    """The status that the stream's end stands for, once all events are sent and its usage noted.

    The client was told 200 before.
    """
    stream, events = forwarded.stream, forwarded.events
    waits_for_text = True
    opening = renderer.begin()
    while True:
        # Not `stream.is_over`: that may turn true while we wait, with the last event still to take.
        last = events[-1]
        is_last = isinstance(last, Finished | Failed)
        text = _join_text(events)
        data = opening + renderer.render_text(text) if text else opening
        opening = b""
        error = None
        if is_last:
            context.usage = last.usage
            error = _find_error(last, stream.is_aborted)
            data += _render_end(renderer, last, error)
        if data and not exchange.is_lost:
            await exchange.send_events(data, is_last=is_last)
        if waits_for_text and text:
            waits_for_text = False
            on_first_text()
        if is_last:
            return 200 if error is None else find_row(error).status
        events = await stream.take()


def create_renderer(
    context: RequestContext, dialect: Dialect, includes_usage: bool
) -> EventRenderer:
    """The renderer of one stream."""
    return dialect.create_renderer(_create_head(context, includes_usage))


def _create_head(context: RequestContext, includes_usage: bool) -> ReplyHead:
    return ReplyHead(context.request_id, context.model, int(context.started_unix_s), includes_usage)


def _join_text(events: list[GenerationEvent]) -> str:
    """The text of all events, which mostly are one."""
    if len(events) == 1:
        event = events[0]
        return event.text if type(event) is Delta else ""
    return "".join([event.text for event in events if type(event) is Delta])


def _find_error(last: Finished | Failed, is_aborted: bool) -> ServiceError | None:
    """The error that a stream's last event stands for."""
    if isinstance(last, Failed):
        return from_error_report(last.error)
    if last.reason is FinishReason.ABORTED and not is_aborted:
        return StreamBroken("The node gave the request up.")
    return None


def _render_end(
    renderer: EventRenderer, last: Finished | Failed, error: ServiceError | None
) -> bytes:
    if error is not None:
        return renderer.fail(error)
    assert isinstance(last, Finished)
    return renderer.finish(last.reason, last.usage)
