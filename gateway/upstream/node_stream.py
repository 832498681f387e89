"""One attempt of one request at one node: its events in order, and the ways to end it.

The channel between a connection's reader, which must never wait, and the one request that it is
for: its task takes the beginning, or all of an answer in one piece; a listener takes a stream. Owns
buffering, the count of what has come, and credit: a node may send `CREDIT_WINDOW` deltas ahead of
the client and merges what comes after, and what waits here is bounded in events and characters, so
that a slow reader costs a bounded amount of memory.
Read next: `gateway.upstream.connection`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from contracts.adapters import AdapterWanted
from contracts.errors import PayloadTooLarge, ServiceError, StreamBroken, to_error_report
from contracts.ids import NodeId
from contracts.inference import (
    RESUMPTION,
    Accepted,
    Delta,
    Failed,
    Finished,
    GenerationEvent,
    PromptScored,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from contracts.kv_transfer import KvImport, KvRelease, KvStop, KvTicket, TransferEvent
from gateway.request_context import Tally, create_tally
from gateway.upstream.progress import Progress

CREDIT_WINDOW: Final = 64
_ENOUGH_TAKEN: Final = CREDIT_WINDOW // 2
"""Of which the node is told at once."""
_MAX_BUFFERED: Final = CREDIT_WINDOW + 512
"""Deltas within the window, the `MAX_AHEAD` that a node may send beyond it, and events that need no
credit, such as ends of choices. Those that bring scores are counted by these."""
_MAX_OF_CHOICE: Final = 32
"""So many more of each further choice: nodes of earlier versions send all that they have merged of
one when it ends."""
_MAX_WHOLE: Final = 16_384
"""The same of an answer in one piece, of which nothing is taken before its end: 128 choices of 128
parts, such as tool calls."""
MAX_SCORES: Final = 2 << 20
"""Of tokens and their alternatives, that are held at once: they come in pieces of a few hundred, or
as many as a step has, and those of prompts need no credit."""
MAX_CHARS: Final = 16 << 20
"""Characters of a stream that are held. A node sends fewer ahead of a client that does not read, as
its deltas are bounded; those of earlier versions sent a prompt's echo as one."""
MAX_WHOLE_CHARS: Final = 64 << 20
"""The same of an answer in one piece."""
_NEED_CREDIT: Final = (Delta, ReasoningDelta, ToolCallDelta)
_PROMPT, _CACHED, _GENERATED, _REASONING = range(4)


class StreamOwner(Protocol):
    """What a stream asks of the connection that carries it."""

    def send_abort(self, stream: "NodeStream") -> None:
        """Tells the node to end the stream."""
        ...

    def send_credit(self, stream: "NodeStream", num_deltas: int) -> None:
        """Lets the node send more."""
        ...

    def send_transfer(self, stream: "NodeStream", message: KvImport | KvRelease | KvStop) -> None:
        """Says something of KV blocks that another node has computed."""
        ...

    def send_pieces(
        self, stream: "NodeStream", first: int, data: bytes, note_gone: Callable[[], None]
    ) -> None:
        """Sends bytes of the adapter of `stream`; tells `note_gone` when they are on their way."""
        ...

    def drop(self, stream: "NodeStream", error: ServiceError) -> None:
        """Ends `stream` on our side at once, and tells the node."""
        ...

    def seal(self, ticket: KvTicket) -> bytes:
        """The ticket as this connection's node believes it."""
        ...

    @property
    def note(self) -> Callable[[Callable[[], None]], None]:
        """Has a listener called once all of the moment's events are here."""
        ...


class PieceFeed(Protocol):
    """What answers a node that lacks its request's adapter."""

    def take(self, wanted: AdapterWanted) -> None:
        """The node asks for bytes."""
        ...

    def end(self) -> None:
        """The stream is over, or about to be. Called once or more."""
        ...


