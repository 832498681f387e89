"""Anthropic's messages as answers: blocks of thoughts, text and calls, whole or in named events.

Source: Anthropic's API reference (`input_tokens` leaves the cached ones out).
Read next: `gateway.dialects.anthropic_messages`.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from contracts.errors import ServiceError
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    ToolCallDelta,
    Usage,
)
from gateway.dialects.answer import Answer, Choice
from gateway.dialects.dialect import EventRenderer, MiddleEvent, ReplyHead
from gateway.dialects.replies import encoder, frame_named_event
from gateway.errors import render_error

_STOP_REASONS: Final = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.ABORTED: "end_turn",
}
_object_decoder: Final = msgspec.json.Decoder(dict[str, Any])


class AnthropicUsage(msgspec.Struct, frozen=True):
    """What was consumed; the three kinds of input tokens add up to the prompt's."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class TextOutput(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str
    citations: None = None


class ThinkingOutput(msgspec.Struct, frozen=True, tag="thinking"):
    """What the model thought first."""

    thinking: str
    signature: str = ""


class ToolUseOutput(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call that the client is to make."""

    id: str
    name: str
    input: Any


class MessageOutput(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    model: str
    content: tuple[TextOutput | ThinkingOutput | ToolUseOutput, ...]
    usage: AnthropicUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class CountedTokens(msgspec.Struct, frozen=True):
    """The answer to a question for a count."""

    input_tokens: int


@dataclass(frozen=True, slots=True)
class CountForm:
    """How a question for a count wants its answer."""

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """The count."""
        return encoder.encode(CountedTokens(answer.num_tokens))

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """Never called: a count is not streamed."""
        return MessageEvents(head)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How a request wants its message."""

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """A `message` object."""
        choice = answer.choices[0]
        reason, sequence = _find_end(choice.reason, choice.stop)
        return encoder.encode(
            MessageOutput(
                _to_message_id(head),
                head.model,
                _to_blocks(choice),
                _to_usage(answer.usage),
                reason,
                sequence,
            )
        )

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """Named events."""
        return MessageEvents(head)


class MessageEvents:
    """`message_start`, then blocks that open, grow and close, then `message_stop`."""

    __slots__ = ("_before_text", "_head", "_index", "_open")

    def __init__(self, head: ReplyHead) -> None:
        """Nothing has come yet."""
        self._head = head
        self._index = -1
        """Of the latest block."""
        self._open: str | None = None
        """What kind of block is open: `text`, `thinking`, or the place of a call."""
        self._before_text = b""

    def begin(self, accepted: Accepted) -> bytes:
        """The message without content."""
        usage = Usage(accepted.num_prompt_tokens, accepted.num_cached_tokens, 0)
        message = MessageOutput(_to_message_id(self._head), self._head.model, (), _to_usage(usage))
        start = _frame("message_start", message=message)
        return start + _frame("ping")

    def render_text(self, text: str) -> bytes:
        """More text; the fixed parts are not encoded anew."""
        opening = b"" if self._open == "text" else self._open_block("text", TextOutput(""))
        return b"%b%b%b}}\n\n" % (opening, self._before_text, encoder.encode(text))

    def render_event(self, event: MiddleEvent) -> bytes:
        """More of whatever has come, in a block of its kind."""
        match event:
            case Delta(text):
                return self.render_text(text) if text else b""
            case ReasoningDelta(text):
                opening = b""
                if self._open != "thinking":
                    opening = self._open_block("thinking", ThinkingOutput(""))
                return opening + self._render_delta(type="thinking_delta", thinking=text)
            case ToolCallDelta():
                return self._render_call(event)
            case ChoiceFinished() | PromptScored():
                return b""

    def finish(self, last: Finished) -> bytes:
        """The end of the last block, why the answer ended, and the usage."""
        reason, sequence = _find_end(last.reason, last.stop)
        closing = self._close_block()
        if self._index < 0:  # readers expect at least one block
            closing = self._open_block("text", TextOutput("")) + self._close_block()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        end = _frame("message_delta", delta=delta, usage=_to_usage(last.usage))
        return closing + end + _frame("message_stop")

    def fail(self, error: ServiceError) -> bytes:
        """The error as a named event."""
        return frame_named_event("error", render_error(error))

    def _render_call(self, event: ToolCallDelta) -> bytes:
        """The beginning of a call, or more of its arguments."""
        kind = f"call {event.call_index}"
        opening = b""
        if self._open != kind:
            opening = self._open_block(kind, ToolUseOutput(event.id, event.name, {}))
        if not event.arguments:
            return opening
        return opening + self._render_delta(type="input_json_delta", partial_json=event.arguments)

    def _render_delta(self, **delta: str) -> bytes:
        """More of the open block."""
        return _frame("content_block_delta", index=self._index, delta=delta)

    def _open_block(self, kind: str, block: msgspec.Struct) -> bytes:
        """Closes the block before and opens the next."""
        closing = self._close_block()
        self._index += 1
        self._open = kind
        self._before_text = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":'
        ) % self._index
        return closing + _frame("content_block_start", index=self._index, content_block=block)

    def _close_block(self) -> bytes:
        """The end of the open block, if there is one."""
        if self._open is None:
            return b""
        self._open = None
        return _frame("content_block_stop", index=self._index)


def _frame(name: str, **fields: Any) -> bytes:
    """A named event whose data says its name again."""
    return frame_named_event(name, encoder.encode({"type": name, **fields}))


def _to_message_id(head: ReplyHead) -> str:
    return f"msg_{head.request_id}"


def _to_usage(usage: Usage) -> AnthropicUsage:
    """Usage as Anthropic's clients read it."""
    return AnthropicUsage(
        usage.num_prompt_tokens - usage.num_cached_tokens,
        usage.num_completion_tokens,
        usage.num_cached_tokens,
    )


def _find_end(reason: FinishReason, stop: str | None) -> tuple[str, str | None]:
    """Why the answer ended, and the stop string if that was why."""
    if reason is FinishReason.STOP and stop is not None:
        return "stop_sequence", stop
    return _STOP_REASONS[reason], None


def _to_blocks(choice: Choice) -> tuple[TextOutput | ThinkingOutput | ToolUseOutput, ...]:
    """Thoughts, text and calls, in this order."""
    blocks: list[TextOutput | ThinkingOutput | ToolUseOutput] = []
    if choice.reasoning:
        blocks.append(ThinkingOutput(choice.reasoning))
    if choice.text or not choice.tool_calls:
        blocks.append(TextOutput(choice.text))
    blocks += [
        ToolUseOutput(call.id, call.name, _to_input(call.arguments)) for call in choice.tool_calls
    ]
    return tuple(blocks)


def _to_input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; broken ones inside one, for the field must be an object."""
    try:
        return _object_decoder.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {"arguments": arguments}
