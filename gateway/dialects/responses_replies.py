"""The Responses API's answers: one object, or named events that tell how it grows.

Every event has a number; items open, grow and close, and the last event repeats the whole response.
Source: OpenAI's API reference. Read next: `gateway.dialects.responses_objects`.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.errors import ServiceError
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    PromptScored,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
)
from gateway.dialects.answer import Answer
from gateway.dialects.dialect import EventRenderer, MiddleEvent, ReplyHead
from gateway.dialects.logprobs import to_chat_logprobs
from gateway.dialects.replies import SuccessEnvelope, encoder, frame_named_event
from gateway.dialects.responses_objects import (
    COMPLETED,
    IN_PROGRESS,
    Echo,
    FunctionCallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    create_item_id,
    create_message,
    create_reasoning,
    describe_response,
    find_status,
    to_items,
)
from gateway.errors import find_row


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """How a request wants its response."""

    echo: Echo
    is_wrapped: bool = False
    """True on the native route: the object is the result inside an envelope."""

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """A `response` object."""
        choice = answer.choices[0]
        response = describe_response(
            self.echo, head, find_status(choice.reason), to_items(head, choice), answer.usage
        )
        return encoder.encode(SuccessEnvelope(response) if self.is_wrapped else response)

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """Named events."""
        return ResponseEvents(head, self.echo)


class ResponseEvents:
    """`response.created`, then items that open, grow and close, then `response.completed`."""

    __slots__ = ("_before_text", "_call", "_echo", "_head", "_items", "_kind", "_number", "_pieces")

    def __init__(self, head: ReplyHead, echo: Echo) -> None:
        """Nothing has come yet."""
        self._head = head
        self._echo = echo
        self._number = -1
        self._items: list[Item] = []
        """Those that are complete."""
        self._kind: str | None = None
        """What is open: `text`, `reasoning`, or the place of a call."""
        self._pieces: list[str] = []
        """What the open item consists of so far."""
        self._call: ToolCallDelta | None = None
        """The beginning of the open call."""
        self._before_text = b""

    def begin(self, accepted: Accepted) -> bytes:
        """The response without output."""
        response = describe_response(self._echo, self._head, IN_PROGRESS, (), None)
        return self._frame("response.created", response=response) + self._frame(
            "response.in_progress", response=response
        )

    def render_text(self, text: str) -> bytes:
        """More text; the fixed parts are not encoded anew."""
        opening = b"" if self._kind == "text" else self._open_text()
        self._pieces.append(text)
        self._number += 1
        return b'%b%b%b,"sequence_number":%d}\n\n' % (
            opening,
            self._before_text,
            encoder.encode(text),
            self._number,
        )

    def render_event(self, event: MiddleEvent) -> bytes:
        """More of whatever has come, in an item of its kind."""
        match event:
            case Delta(text, _, _, logprobs):
                if logprobs:
                    return self._render_scored_text(text, logprobs)
                return self.render_text(text) if text else b""
            case ReasoningDelta(text):
                opening = b"" if self._kind == "reasoning" else self._open_reasoning()
                self._pieces.append(text)
                return opening + self._frame_part("response.reasoning_text.delta", delta=text)
            case ToolCallDelta():
                return self._render_call(event)
            case ChoiceFinished() | PromptScored():
                return b""

    def finish(self, last: Finished) -> bytes:
        """The end of the last item, and the whole response."""
        status = find_status(last.reason)
        closing = b"" if self._kind or self._items else self._open_text()
        closing += self._close(status)
        response = describe_response(self._echo, self._head, status, tuple(self._items), last.usage)
        return closing + self._frame(f"response.{status}", response=response)

    def fail(self, error: ServiceError) -> bytes:
        """The error as a named event."""
        row = find_row(error)
        return self._frame("error", code=row.name, message=error.message, param=error.param)

    def _render_scored_text(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        """Text with how likely its tokens were."""
        opening = b"" if self._kind == "text" else self._open_text()
        self._pieces.append(text)
        entries = to_chat_logprobs(logprobs).content
        return opening + self._frame_part(
            "response.output_text.delta", delta=text, logprobs=entries
        )

    def _render_call(self, event: ToolCallDelta) -> bytes:
        """The beginning of a call, or more of its arguments."""
        kind = f"call {event.call_index}"
        opening = b""
        if self._kind != kind:
            opening = self._close(COMPLETED)
            self._kind, self._call = kind, event
            item = FunctionCallItem(self._item_id, event.id, event.name, "", IN_PROGRESS)
            opening += self._frame_item("response.output_item.added", item)
        if not event.arguments:
            return opening
        self._pieces.append(event.arguments)
        return opening + self._frame_place(
            "response.function_call_arguments.delta", delta=event.arguments
        )

    def _open_text(self) -> bytes:
        """Closes the item before and opens a message."""
        closing = self._close(COMPLETED)
        self._kind = "text"
        self._before_text = (
            b"event: response.output_text.delta\n"
            b'data: {"type":"response.output_text.delta","item_id":%b,"output_index":%d,'
            b'"content_index":0,"logprobs":[],"delta":'
        ) % (encoder.encode(self._item_id), len(self._items))
        item = MessageItem(self._item_id, (), IN_PROGRESS)
        return (
            closing
            + self._frame_item("response.output_item.added", item)
            + self._frame_part("response.content_part.added", part=OutputText(""))
        )

    def _open_reasoning(self) -> bytes:
        """Closes the item before and opens thoughts."""
        closing = self._close(COMPLETED)
        self._kind = "reasoning"
        item = ReasoningItem(self._item_id, (), IN_PROGRESS)
        return (
            closing
            + self._frame_item("response.output_item.added", item)
            + self._frame_part("response.content_part.added", part=ReasoningText(""))
        )

    def _close(self, status: str) -> bytes:
        """The end of the open item, if there is one."""
        if self._kind is None:
            return b""
        text, self._pieces = "".join(self._pieces), []
        kind, self._kind = self._kind, None
        item: Item
        if kind == "text":
            item = create_message(self._item_id, text, status)
            ends = self._frame_part("response.output_text.done", text=text, logprobs=())
            ends += self._frame_part("response.content_part.done", part=item.content[0])
        elif kind == "reasoning":
            item = create_reasoning(self._item_id, text, status)
            ends = self._frame_part("response.reasoning_text.done", text=text)
            ends += self._frame_part("response.content_part.done", part=item.content[0])
        else:
            assert self._call is not None
            name = self._call.name
            item = FunctionCallItem(self._item_id, self._call.id, name, text, status)
            ends = self._frame_place(
                "response.function_call_arguments.done", name=name, arguments=text
            )
        ends += self._frame_item("response.output_item.done", item)
        self._items.append(item)
        return ends

    @property
    def _item_id(self) -> str:
        """The id of the item that is open or comes next."""
        return create_item_id(self._head, len(self._items))

    def _frame_item(self, name: str, item: Item) -> bytes:
        """An event of a whole item."""
        return self._frame(name, output_index=len(self._items), item=item)

    def _frame_place(self, name: str, /, **fields: Any) -> bytes:
        """An event inside the open item."""
        return self._frame(name, item_id=self._item_id, output_index=len(self._items), **fields)

    def _frame_part(self, name: str, /, **fields: Any) -> bytes:
        """An event inside the only part of the open item."""
        return self._frame_place(name, content_index=0, **fields)

    def _frame(self, name: str, /, **fields: Any) -> bytes:
        """A named event whose data says its name and number."""
        self._number += 1
        data = {"type": name, "sequence_number": self._number, **fields}
        return frame_named_event(name, msgspec.json.encode(data))
