"""OpenAI's Responses API, without state: bodies in.

Owns that schema. Nothing is stored, so that whatever refers to an earlier response is refused.
Source: OpenAI's API reference. Read next: `gateway.dialects.responses_items`,
`gateway.dialects.responses_replies`.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from contracts.ids import ModelName
from contracts.inference import ChatPrompt, Constraint, GenerateRequest, SamplingParams
from gateway.dialects.chat_fields import ReasoningEffort
from gateway.dialects.constraints import ResponseFormat, to_constraint
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest
from gateway.dialects.fields import (
    BadWords,
    Lora,
    NumLogprobs,
    Options,
    TokenCount,
    bound_top_p,
    refuse_fields,
    to_model_name,
)
from gateway.dialects.responses_items import InputItems, to_item_messages
from gateway.dialects.responses_objects import Echo, ResponseObject
from gateway.dialects.responses_replies import ResponseForm
from gateway.dialects.strict_json import decode_json
from gateway.dialects.tools import InputToolChoice, InputTools, to_tool_choice, to_tools

DEFAULT_TEMPERATURE: Final = 1.0
_WITH_LOGPROBS: Final = "message.output_text.logprobs"


class Reasoning(msgspec.Struct, frozen=True):
    """How much thought is asked for."""

    effort: ReasoningEffort | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape of the answer; what describes the schema stands beside it and is repeated."""

    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    """More about the answer's text."""

    format: TextFormat | None = None


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/ai/v1/responses`; fields that are not named here are ignored."""

    model: str | None = None
    input: str | InputItems
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    tools: InputTools | None = None
    tool_choice: str | InputToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: tuple[str, ...] | None = None
    top_logprobs: NumLogprobs | None = None
    metadata: dict[str, str] | None = None
    options: Options | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    prompt: Any = None
    lora: Lora | None = None
    """An extension: OpenAI has none of these."""
    bad_words: BadWords | None = None
    """Likewise: words that the answer must not contain."""


_decoder: Final = msgspec.json.Decoder(ResponsesBody)


def parse_responses(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The request in `body`, which names its model; `model` is ignored.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    fields = decode_json(_decoder, body)
    return to_response_request(to_model_name(fields.model or ""), fields, is_wrapped=False)


def decode_response_input(body: Body) -> ResponsesBody:
    """The fields of a body that reaches the native route. Raises: `InvalidRequest`."""
    return decode_json(_decoder, body)


def to_response_request(
    name: ModelName, fields: ResponsesBody, *, is_wrapped: bool
) -> ParsedRequest:
    """The request of either route. Raises: `InvalidRequest`, `UnsupportedFeature`."""
    refuse_fields(
        previous_response_id=fields.previous_response_id,
        conversation=fields.conversation,
        background=fields.background,
        prompt=fields.prompt,
    )
    tools = to_tools(fields.tools, fields.tool_choice)
    temperature = DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
    wants_logprobs = fields.top_logprobs or _WITH_LOGPROBS in (fields.include or ())
    request = GenerateRequest(
        model=name,
        prompt=ChatPrompt(
            messages=to_item_messages(fields.instructions, fields.input),
            tools=tools,
            reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        ),
        sampling=SamplingParams(
            max_tokens=fields.max_output_tokens,
            temperature=temperature,
            top_p=bound_top_p(fields.top_p),
            num_logprobs=(fields.top_logprobs or 0) if wants_logprobs else None,
        ),
        stream=bool(fields.stream),
        reject_if_busy=fields.options is not None and bool(fields.options.reject_if_busy),
        constraint=_find_constraint(fields),
        tool_choice=to_tool_choice(fields.tool_choice, fields.parallel_tool_calls, tools),
        bad_words=fields.bad_words or (),
    )
    form = ResponseForm(_to_echo(fields, temperature), is_wrapped)
    return ParsedRequest(request, form, fields.lora or None)


RESPONSES: Final = Dialect(
    name="responses", parse=parse_responses, body=ResponsesBody, replies=(ResponseObject,)
)


def _find_constraint(fields: ResponsesBody) -> Constraint | None:
    """What the answer is bound to."""
    if fields.text is None or fields.text.format is None:
        return None
    wanted = fields.text.format
    return to_constraint(ResponseFormat(wanted.type, wanted.schema))


def _to_echo(fields: ResponsesBody, temperature: float) -> Echo:
    """What a response repeats of its request."""
    return Echo(
        instructions=fields.instructions,
        max_output_tokens=fields.max_output_tokens,
        metadata=fields.metadata or {},
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        reasoning={"effort": fields.reasoning.effort if fields.reasoning else None},
        temperature=temperature,
        text={"format": (fields.text and fields.text.format) or {"type": "text"}},
        tool_choice=fields.tool_choice or "auto",
        tools=fields.tools or (),
        top_p=1.0 if fields.top_p is None else fields.top_p,
    )
