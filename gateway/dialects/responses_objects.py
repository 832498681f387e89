"""`response` objects: what the Responses API answers with.

Owns their fields. Ids of items follow from the request's id and their place, so that a stream and
its last event agree. Source: OpenAI's API reference.
Read next: `gateway.dialects.responses_replies`.
"""

from typing import Any, Final

import msgspec

from contracts.inference import FinishReason, Usage
from gateway.dialects.answer import Choice
from gateway.dialects.dialect import ReplyHead
from gateway.dialects.logprobs import ChatLogprob, to_chat_logprobs

COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"
IN_PROGRESS: Final = "in_progress"


class CachedDetails(msgspec.Struct, frozen=True):
    """Of the input's tokens, those found in the prefix cache."""

    cached_tokens: int


class ReasoningDetails(msgspec.Struct, frozen=True):
    """Of the output's tokens, those of reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """What was consumed."""

    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class OutputText(msgspec.Struct, frozen=True):
    """The text of a message."""

    text: str
    logprobs: tuple[ChatLogprob, ...] = ()
    annotations: tuple[()] = ()
    type: str = "output_text"


class ReasoningText(msgspec.Struct, frozen=True):
    """What the model thought."""

    text: str
    type: str = "reasoning_text"


class MessageItem(msgspec.Struct, frozen=True, tag="message"):
    """What the model said."""

    id: str
    content: tuple[OutputText, ...]
    status: str
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag="reasoning"):
    """What the model thought first."""

    id: str
    content: tuple[ReasoningText, ...]
    status: str
    summary: tuple[()] = ()


class FunctionCallItem(msgspec.Struct, frozen=True, tag="function_call"):
    """A call that the client is to make."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


Item = MessageItem | ReasoningItem | FunctionCallItem


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is not complete."""

    reason: str = "max_output_tokens"


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """What a response repeats of its request."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: Any
    temperature: float
    text: Any
    tool_choice: Any
    tools: Any
    top_p: float


class ResponseObject(Echo, frozen=True, kw_only=True):
    """A response."""

    id: str
    created_at: int
    model: str
    status: str
    output: tuple[Item, ...]
    usage: ResponseUsage | None
    incomplete_details: IncompleteDetails | None = None
    error: None = None
    previous_response_id: None = None
    store: bool = False
    truncation: str = "disabled"
    object: str = "response"


def describe_response(
    echo: Echo, head: ReplyHead, status: str, output: tuple[Item, ...], usage: Usage | None
) -> ResponseObject:
    """The response at some moment of its life."""
    return ResponseObject(
        id=f"resp_{head.request_id}",
        created_at=head.created_unix_s,
        model=head.model,
        status=status,
        output=output,
        usage=None if usage is None else _to_usage(usage),
        incomplete_details=IncompleteDetails() if status == INCOMPLETE else None,
        **msgspec.structs.asdict(echo),
    )


def find_status(reason: FinishReason) -> str:
    """Whether an answer that ended so is whole."""
    return INCOMPLETE if reason is FinishReason.LENGTH else COMPLETED


def to_items(head: ReplyHead, choice: Choice) -> tuple[Item, ...]:
    """Thoughts, text and calls, in this order."""
    status = find_status(choice.reason)
    items: list[Item] = []
    if choice.reasoning:
        items.append(create_reasoning(create_item_id(head, 0), choice.reasoning, status))
    if choice.text or not choice.tool_calls:
        logprobs = to_chat_logprobs(choice.logprobs).content
        item_id = create_item_id(head, len(items))
        items.append(create_message(item_id, choice.text, status, logprobs))
    for call in choice.tool_calls:
        item_id = create_item_id(head, len(items))
        items.append(FunctionCallItem(item_id, call.id, call.name, call.arguments, status))
    return tuple(items)


def create_item_id(head: ReplyHead, index: int) -> str:
    """The id of the item at `index`."""
    return f"item_{head.request_id}_{index}"


def create_message(
    item_id: str, text: str, status: str, logprobs: tuple[ChatLogprob, ...] = ()
) -> MessageItem:
    """A message of one text."""
    return MessageItem(item_id, (OutputText(text, logprobs),), status)


def create_reasoning(item_id: str, text: str, status: str) -> ReasoningItem:
    """Thoughts of one text."""
    return ReasoningItem(item_id, (ReasoningText(text),), status)


def _to_usage(usage: Usage) -> ResponseUsage:
    """Usage as clients of this API read it."""
    return ResponseUsage(
        usage.num_prompt_tokens,
        CachedDetails(usage.num_cached_tokens),
        usage.num_completion_tokens,
        ReasoningDetails(usage.num_reasoning_tokens),
        usage.num_prompt_tokens + usage.num_completion_tokens,
    )
