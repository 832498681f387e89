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
        """Nothing has been sent."""
        self._exchange = exchange
        self._flow = exchange.flow
        self._renderer = renderer
        self._forwarded = forwarded
        self._stream = forwarded.stream
        self._on_first_text = on_first_text
        self._waits_for_text = True
        self._end: asyncio.Future[list[GenerationEvent]] | None = None

    async def run(self, context: RequestContext, settlement: Settlement, headers: bytes) -> int:
        """The status that the end stands for, once it is settled and all is sent.

        The client is told 200 first, and `headers`.
        """
        forwarded = self._forwarded
        events = forwarded.events
        first = events[0]
        opening = self._renderer.begin(first if type(first) is Accepted else _NOT_ACCEPTED)
        self._exchange.start_events(headers, opening)
        while True:
            # Not `stream.is_over`: that may be true already, with the last event still to take.
            if type(events[-1]) not in _ENDS:
                self._send(events)
                events = await self._wait_for_end()
            last = events[-1]
            assert isinstance(last, Finished | Failed)
            following = await forwarded.go_on(last)
            if following is None:
                break
            self._send(events[:-1])
            events, self._stream = following, forwarded.stream
        context.usage = forwarded.read_usage()
        error = forwarded.find_error(last)
        await settlement.settle(_find_outcome(self._exchange, error))
        if self._exchange.is_blocked:
            await self._exchange.drain()
        if isinstance(last, Finished):
            last = forwarded.complete(last)
        text = self._render(events)
        self._exchange.end_events(text + _render_end(self._renderer, last, error))
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
            self._end = None
            self._stream.listen(None)
            self._exchange.watch_writable(None)

    def _pump(self) -> None:
        """Sends what is there, unless the client should read first."""
        end = self._end
        if end is None or self._flow.write_paused:
            return
        try:
            if not self._waits_for_text and (text := self._stream.take_text()) is not None:
                if text:
                    self._exchange.send_events(self._renderer.render_text(text))
            elif not end.done():
                self._pump_events(end)
        except Exception as error:  # the reader of all streams calls this
            self._end = None
            if not end.done():
                end.set_exception(error)

    def _pump_events(self, end: asyncio.Future[list[GenerationEvent]]) -> None:
        """The same of whatever is there; of the last events `end` is told."""
        events = self._stream.take_now()
        if self._stream.is_over and events:
            end.set_result(events)
        else:
            self._send(events)

    def _send(self, events: list[GenerationEvent]) -> None:
        """Sends what `events` look like, in one piece."""
        data = self._render(events)
        if data:
            self._exchange.send_events(data)

    def _render(self, events: list[GenerationEvent]) -> bytes:
        """What `events` look like; the first text of all is noted."""
        data = _render(self._renderer, events)
        if data and self._waits_for_text:
            self._waits_for_text = False
            self._on_first_text()
        return data


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
