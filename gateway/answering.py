"""Translate: a node's events into the client's language, in one piece or as they come.

Owns what happens after the first byte: all events that wait go out in one message, an error
becomes an event, and once the client has left the rest is only read for its usage. The request is
settled before the last byte goes out. Must not know routing. Read next: `gateway.dialects.dialect`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeGuard, cast

from contracts.encoding import Encoded
from contracts.errors import InvariantBroken, ServiceError
from contracts.inference import (
    Accepted,
    Delta,
    Failed,
    Finished,
    GenerationEvent,
    TokensCounted,
)
from contracts.usage import Outcome
from gateway.continuation import Forwarded
from gateway.dialects.answer import gather_answer
from gateway.dialects.dialect import EventRenderer, MiddleEvent, ReplyForm, ReplyHead
from gateway.errors import find_row, format_error_headers, render_error
from gateway.middleware.exchange import HttpExchange
from gateway.request_context import RequestContext
from gateway.settlement import Settlement

_NOT_ACCEPTED: Final = Accepted(0, 0)
_ENDS: Final = frozenset[object]((Finished, Failed))
_UNSEEN: Final = _ENDS | {Accepted, TokensCounted, Encoded}
"""What a stream's readers get in no event of its own."""


async def answer_whole(
    context: RequestContext,
    exchange: HttpExchange,
    form: ReplyForm,
    events: list[GenerationEvent],
    settlement: Settlement,
    headers: bytes,
) -> bytes:
    """The whole answer, once the request is settled and it is sent. Raises: `RequestError`."""
    last = events[-1]
    if type(last) is not Finished:
        raise InvariantBroken("The answer has no end.")
    context.usage = last.usage
    body = form.render_reply(create_head(context), gather_answer(events))
    await settlement.settle(Outcome.ABORTED if exchange.is_lost else Outcome.COMPLETE)
    if exchange.is_blocked:
        await exchange.drain()
    exchange.reply(200, body, headers)
    return body


async def answer_error(exchange: HttpExchange, error: ServiceError, headers: bytes) -> int:
    """The status of `error`, once it is sent; after the first byte the connection is cut."""
    status = find_row(error).status
    if exchange.has_started:
        exchange.cut()
    else:
        if exchange.is_blocked:
            await exchange.drain()
        exchange.reply(status, render_error(error), format_error_headers(error) + headers)
    return status


class EventPump:
    """A stream's way from the node to the client, without a task between the two.

    `run` sends the beginning and the end; all in between is sent as it comes, inside the read of
    the frame that brought it. While the client does not read, events stay with the stream, whose
    credit then runs out.
    """

    __slots__ = (
        "_end",
        "_exchange",
        "_flow",
        "_forwarded",
        "_on_first_text",
        "_renderer",
        "_stream",
        "_waits_for_text",
    )

    def __init__(
        self,
        exchange: HttpExchange,
        renderer: EventRenderer,
        forwarded: Forwarded,
        on_first_text: Callable[[], None],
    ) -> None:
        """The head of the answer has been sent."""
        self._exchange = exchange
        self._flow = exchange.flow
        self._renderer = renderer
        self._forwarded = forwarded
        self._stream = forwarded.stream
        self._on_first_text = on_first_text
        self._waits_for_text = True
        self._end: asyncio.Future[list[GenerationEvent]] | None = None

    async def run(self, context: RequestContext, settlement: Settlement) -> int:
        """The status that the end stands for, once it is settled and all is sent.

        The client was told 200 before.
        """
        forwarded = self._forwarded
        events = forwarded.events
        first = events[0]
        opening = self._renderer.begin(first if type(first) is Accepted else _NOT_ACCEPTED)
        while True:
            # Not `stream.is_over`: that may be true already, with the last event still to take.
            if type(events[-1]) not in _ENDS:
                self._send(events, opening)
                opening = b""
                events = await self._wait_for_end()
            last = events[-1]
            assert isinstance(last, Finished | Failed)
            following = await forwarded.go_on(last)
            if following is None:
                break
            self._send(events[:-1], opening)
            opening = b""
            events, self._stream = following, forwarded.stream
        context.usage = forwarded.read_usage()
        error = forwarded.find_error(last)
        await settlement.settle(_find_outcome(self._exchange, error))
        if self._exchange.is_blocked:
            await self._exchange.drain()
        if isinstance(last, Finished):
            last = forwarded.complete(last)
        self._send(events, opening, lambda: _render_end(self._renderer, last, error))
        return 200 if error is None else find_row(error).status

    async def _wait_for_end(self) -> list[GenerationEvent]:
        """The last events; those before them are sent meanwhile."""
        self._end = asyncio.get_running_loop().create_future()
        self._stream.listen(self._pump)
        self._exchange.watch_writable(self._pump)
        try:
            self._pump()  # what came between
            return await self._end
        finally:
            self._stream.listen(None)
            self._exchange.watch_writable(None)

    def _pump(self) -> None:
        """Sends what is there, unless the client should read first."""
        end = self._end
        if end is None or end.done() or self._flow.write_paused:
            return
        events = self._stream.take_now()
        if not events:
            return
        if self._stream.is_over:
            end.set_result(events)
            return
        try:
            first = events[0]
            if len(events) > 1 or self._waits_for_text or not _is_plain(first):
                self._send(events)
            elif first.text:
                data = self._renderer.render_text(first.text)
                self._exchange.send_events(data, is_last=False)
        except Exception as error:  # the reader of all streams calls this
            end.set_exception(error)

    def _send(
        self,
        events: list[GenerationEvent],
        opening: bytes = b"",
        render_end: Callable[[], bytes] | None = None,
    ) -> None:
        """Sends what `events` look like after `opening`, and the end with them, in one piece.

        The end is rendered last, for renderers remember what came before.
        """
        rendered = _render(self._renderer, events)
        data = opening + rendered
        if render_end is not None:
            data += render_end()
        if data:
            self._exchange.send_events(data, is_last=render_end is not None)
        if rendered and self._waits_for_text:
            self._waits_for_text = False
            self._on_first_text()


def create_head(context: RequestContext) -> ReplyHead:
    """What the reply to a request says of itself."""
    return ReplyHead(context.request_id, context.model, int(context.started_unix_s))


def _render(renderer: EventRenderer, events: list[GenerationEvent]) -> bytes:
    """All events but the first and the last of a stream.

    Plain texts that follow one another go out as one.
    """
    texts: list[str] = []
    pieces: list[bytes] = []
    for event in events:
        if _is_plain(event):
            texts.append(event.text)
        elif type(event) not in _UNSEEN:
            if texts and (text := "".join(texts)):
                pieces.append(renderer.render_text(text))
            texts.clear()
            pieces.append(renderer.render_event(cast("MiddleEvent", event)))
    if texts and (text := "".join(texts)):
        pieces.append(renderer.render_text(text))
    return b"".join(pieces)


def _is_plain(event: GenerationEvent) -> TypeGuard[Delta]:
    """True for text of the first choice without scores."""
    return type(event) is Delta and not event.choice_index and not event.logprobs


def _find_outcome(exchange: HttpExchange, error: ServiceError | None) -> Outcome:
    """What the ledger says of a stream's end."""
    if exchange.is_lost:
        return Outcome.ABORTED
    return Outcome.COMPLETE if error is None else Outcome.FAILED


def _render_end(
    renderer: EventRenderer, last: Finished | Failed, error: ServiceError | None
) -> bytes:
    if error is not None:
        return renderer.fail(error)
    assert isinstance(last, Finished)
    return renderer.finish(last)
