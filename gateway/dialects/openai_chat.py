"""OpenAI's chat completions: bodies in, `chat.completion` objects and chunks out.

Owns that schema as far as it is served; what is not served yet is refused by name. The last chunk
carries the one finish reason and the usage together.
Source: the platform's API contract, sections 1.5, 2.6 and 5. Read next: `gateway.dialects.fields`.
"""

from typing import Annotated, Any, Final

import msgspec

from contracts.errors import InvalidRequest, ServiceError
from contracts.inference import FinishReason, GenerateRequest, Usage
from gateway.dialects.dialect import Dialect, ParsedRequest, ReplyHead
from gateway.dialects.fields import (
    InputMessages,
    SamplingFields,
    find_max_tokens,
    refuse_fields,
    refuse_response_format,
    to_chat_prompt,
    to_model_name,
    to_sampling_params,
)
from gateway.dialects.replies import DONE, UsageFields, encoder, frame_event, to_usage_fields
from gateway.dialects.strict_json import decode_json
from gateway.errors import render_openai_error

DEFAULT_TEMPERATURE: Final = 1.0


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None


class ChatCompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of `/ai/v1/chat/completions`; fields that are not named here are ignored."""

    model: str
    messages: InputMessages
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    n: int | None = None
    stream_options: StreamOptions | None = None
    functions: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None


class _AssistantMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _AssistantMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class _ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[_Choice, ...]
    usage: UsageFields
    object: str = "chat.completion"


_decoder: Final = msgspec.json.Decoder(ChatCompletionRequest)


def parse_chat_completion(body: bytes | bytearray, model: str | None) -> ParsedRequest:
    """The request in `body`, which names its model; `model` is ignored.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    fields = decode_json(_decoder, body)
    name = to_model_name(fields.model)
    _refuse_unsupported(fields)
    temperature = DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
    options = fields.stream_options
    return ParsedRequest(
        GenerateRequest(
            model=name,
            prompt=to_chat_prompt(fields.messages),
            sampling=to_sampling_params(fields, temperature, fields.top_p, find_max_tokens(fields)),
            stream=bool(fields.stream),
            reject_if_busy=fields.rejects_if_busy,
        ),
        includes_usage=options is None or options.include_usage is not False,
    )


def render_completion(head: ReplyHead, text: str, reason: FinishReason, usage: Usage) -> bytes:
    """A `chat.completion` object, without an envelope."""
    return encoder.encode(
        _ChatCompletion(
            _to_completion_id(head),
            head.created_unix_s,
            head.model,
            (_Choice(_AssistantMessage(text), reason),),
            to_usage_fields(usage),
        )
    )


class OpenAiEvents:
    """`chat.completion.chunk` events: the role first, one finish reason on the last."""

    __slots__ = ("_after_text", "_before_delta", "_includes_usage")

    def __init__(self, head: ReplyHead) -> None:
        """Encodes what all chunks share once."""
        self._includes_usage = head.includes_usage
        self._before_delta = (
            b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,'
            b'"choices":[{"index":0,"delta":'
        ) % (
            encoder.encode(_to_completion_id(head)),
            head.created_unix_s,
            encoder.encode(head.model),
        )
        self._after_text = b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def begin(self) -> bytes:
        """The chunk that names the role."""
        return b'%b{"role":"assistant","content":""%b' % (self._before_delta, self._after_text)

    def render_text(self, text: str) -> bytes:
        """A chunk with more content; the fixed parts are not encoded anew."""
        return b'%b{"content":%b%b' % (self._before_delta, encoder.encode(text), self._after_text)

    def finish(self, reason: FinishReason, usage: Usage) -> bytes:
        """The chunk with the finish reason and the usage, then the end mark."""
        counted = b""
        if self._includes_usage:
            counted = b',"usage":%b' % encoder.encode(to_usage_fields(usage))
        return b'%b{},"logprobs":null,"finish_reason":%b}]%b}\n\n%b' % (
            self._before_delta,
            encoder.encode(reason),
            counted,
            DONE,
        )

    def fail(self, error: ServiceError) -> bytes:
        """The error object as an event."""
        return frame_event(render_openai_error(error))


OPENAI_CHAT: Final = Dialect(
    name="openai_chat",
    parse=parse_chat_completion,
    render_reply=render_completion,
    create_renderer=OpenAiEvents,
    render_error=render_openai_error,
)


def _to_completion_id(head: ReplyHead) -> str:
    return f"chatcmpl-{head.request_id}"


def _refuse_unsupported(fields: ChatCompletionRequest) -> None:
    if fields.n is not None and fields.n < 1:
        raise InvalidRequest("`n` must be at least 1.", param="n")
    if fields.n is not None and fields.n > 1:
        refuse_fields(n=fields.n)
    if fields.tools or fields.functions or fields.logprobs or fields.top_logprobs:
        refuse_fields(
            tools=fields.tools,
            functions=fields.functions,
            logprobs=fields.logprobs,
            top_logprobs=fields.top_logprobs,
        )
    if fields.logit_bias or fields.response_format:
        refuse_fields(logit_bias=fields.logit_bias)
        refuse_response_format(fields.response_format)
