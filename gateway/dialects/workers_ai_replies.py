"""The native route's classic answers: `{response, usage}` in an envelope, `response` events.

Tool calls of a stream come whole and together, for that is the one form that every reader of this
shape understands. Source: Workers AI's documentation.
Read next: `gateway.dialects.workers_ai`.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from contracts.errors import ConstraintUnmet, ServiceError
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
)
from gateway.dialects.answer import Answer, gather_answer
from gateway.dialects.dialect import EventRenderer, MiddleEvent, ReplyHead
from gateway.dialects.replies import (
    DONE,
    SuccessEnvelope,
    UsageFields,
    encoder,
    frame_event,
    to_usage_fields,
)
from gateway.errors import render_error

_NO_TEXT: Final = ""


class ClassicToolCall(msgspec.Struct, frozen=True):
    """A call that the client is to make."""

    id: str
    name: str
    arguments: msgspec.Raw | str
    """The object itself; a text if the model wrote no valid JSON."""
    index: int = 0


class TextGenerationResult(msgspec.Struct, frozen=True):
    """The classic result. Of its optional parts, those are there that say something."""

    response: str | msgspec.Raw
    usage: UsageFields
    tool_calls: tuple[ClassicToolCall, ...] | msgspec.UnsetType = msgspec.UNSET
    finish_reason: FinishReason | msgspec.UnsetType = msgspec.UNSET
    """Unless it is `stop`."""
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET


class _CallsEvent(msgspec.Struct, frozen=True):
    tool_calls: tuple[ClassicToolCall, ...]
    response: str = _NO_TEXT


@dataclass(frozen=True, slots=True)
class ClassicForm:
    """How a request wants its classic answer."""

    is_json: bool = False
    """True: `response` is the parsed object of a whole answer."""

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """The result in its envelope. Raises: `ConstraintUnmet` for JSON that is not whole."""
        choice = answer.choices[0]
        response = choice.text
        if self.is_json and not choice.tool_calls:
            response = _to_raw_json(choice.text)
        result = TextGenerationResult(
            response,
            to_usage_fields(answer.usage),
            _to_classic_calls(choice.tool_calls) or msgspec.UNSET,
            _find_reason(choice.reason),
            choice.reasoning or msgspec.UNSET,
        )
        return encoder.encode(SuccessEnvelope(result))

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """`response` events."""
        return ClassicEvents()


class ClassicEvents:
    """Events of the form `data: {"response":"…"}`."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._calls: list[ToolCallDelta] = []

    def begin(self, accepted: Accepted) -> bytes:
        """Nothing: the first text is the first event."""
        return b""

    def render_text(self, text: str) -> bytes:
        """One event; the fixed parts are not encoded anew."""
        return b'data: {"response":%b}\n\n' % encoder.encode(text)

    def render_event(self, event: MiddleEvent) -> bytes:
        """Text or a piece of reasoning; calls wait for the end."""
        match event:
            case Delta(text):
                return self.render_text(text)
            case ReasoningDelta(text):
                return b'data: {"response":"","reasoning_content":%b}\n\n' % encoder.encode(text)
            case ToolCallDelta():
                self._calls.append(event)
                return b""
            case ChoiceFinished() | PromptScored():
                return b""

    def finish(self, last: Finished) -> bytes:
        """The calls, an empty response with the usage, then the end mark."""
        calls = b""
        if self._calls:
            made = gather_answer([*self._calls, last]).choices[0].tool_calls
            calls = frame_event(encoder.encode(_CallsEvent(_to_classic_calls(made))))
        end = TextGenerationResult(
            _NO_TEXT, to_usage_fields(last.usage), finish_reason=_find_reason(last.reason)
        )
        return calls + frame_event(encoder.encode(end)) + DONE

    def fail(self, error: ServiceError) -> bytes:
        """The error as an event."""
        return frame_event(render_error(error))


def _find_reason(reason: FinishReason) -> Any:
    """The reason where it says something."""
    return msgspec.UNSET if reason is FinishReason.STOP else reason


def _to_classic_calls(calls: list[ToolCall]) -> tuple[ClassicToolCall, ...]:
    """The calls of an answer."""
    return tuple(
        ClassicToolCall(call.id, call.name, _to_arguments(call.arguments), index)
        for index, call in enumerate(calls)
    )


def _to_arguments(text: str) -> msgspec.Raw | str:
    """The arguments as an object, if they are valid JSON."""
    try:
        return msgspec.Raw(_check_json(text))
    except (msgspec.DecodeError, RecursionError):
        return text


def _to_raw_json(text: str) -> Any:
    """The answer as JSON. Raises: `ConstraintUnmet`."""
    try:
        return msgspec.Raw(_check_json(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConstraintUnmet(
            "JSON Mode couldn't be met: the answer ended before its JSON did."
        ) from error


def _check_json(text: str) -> bytes:
    """The text as one line of JSON. Raises: `msgspec.DecodeError`, `RecursionError`."""
    return msgspec.json.encode(msgspec.json.decode(text))
