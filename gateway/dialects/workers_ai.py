"""The Workers AI dialect of `/ai/run`: bodies in, envelopes and `response` events out.

Owns the classic text-generation schema with its defaults (256 tokens, temperature 0.6).
Source: the platform's API contract for text generation, sections 1.3, 1.4 and 1.7.
Read next: `gateway.dialects.fields`, `gateway.dialects.strict_json`.
"""

from typing import Annotated, Any, Final

import msgspec

from contracts.errors import InvalidRequest, ServiceError
from contracts.inference import (
    ChatMessage,
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    Prompt,
    TextPrompt,
    Usage,
)
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
from gateway.dialects.replies import (
    DONE,
    SuccessEnvelope,
    UsageFields,
    encoder,
    frame_event,
    to_usage_fields,
)
from gateway.dialects.strict_json import decode_json
from gateway.errors import render_envelope

DEFAULT_MAX_TOKENS: Final = 256
DEFAULT_TEMPERATURE: Final = 0.6


class TextGenerationInput(SamplingFields, frozen=True, kw_only=True):
    """The body of `/ai/run/{model}`; fields that are not named here are ignored."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    messages: InputMessages | None = None
    raw: bool | str | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    lora: Any = None
    guided_json: Any = None
    image: Any = None
    requests: Any = None


class ModelAndInput(msgspec.Struct, frozen=True):
    """The body of `/ai/run`, which names the model inside."""

    model: str
    input: msgspec.Raw


class TextGenerationResult(msgspec.Struct, frozen=True):
    """The classic result."""

    response: str
    usage: UsageFields


class _LastEvent(msgspec.Struct, frozen=True):
    usage: UsageFields
    response: str = ""


_input_decoder: Final = msgspec.json.Decoder(TextGenerationInput)
_model_decoder: Final = msgspec.json.Decoder(ModelAndInput)


def parse_run(body: bytes | bytearray, model: str | None) -> ParsedRequest:
    """The request in `body`; without a model in the path the body names it.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    if model is None:
        outer = decode_json(_model_decoder, body)
        model, body = outer.model, bytes(outer.input)
    name = to_model_name(model)
    fields = decode_json(_input_decoder, body)
    _refuse_unsupported(fields)
    max_tokens = find_max_tokens(fields)
    temperature = DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
    return ParsedRequest(
        GenerateRequest(
            model=name,
            prompt=_to_prompt(fields),
            sampling=to_sampling_params(
                fields,
                temperature,
                fields.top_p,
                DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
            ),
            stream=bool(fields.stream),
            reject_if_busy=fields.rejects_if_busy,
        )
    )


def render_result(head: ReplyHead, text: str, reason: FinishReason, usage: Usage) -> bytes:
    """The classic result in its envelope."""
    return encoder.encode(SuccessEnvelope(TextGenerationResult(text, to_usage_fields(usage))))


class WorkersAiEvents:
    """Events of the form `data: {"response":"…"}`."""

    __slots__ = ()

    def begin(self) -> bytes:
        """Nothing: the first text is the first event."""
        return b""

    def render_text(self, text: str) -> bytes:
        """One event; the fixed parts are not encoded anew."""
        return b'data: {"response":%b}\n\n' % encoder.encode(text)

    def finish(self, reason: FinishReason, usage: Usage) -> bytes:
        """An empty response with the usage, then the end mark."""
        return frame_event(encoder.encode(_LastEvent(to_usage_fields(usage)))) + DONE

    def fail(self, error: ServiceError) -> bytes:
        """The v4 envelope as an event."""
        return frame_event(render_envelope(error))


def _create_events(head: ReplyHead) -> WorkersAiEvents:
    return WorkersAiEvents()


WORKERS_AI: Final = Dialect(
    name="workers_ai",
    parse=parse_run,
    render_reply=render_result,
    create_renderer=_create_events,
    render_error=render_envelope,
)


def _to_prompt(fields: TextGenerationInput) -> Prompt:
    """The prompt in whichever of the two shapes it came."""
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("Exactly one of `prompt` and `messages` must be given.")
    is_raw = fields.raw is True or fields.raw == "true"
    if fields.messages is not None:
        if is_raw:
            raise InvalidRequest("`raw` goes with `prompt`, not with `messages`.", param="raw")
        return to_chat_prompt(fields.messages)
    assert fields.prompt is not None
    if is_raw:
        return TextPrompt(text=fields.prompt)
    return ChatPrompt(messages=(ChatMessage(role="user", content=fields.prompt),))


def _refuse_unsupported(fields: TextGenerationInput) -> None:
    if fields.tools or fields.lora or fields.guided_json or fields.image or fields.requests:
        refuse_fields(
            tools=fields.tools,
            lora=fields.lora,
            guided_json=fields.guided_json,
            image=fields.image,
            requests=fields.requests,
        )
    if fields.response_format:
        refuse_response_format(fields.response_format)
