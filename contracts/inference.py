"""What is asked of a model and what comes back, free of any client dialect.

Owns the request and its events; must not know HTTP, accounts or the scheduler.
Read next: `contracts.wire`, which carries these between gateway and node.
"""

from enum import StrEnum
from typing import Final

import msgspec

from contracts.errors import ErrorReport
from contracts.ids import ModelName

SCHEMA_VERSION: Final = 1


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation; `role` is free text that the chat template interprets."""

    role: str
    content: str
    name: str | None = None


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation; the node renders it through the model's chat template."""

    messages: tuple[ChatMessage, ...]


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Text that is continued as it stands, without a template."""

    text: str


Prompt = ChatPrompt | TextPrompt


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen and when to stop. Ranges are checked where requests enter.

    Units: `max_tokens` counts generated tokens; None means up to the end of the context.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    """Same seed, prompt and model: same tokens. None lets the node draw one."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class GenerateRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"
):
    """One request for generated text, as the gateway sends it to a node.

    The tag leaves room for requests of other kinds in the same place of the wire.
    """

    model: ModelName
    prompt: Prompt
    sampling: SamplingParams
    stream: bool = True
    """False: the node holds the text back and sends it in one piece at the end."""
    reject_if_busy: bool = False
    """True: refused at once with `PoolSaturated` instead of waiting for a free place."""
    schema_version: int = SCHEMA_VERSION


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens a request consumed. Cached ones are a part of the prompt's."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first event of a stream that is served: the prompt is being computed."""

    num_prompt_tokens: int
    num_cached_tokens: int


class Delta(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """More text, and the tokens it came from (none while a character is incomplete)."""

    text: str
    token_ids: tuple[int, ...]
    choice_index: int = 0


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The last event of a served stream; also the answer to an abort, with what was consumed."""

    reason: FinishReason
    usage: Usage


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The last event of a stream that ended in an error, at whatever point."""

    error: ErrorReport
    usage: Usage | None = None
    """What was consumed until then; None when nothing was computed."""


GenerationEvent = Accepted | Delta | Finished | Failed
