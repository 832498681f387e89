"""Words for tests of dialects: bodies in, events in, bytes out, read as a client would."""

from collections.abc import Iterable
from typing import Any

import msgspec

from contracts.fleet import ModelCard, NativeShape
from contracts.ids import ModelName, RequestId
from contracts.inference import (
    Accepted,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from gateway.dialects.answer import gather_answer
from gateway.dialects.dialect import Dialect, ParsedRequest, ReplyForm, ReplyHead

MODEL = "@hearth/tests/small"
CHAT_MODEL = "@hearth/tests/chat"
HEAD = ReplyHead(RequestId("r"), ModelName(MODEL), 1_700_000_000)
USAGE = Usage(3, 1, 2)
USAGE_FIELDS = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
}
ACCEPTED = Accepted(3, 1)
END = Finished(FinishReason.STOP, USAGE)
CALL_EVENTS = (
    ReasoningDelta("Let me see.", (1,)),
    ToolCallDelta(0, "call_a", "get_weather", "", (2,)),
    ToolCallDelta(0, "", "", '{"city":', (3,)),
    ToolCallDelta(0, "", "", '"Rome"}', (4,)),
    ToolCallDelta(1, "call_b", "get_time", "{}", (5,)),
)
CALL_END = Finished(FinishReason.TOOL_CALLS, Usage(3, 1, 9, 4))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"name": "get_time"},
]


def find_model(name: ModelName) -> ModelCard | None:
    """A catalogue of one model, which answers in the chat shape; no other is known."""
    if name != CHAT_MODEL:
        return None
    return ModelCard(
        name=name,
        revision="r",
        task="Text Generation",
        description="",
        context_window=1,
        native_shape=NativeShape.CHAT,
    )


def parse_body(dialect: Dialect, body: Any, model: str | None = None) -> ParsedRequest:
    """The request and the form in `body`, which is JSON or will be."""
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return dialect.parse(encoded, model, find_model)


def to_generate(parsed: ParsedRequest) -> GenerateRequest:
    """The request, which is for text."""
    assert isinstance(parsed.request, GenerateRequest)
    return parsed.request


def render_whole(form: ReplyForm, *events: GenerationEvent) -> Any:
    """The whole answer, decoded."""
    return msgspec.json.decode(form.render_reply(HEAD, gather_answer([ACCEPTED, *events])))


def render_stream(form: ReplyForm, *events: GenerationEvent) -> bytes:
    """A stream whose last event is `Finished`, every other one rendered by itself."""
    renderer = form.create_renderer(HEAD)
    *middle, last = events
    assert isinstance(last, Finished)
    opening = renderer.begin(ACCEPTED)
    pieces = [renderer.render_event(event) for event in middle]  # type: ignore[arg-type]
    return opening + b"".join(pieces) + renderer.finish(last)


def to_deltas(texts: Iterable[str]) -> list[Delta]:
    """One event of plain text for each."""
    return [Delta(text, (index,)) for index, text in enumerate(texts)]


def read_data(stream: bytes) -> list[Any]:
    """The events of a stream of unnamed ones, decoded; the end mark as it is."""
    *events, rest = stream.decode().split("\n\n")
    assert rest == ""
    return [
        "[DONE]" if event == "data: [DONE]" else msgspec.json.decode(event.removeprefix("data: "))
        for event in events
    ]


def read_named(stream: bytes) -> list[tuple[str, Any]]:
    """The events of a stream of named ones."""
    *events, rest = stream.decode().split("\n\n")
    assert rest == ""
    named = []
    for event in events:
        name, data = event.split("\n")
        named.append((name.removeprefix("event: "), msgspec.json.decode(data[6:])))
    return named


def create_logprob(token: str, logprob: float, *others: tuple[str, float]) -> TokenLogprob:
    """A token with alternatives, itself among them."""
    top = ((token, logprob), *others)
    return TokenLogprob(
        1, token.encode(), logprob, tuple((i, t.encode(), p) for i, (t, p) in enumerate(top))
    )
