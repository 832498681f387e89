"""The body that chat routes share, whatever they answer with.

Owns what goes beside the messages: tools, constraints, reasoning, choices, logprobs.
Read next: `gateway.dialects.messages`, `gateway.dialects.tools`, `gateway.dialects.constraints`.
"""

from typing import Final, Literal

import msgspec

from contracts.errors import InvalidRequest
from contracts.inference import ChatPrompt, Constraint
from gateway.dialects.constraints import ResponseFormat, to_constraint
from gateway.dialects.fields import NumChoices, NumLogprobs, SamplingFields
from gateway.dialects.messages import InputMessage, to_chat_messages
from gateway.dialects.tools import InputToolChoice, InputTools, to_tools

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
NO_REASONING: Final = "none"


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None


class TemplateSwitches(msgspec.Struct, frozen=True):
    """What some clients tell the chat template directly."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatFields(SamplingFields, frozen=True, kw_only=True):
    """Chat fields with the same meaning on every route that has them."""

    tools: InputTools | None = None
    tool_choice: str | InputToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    n: NumChoices | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    stream_options: StreamOptions | None = None

    @property
    def includes_usage(self) -> bool:
        """False when the client asked for a stream without usage."""
        options = self.stream_options
        return options is None or options.include_usage is not False


def to_chat_prompt(fields: ChatFields, messages: tuple[InputMessage, ...]) -> ChatPrompt:
    """The conversation with its tools. Raises: `InvalidRequest`, `UnsupportedFeature`."""
    if fields.tools is None and fields.reasoning_effort is None and not fields.chat_template_kwargs:
        return ChatPrompt(messages=to_chat_messages(messages))
    return ChatPrompt(
        messages=to_chat_messages(messages),
        tools=to_tools(fields.tools, fields.tool_choice),
        reasoning_effort=_find_effort(fields),
    )


def find_num_logprobs(fields: ChatFields) -> int | None:
    """How many alternatives to report, None when no logprobs are asked for.

    Raises: `InvalidRequest` for alternatives without logprobs.
    """
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest("`top_logprobs` goes with `logprobs`.", param="top_logprobs")
    return None


def find_constraint(fields: ChatFields) -> Constraint | None:
    """What the answer is bound to."""
    return None if fields.response_format is None else to_constraint(fields.response_format)


def _find_effort(fields: ChatFields) -> str | None:
    """How much thought is asked for; a switch of the template counts if no level is named."""
    switches = fields.chat_template_kwargs
    if fields.reasoning_effort is not None or switches is None:
        return fields.reasoning_effort
    is_off = switches.enable_thinking is False or switches.thinking is False
    return NO_REASONING if is_off else None