class NodeStream:
    """Events of one attempt, taken by one task; pushed by the connection."""

    __slots__ = (
        "_events",
        "_has_begun",
        "_is_resumed",
        "_listener",
        "_most_text_chars",
        "_num_cached_elsewhere",
        "_num_free",
        "_num_scored",
        "_num_scores",
        "_num_taken",
        "_owner",
        "_tally",
        "_told",
        "_waiter",
        "_waits_for_end",
        "attempt",
        "ends_s",
        "fed_s",
        "feed",
        "is_aborted",
        "is_accepted",
        "is_cut",
        "is_ours",
        "is_over",
        "node_id",
        "num_answers",
        "on_accepted",
        "on_over",
        "on_transfer",
        "progress",
        "since_s",
        "stream_id",
    )

    def __init__(
        self, owner: StreamOwner, node_id: NodeId, stream_id: int, attempt: int, now_s: float
    ) -> None:
        """A stream that was just opened at `now_s` (monotonic)."""
        self.node_id = node_id
        self.stream_id = stream_id
        self.attempt = attempt
        self.is_accepted = False
        self.is_aborted = False
        self.is_over = False
        self.since_s = now_s
        """When the stream was opened, or else aborted: the start of the wait that is bounded."""
        self.ends_s = float("inf")
        """When its request's deadline passes: that of all attempts together."""
        self.feed: PieceFeed | None = None
        """Has the adapter of the request; None: it has none."""
        self.fed_s = now_s
        """When bytes of that were last sent: a node that gets them makes progress."""
        self.is_ours = False
        """It has failed by us, and not by its node."""
        self.is_cut = False
        """Its end was not its node's word: nobody knows what was computed there."""
        self._owner = owner
        self._events: list[GenerationEvent] = []
        self._listener: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_end = False
        self.on_accepted: Callable[[int, int], Tally] | None = None
        """Told of the prompt's tokens and of the cached ones among them; says where to count."""
        self.on_over: Callable[[], None] | None = None
        """Told once that the node has said its last word, or can say no more. It must not raise."""
        self.on_transfer: Callable[[TransferEvent], None] | None = None
        """Told of KV blocks that come or go; None: there are none."""
        self._num_cached_elsewhere: int | None = None
        self._tally = create_tally()
        self._has_begun = self._is_resumed = False
        """This node computes; it goes on with another's answer."""
        self.progress = Progress()
        """Of the answer; handed on to the stream that continues it."""
        self._told: Usage | None = None
        self.num_answers = 1
        """Choices of all prompts: more events may come at once of several."""
        self._most_text_chars = MAX_CHARS
        """What the answer's text may come to before more of it has been taken."""
        self._num_taken = self._num_free = 0
        """Events that were taken and needed credit; those that wait and need none."""
        self._num_scored = self._num_scores = 0
        """Events that brought scores, behind others that wait, and what they brought."""

    @property
    def num_held(self) -> int:
        """Events that nobody has taken yet."""
        return len(self._events)

    @property
    def is_whole(self) -> bool:
        """True where nothing is wanted of it before its end."""
        return self._waits_for_end

    async def take(self) -> list[GenerationEvent]:
        """All events since the last call, at least one; the last of all is Finished or Failed."""
        if not self._events:
            await self._create_waiter()
        return self.take_now()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Calls `listener` after each frame that brought events, which `take_now` takes; of text
        only where all before it was taken.

        A task that waits costs more per event than all else but the write. It must not raise.
        """
        self._listener = listener

    def take_now(self) -> list[GenerationEvent]:
        """All events since the last call, if there are any; never waits."""
        events, self._events = self._events, []
        self._num_scored = self._num_scores = 0
        self._num_taken += len(events) - self._num_free
        self._num_free = 0
        self._most_text_chars = self.progress.num_text_chars + MAX_CHARS
        if self._num_taken >= _ENOUGH_TAKEN:
            self._send_credit()
        return events

    def take_text(self) -> str | None:
        """The same where that is one piece of plain text, as nearly always; else None, and nothing
        is taken.
        """
        events = self._events
        if len(events) != 1:
            return None
        event = events[0]
        if type(event) is not Delta or event.choice_index or event.logprobs:
            return None
        events.clear()
        self._most_text_chars = self.progress.num_text_chars + MAX_CHARS
        self._num_taken += 1
        if self._num_taken >= _ENOUGH_TAKEN:
            self._send_credit()
        return event.text

    def _send_credit(self) -> None:
        """Lets the node send as much again as was taken."""
        if not self.is_over:
            self._owner.send_credit(self, self._num_taken)
            self._num_taken = 0

    async def take_all(self) -> list[GenerationEvent]:
        """Every event once the stream is over, for answers that are given in one piece."""
        if not self.is_over:
            self._waits_for_end = True
            self._most_text_chars += MAX_WHOLE_CHARS - MAX_CHARS
            await self._create_waiter()
        return self._events

    def push(self, event: GenerationEvent) -> bool:
        """Adds an event and wakes the task that waits for it. Called by the connection only.

        False when more has come than is held; `break_off_excess` must follow.
        """
        events = self._events
        if type(event) is Delta:
            return self.push_text(event)
        if not isinstance(event, _NEED_CREDIT):
            self._num_free += 1
        events.append(self._note(event))
        if self._listener is not None:
            self._owner.note(self._listener)
        self._wake()
        return self._has_room(event.logprobs if type(event) is PromptScored else ())

    def push_text(self, delta: Delta) -> bool:
        """The same for plain text, which nearly every event is: each of its calls counts."""
        progress, events = self.progress, self._events
        progress.token_ids += delta.token_ids
        progress.num_text_chars += len(delta.text)
        self._tally[_GENERATED] = len(progress.token_ids)
        events.append(delta)
        if len(events) > 1:  # who is to be told is told already, or does not want to be
            is_few = not delta.logprobs and len(events) <= _MAX_BUFFERED
            if is_few and progress.num_text_chars <= self._most_text_chars:
                return True
            return self._has_room(delta.logprobs)
        listener = self._listener
        if listener is not None:
            note = self._owner.note
            note(listener)
        else:
            self._wake()
        return True

    def explain_excess(self) -> ServiceError:
        """Why a stream of which more has come than is held ends: its request asks for too much, or
        its node sends more than its credit allows.
        """
        if self._num_scores > MAX_SCORES:
            return PayloadTooLarge(
                "The answer has more scores of tokens than one may have, please ask for fewer at "
                "once."
            )
        if self.progress.num_text_chars > self._most_text_chars:
            return PayloadTooLarge(
                "More of the answer has come than is held until its client reads it, please read "
                "faster or ask for fewer choices at once."
            )
        return StreamBroken("The node sent more than it was asked for.")

    def _has_room(self, scores: Sequence[TokenLogprob]) -> bool:
        """True while what waits is no more than is held; the latest event has brought `scores`."""
        if scores:
            self._num_scored += 1
            self._num_scores += sum(1 + len(score.top) for score in scores)
        max_events = _MAX_BUFFERED + _MAX_OF_CHOICE * (self.num_answers - 1)
        if self._waits_for_end:
            max_events = _MAX_WHOLE
        is_within = len(self._events) - self._num_scored <= max_events
        has_room = self.progress.num_text_chars <= self._most_text_chars
        return is_within and has_room and self._num_scores <= MAX_SCORES

    def _wake(self) -> None:
        """Wakes the task that waits if this is what it waits for, and tells of the end."""
        waiter = self._waiter
        if waiter is not None and (self.is_over or not self._waits_for_end):
            self._waiter = None
            if not waiter.done():  # done means that the task is being cancelled
                waiter.set_result(None)
        if self.is_over and self.feed is not None:
            feed, self.feed = self.feed, None
            feed.end()
        if self.is_over and self.on_over is not None:
            on_over, self.on_over = self.on_over, None
            on_over()

    def send_transfer(self, message: KvImport | KvRelease | KvStop) -> None:
        """Says something of KV blocks, unless the stream is over."""
        if not self.is_over and not self.is_aborted:
            self._owner.send_transfer(self, message)

    def seal(self, ticket: KvTicket) -> bytes:
        """The ticket as this stream's node believes it."""
        return self._owner.seal(ticket)

    def send_pieces(self, first: int, data: bytes, note_gone: Callable[[], None]) -> None:
        """Sends bytes of the request's adapter; `note_gone` is told when they are on their way, or
        at once where the stream is over.
        """
        if self.is_over or self.is_aborted:
            note_gone()
        else:
            self._owner.send_pieces(self, first, data, note_gone)

    def break_off(self, error: ServiceError, *, is_ours: bool = False) -> None:
        """Ends the stream with an error, unless it is over; `is_ours`: the node is not to blame."""
        if not self.is_over and not self.is_aborted:
            self.is_ours = is_ours
            self._owner.drop(self, error)

    def break_off_excess(self) -> None:
        """Ends a stream of which more has come than is held. Where its request asks for too much,
        no node is to blame.
        """
        error = self.explain_excess()
        self.is_ours = isinstance(error, PayloadTooLarge)
        self._owner.drop(self, error)

    def note_prompt(self, num_prompt: int, num_cached: int) -> None:
        """Another node has counted the prompt and computes it: it is paid from here on, and what
        this node finds cached then is not what the client is told.
        """
        if self.is_over or self.is_accepted or self._is_resumed:
            return
        self.is_accepted = True
        self._num_cached_elsewhere = num_cached
        self._count_prompt(num_prompt, num_cached)

    def read_usage(self) -> Usage | None:
        """What was consumed: what the node said, else what it had sent; None before any of it."""
        if self._told is not None or not (self.is_accepted or self._is_resumed):
            return self._told
        return self._read_tally()

    def fail(self, error: ServiceError) -> None:
        """Ends the stream with an error of our own, unless it is over. Called by the connection."""
        if not self.is_over:
            self.is_cut = True
            self.push(Failed(to_error_report(error)))
            if self._listener is not None:
                self._listener()

    def abort(self) -> None:
        """Asks the node to end the stream; it answers with what was consumed. Idempotent."""
        if not self.is_over and not self.is_aborted:
            self.is_aborted = True
            if self.feed is not None:
                self.feed.end()
            self._owner.send_abort(self)

    def resume(self, before: "NodeStream") -> None:
        """This goes on with the answer of `before`, and counts where that did.

        What the client has got counts, not what the lost node had computed beyond it.
        """
        self._is_resumed = True
        self.progress, self._tally = before.progress, before._tally
        before.progress = Progress()
        before.release()
        self._tally[_GENERATED] = len(self.progress.token_ids)
        self._tally[_REASONING] = self.progress.num_reasoning
        self._most_text_chars = self.progress.num_text_chars + MAX_CHARS

    def release(self) -> None:
        """Nobody takes or counts what comes from now on; a stream that is not over is aborted."""
        self.abort()
        self.on_accepted = None
        self._tally = [*self._tally]  # cells of a file are another request's soon

    def _note(self, event: GenerationEvent) -> GenerationEvent:
        """Takes from an event that is not text what is needed of it here, and passes it on."""
        if type(event) is Accepted:
            return self._accept(event)
        if type(event) is Finished or type(event) is Failed:
            self.is_over = True
            if self._is_resumed and type(event) is Failed and event.error.param == RESUMPTION:
                self.is_ours = True  # another node has said what this one was told
            if event.usage is not None:
                self._told = self._set_tally(event.usage)
                if self._told != event.usage:
                    return msgspec.structs.replace(event, usage=self._told)
        else:
            self.progress.note(event)
            self._most_text_chars -= _count_chars(event)
            self._tally[_GENERATED] = len(self.progress.token_ids)
            self._tally[_REASONING] = self.progress.num_reasoning
        return event

    def _accept(self, event: Accepted) -> Accepted:
        """The node has counted the prompt, which counts unless it does already."""
        self.is_accepted = self._has_begun = True
        if self._is_resumed:
            return event
        if self._num_cached_elsewhere is not None:
            num_prompt = event.num_prompt_tokens
            return Accepted(num_prompt, self._bound_cached(num_prompt, event.num_cached_tokens))
        self._count_prompt(event.num_prompt_tokens, event.num_cached_tokens)
        return event

    def _count_prompt(self, num_prompt: int, num_cached: int) -> None:
        """Says where the attempt's tokens are counted from now on."""
        if self.on_accepted is not None:
            self._tally = self.on_accepted(num_prompt, num_cached)
        self._tally[_PROMPT] = num_prompt
        self._tally[_CACHED] = num_cached

    def _set_tally(self, usage: Usage) -> Usage:
        """Counts what the node has told instead of what has come; of one that goes on, its part.

        One that has not begun knows nothing of what others had computed before: that stays.
        """
        if not self._has_begun:
            usage = usage.raise_to(self._read_tally())
        if not self._is_resumed:
            num_prompt = self._tally[_PROMPT] = usage.num_prompt_tokens
            self._tally[_CACHED] = self._bound_cached(num_prompt, usage.num_cached_tokens)
        self._tally[_GENERATED] = usage.num_completion_tokens
        self._tally[_REASONING] = usage.num_reasoning_tokens
        return self._read_tally()

    def _bound_cached(self, num_prompt: int, num_cached: int) -> int:
        """What counts as cached: what the other node has said, as far as this prompt goes."""
        elsewhere = self._num_cached_elsewhere
        return num_cached if elsewhere is None else min(elsewhere, num_prompt)

    def _read_tally(self) -> Usage:
        """What is counted."""
        return Usage(*self._tally)

    def _create_waiter(self) -> asyncio.Future[None]:
        """Done when `push` finds something worth waking for."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter


def _count_chars(event: GenerationEvent) -> int:
    """Characters of an event that is no plain text."""
    if isinstance(event, ReasoningDelta):
        return len(event.text)
    if isinstance(event, ToolCallDelta):
        return len(event.id) + len(event.name) + len(event.arguments)
    return 0
