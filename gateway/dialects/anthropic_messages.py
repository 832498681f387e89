"""Anthropic's messages and its count of tokens: bodies in.

Owns that schema: content in blocks, tool results inside the user's turns, a system prompt apart.
Source: Anthropic's API reference. Read next: `gateway.dialects.anthropic_replies`,
`gateway.dialects.anthropic_blocks`.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from contracts.errors import InvalidRequest, UnsupportedFeature
from contracts.inference import (
    ChatPrompt,
    Constraint,
    CountTokensRequest,
    GenerateRequest,
    SamplingParams,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from gateway.dialects.anthropic_blocks import InputTurns, SystemText, to_turns
from gateway.dialects.anthropic_replies import (
    CountedTokens,
    CountForm,
    MessageForm,
    MessageOutput,
)
from gateway.dialects.chat_fields import NO_REASONING, ReasoningEffort
from gateway.dialects.constraints import create_schema_constraint
from gateway.dialects.dialect import Body, Dialect, FindModel, ParsedRequest
from gateway.dialects.fields import (
    BadWords,
    Lora,
    Options,
    StopTexts,
    TokenCount,
    bound_top_p,
    to_model_name,
)
from gateway.dialects.strict_json import decode_json
from gateway.dialects.tools import MAX_TOOLS, ToolName, create_tool

DEFAULT_TEMPERATURE: Final = 1.0
_CUSTOM: Final = "custom"
_CHOICE_MODES: Final = {
    "auto": ToolChoiceMode.AUTO,
    "none": ToolChoiceMode.NONE,
    "any": ToolChoiceMode.REQUIRED,
    "tool": ToolChoiceMode.REQUIRED,
}


class AnthropicTool(msgspec.Struct, frozen=True):
    """A function that the model may ask for."""

    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    """Other types than `custom` are tools of Anthropic's own servers."""


class AnthropicToolChoice(msgspec.Struct, frozen=True):
    """How the tools may be used."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether the model thinks first."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(msgspec.Struct, frozen=True):
    """The shape of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """More about the answer."""

    format: OutputFormat | None = None
    effort: ReasoningEffort | None = None


class CountTokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/ai/v1/messages/count_tokens`, and what every message has as well."""

    model: str
    messages: InputTurns
    system: SystemText | None = None
    tools: Annotated[tuple[AnthropicTool, ...], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """The body of `/ai/v1/messages`; fields that are not named here are ignored."""

    max_tokens: TokenCount
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    stop_sequences: StopTexts | None = None
    output_format: OutputFormat | None = None
    options: Options | None = None
    lora: Lora | None = None
    """An extension: Anthropic has none of these."""
    bad_words: BadWords | None = None
    """Likewise: words that the answer must not contain."""


_decoder: Final = msgspec.json.Decoder(MessagesBody)
_count_decoder: Final = msgspec.json.Decoder(CountTokensBody)


def parse_messages(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The request in `body`, which names its model; `model` is ignored.

    Raises: `InvalidRequest`, `InvalidModelName`, `UnsupportedFeature`.
    """
    fields = decode_json(_decoder, body)
    name = to_model_name(fields.model)
    prompt = _to_prompt(fields)
    return ParsedRequest(
        GenerateRequest(
            model=name,
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=fields.max_tokens,
                temperature=(
                    DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
                ),
                top_p=bound_top_p(fields.top_p),
                top_k=fields.top_k or 0,
                stop=fields.stop_sequences or (),
            ),
            stream=bool(fields.stream),
            reject_if_busy=fields.options is not None and bool(fields.options.reject_if_busy),
            constraint=_find_constraint(fields),
            tool_choice=_to_tool_choice(fields.tool_choice, prompt.tools),
            bad_words=fields.bad_words or (),
        ),
        MessageForm(),
        fields.lora or None,
    )


def parse_count(body: Body, model: str | None, find_model: FindModel) -> ParsedRequest:
    """The question in `body`: how many tokens such a message has. Raises: as `parse_messages`."""
    fields = decode_json(_count_decoder, body)
    name = to_model_name(fields.model)
    return ParsedRequest(CountTokensRequest(model=name, prompt=_to_prompt(fields)), CountForm())


ANTHROPIC_MESSAGES: Final = Dialect(
    name="anthropic_messages", parse=parse_messages, body=MessagesBody, replies=(MessageOutput,)
)
ANTHROPIC_COUNT: Final = Dialect(
    name="anthropic_count",
    parse=parse_count,
    body=CountTokensBody,
    replies=(CountedTokens,),
    is_streamed=False,
)


def _to_prompt(fields: CountTokensBody) -> ChatPrompt:
    """The conversation, its system prompt first."""
    return ChatPrompt(
        messages=to_turns(fields.system, fields.messages),
        tools=tuple(_to_tool(tool) for tool in fields.tools or ()),
        reasoning_effort=_find_effort(fields),
    )


def _find_effort(fields: CountTokensBody) -> str | None:
    """How much thought is asked for; None leaves it to the model."""
    if fields.thinking is not None and fields.thinking.type == "disabled":
        return NO_REASONING
    return None if fields.output_config is None else fields.output_config.effort


def _find_constraint(fields: MessagesBody) -> Constraint | None:
    """What the answer is bound to, under either name."""
    output = fields.output_format
    if output is None and fields.output_config is not None:
        output = fields.output_config.format
    return None if output is None else create_schema_constraint(output.schema, "output_config")


def _to_tool(tool: AnthropicTool) -> Tool:
    """A function. Raises: `UnsupportedFeature` for tools of Anthropic's own."""
    if tool.type not in (None, _CUSTOM):
        raise UnsupportedFeature(
            f"Tools of type `{tool.type[:64]}` are not supported.", param="tools"
        )
    return create_tool(tool.name, tool.description, tool.input_schema)


def _to_tool_choice(choice: AnthropicToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """How `tools` may be used. Raises: `InvalidRequest` for a choice that no tool fits."""
    if choice is None:
        return ToolChoice()
    mode = _CHOICE_MODES[choice.type]
    name = choice.name if choice.type == "tool" else None
    if mode is ToolChoiceMode.REQUIRED and not tools:
        raise InvalidRequest("`tool_choice` demands a call, but no tools are given.", param="tools")
    if choice.type == "tool" and all(tool.name != name for tool in tools):
        raise InvalidRequest(
            "`tool_choice` names a tool that is not declared.", param="tool_choice"
        )
    return ToolChoice(mode=mode, name=name, is_parallel=not choice.disable_parallel_tool_use)
