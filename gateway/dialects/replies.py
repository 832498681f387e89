"""Pieces of replies that the dialects share: usage, the success envelope, event framing.

Must not know which dialect is being written.
"""

from typing import Final, Generic, TypeVar

import msgspec

from contracts.inference import Usage
from gateway.errors import Notice

ResultT = TypeVar("ResultT")

DONE: Final = b"data: [DONE]\n\n"
encoder: Final = msgspec.json.Encoder()


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens, those of reasoning."""

    reasoning_tokens: int


class UsageFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage under the names that all dialects of this family use."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class PageInfo(msgspec.Struct, frozen=True):
    """Where a page lies in its list."""

    page: int
    per_page: int
    count: int
    total_count: int
    total_pages: int


class SuccessEnvelope(msgspec.Struct, Generic[ResultT], frozen=True, omit_defaults=False):
    """The v4 envelope around a result."""

    result: ResultT
    success: bool = True
    errors: tuple[Notice, ...] = ()
    messages: tuple[Notice, ...] = ()


class PageEnvelope(msgspec.Struct, Generic[ResultT], frozen=True):
    """The v4 envelope around one page of a list."""

    result: ResultT
    result_info: PageInfo
    success: bool = True
    errors: tuple[Notice, ...] = ()
    messages: tuple[Notice, ...] = ()


def to_usage_fields(usage: Usage) -> UsageFields:
    """Usage as clients read it."""
    return UsageFields(
        usage.num_prompt_tokens,
        usage.num_completion_tokens,
        usage.num_prompt_tokens + usage.num_completion_tokens,
        PromptTokensDetails(usage.num_cached_tokens),
        CompletionTokensDetails(usage.num_reasoning_tokens) if usage.num_reasoning_tokens else None,
    )


def frame_event(data: bytes) -> bytes:
    """One server-sent event with `data`, which must not contain line breaks (JSON does not)."""
    return b"data: %b\n\n" % data


def frame_named_event(name: str, data: bytes) -> bytes:
    """The same with the event's name, for the dialects whose readers go by it."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
