"""`chat.completion` objects and chunks, which two routes answer with.

Owns their fields and the order of chunks: the role first, one finish reason per choice, usage with
the last. Source: OpenAI's API reference, Workers AI's documentation.
Read next: `gateway.dialects.openai_chat`, `gateway.dialects.workers_ai`.
"""

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
    ToolCall,
    ToolCallDelta,
)
from gateway.dialects.answer import Answer, Choice
from gateway.dialects.choice_ends import ChoiceEnds, open_event
from gateway.dialects.dialect import EventRenderer, MiddleEvent, ReplyHead
from gateway.dialects.logprobs import ChatLogprobs, to_chat_logprobs
from gateway.dialects.replies import (
    SuccessEnvelope,
    UsageFields,
    encoder,
    frame_event,
    to_usage_fields,
)
from gateway.errors import render_error

_FUNCTION: Final = "function"


class CalledFunction(msgspec.Struct, frozen=True):
    """What a call names."""

    name: str
    arguments: str


class ChatToolCall(msgspec.Struct, frozen=True):
    """A call that the client is to make."""

    id: str
    function: CalledFunction
    type: str = _FUNCTION


class AssistantMessage(msgspec.Struct, frozen=True):
    """What the model said."""

    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[ChatToolCall, ...] | msgspec.UnsetType = msgspec.UNSET
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One of the answers."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: UsageFields
    object: str = "chat.completion"


class _FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    arguments: str
    name: str | None = None


class _CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    index: int
    function: _FunctionDelta
    id: str | None = None
    type: str | None = None


def create_completion(head: ReplyHead, answer: Answer) -> ChatCompletion:
    """The answer as an object."""
    return ChatCompletion(
        to_completion_id(head),
        head.created_unix_s,
        head.model,
        tuple(_to_choice(choice) for choice in answer.choices),
        to_usage_fields(answer.usage),
    )


def to_completion_id(head: ReplyHead) -> str:
    """The id of the answer, which follows from the request's."""
    return f"chatcmpl-{head.request_id}"


def to_chat_tool_calls(calls: list[ToolCall]) -> tuple[ChatToolCall, ...]:
    """The calls of a choice."""
    if not calls:
        return ()
    return tuple(ChatToolCall(call.id, CalledFunction(call.name, call.arguments)) for call in calls)


class ChatForm(msgspec.Struct, frozen=True):
    """How a request wants its chat completion."""

    num_choices: int = 1
    includes_usage: bool = True
    """Of streams; whole answers always tell."""
    is_wrapped: bool = False
    """True on the native route: the object is the result inside an envelope."""

    def render_reply(self, head: ReplyHead, answer: Answer) -> bytes:
        """A `chat.completion` object."""
        completion = create_completion(head, answer)
        return encoder.encode(SuccessEnvelope(completion) if self.is_wrapped else completion)

    def create_renderer(self, head: ReplyHead) -> EventRenderer:
        """`chat.completion.chunk` events."""
        return ChatEvents(head, self.num_choices, self.includes_usage)


class ChatEvents:
    """`chat.completion.chunk` events: the role first, one finish reason per choice, then usage."""

    __slots__ = ("_after_text", "_before_choices", "_before_text", "_ends")

    def __init__(self, head: ReplyHead, num_choices: int, includes_usage: bool) -> None:
        """Encodes what all chunks share once."""
        opened = open_event(to_completion_id(head), "chat.completion.chunk", head)
        self._ends = ChoiceEnds(opened, b'"delta":{}', num_choices, includes_usage=includes_usage)
        self._before_choices = opened
        self._before_text = b'%b{"index":0,"delta":{"content":' % self._before_choices
        self._after_text = b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def begin(self, accepted: Accepted) -> bytes:
        """A chunk with the role for each choice."""
        role = b'{"role":"assistant","content":""}'
        return b"".join([self._render_delta(index, role) for index in self._ends.unfinished])

    def render_text(self, text: str) -> bytes:
        """A chunk with more content; the fixed parts are not encoded anew."""
        return self._before_text + encoder.encode(text) + self._after_text

    def render_event(self, event: MiddleEvent) -> bytes:
        """A chunk with whatever has come."""
        match event:
            case Delta(text, _, index, logprobs):
                listed = encoder.encode(to_chat_logprobs(logprobs)) if logprobs else b"null"
                return self._render_delta(index, b'{"content":%b}' % encoder.encode(text), listed)
            case ReasoningDelta(text, _, index):
                return self._render_delta(index, b'{"reasoning_content":%b}' % encoder.encode(text))
            case ToolCallDelta():
                call = encoder.encode(_to_call_delta(event))
                return self._render_delta(event.choice_index, b'{"tool_calls":[%b]}' % call)
            case ChoiceFinished(index, reason):
                return self._ends.end_choice(index, reason)
            case PromptScored():
                return b""

    def finish(self, last: Finished) -> bytes:
        """The ends that are missing."""
        return self._ends.end_stream(last)

    def fail(self, error: ServiceError) -> bytes:
        """The error object as an event."""
        return frame_event(render_error(error))

    def _render_delta(self, index: int, delta: bytes, logprobs: bytes = b"null") -> bytes:
        """A chunk of one choice."""
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}]}\n\n' % (
            self._before_choices,
            index,
            delta,
            logprobs,
        )


def _to_choice(choice: Choice) -> ChatChoice:
    """One of the answers as an object."""
    calls = to_chat_tool_calls(choice.tool_calls)
    message = AssistantMessage(
        None if calls and not choice.text else choice.text,
        choice.reasoning or msgspec.UNSET,
        calls or msgspec.UNSET,
    )
    logprobs = to_chat_logprobs(choice.logprobs) if choice.logprobs else None
    return ChatChoice(choice.index, message, choice.reason, logprobs)


def _to_call_delta(event: ToolCallDelta) -> Any:
    """The beginning of a call, or more of its arguments."""
    if not event.name:
        return _CallDelta(event.call_index, _FunctionDelta(event.arguments))
    function = _FunctionDelta(event.arguments, event.name)
    return _CallDelta(event.call_index, function, event.id, _FUNCTION)
