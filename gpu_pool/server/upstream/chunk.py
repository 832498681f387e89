"""One event of an engine's answer, as it comes: types and decoding, nothing else.

Owns which fields are read and their bounds; what is not named here is passed over. Read next:
`answer_reader`.
"""

from typing import Annotated, Final

import msgspec

from contracts.errors import StreamBroken

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=1024)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""A larger number would not go on the wire, whose writer has the streams of others to send, too."""
_MAX_SCORES: Final = 4096
_ScoredTokens = Annotated[list["ScoredToken"], msgspec.Meta(max_length=_MAX_SCORES)]


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: _Count | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens."""

    reasoning_tokens: _Count | None = None


class EngineUsage(msgspec.Struct, frozen=True):
    """What was used so far."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class FunctionPiece(msgspec.Struct, frozen=True):
    """A part of a call."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct, frozen=True):
    """A part of a tool call, or all of it."""

    index: _Index | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class MessagePiece(msgspec.Struct, frozen=True):
    """More of a chat's answer. Thoughts have one of two names, by the engine's version."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallPiece] | None = None


class ScoredToken(msgspec.Struct, frozen=True):
    """How likely a token was; of the answer's own, with the others."""

    token: str
    logprob: float
    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None
    top_logprobs: list["ScoredToken"] = []


class Scores(msgspec.Struct, frozen=True):
    """Logprobs, in the form of chats (`content`) or of plain text (the others)."""

    content: _ScoredTokens | None = None
    tokens: Annotated[list[str], msgspec.Meta(max_length=_MAX_SCORES)] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class ChoicePiece(msgspec.Struct, frozen=True):
    """More of one choice."""

    index: _Index = 0
    delta: MessagePiece | None = None
    text: str | None = None
    logprobs: Scores | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """What vLLM has stopped at."""
    matched_stop: int | str | None = None
    """The same of SGLang."""
    token_ids: list[_TokenId] | None = None


class EngineFailure(msgspec.Struct, frozen=True):
    """What went wrong."""

    message: str = ""
    code: int | str | None = None
    type: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event."""

    choices: list[ChoicePiece] = []
    usage: EngineUsage | None = None
    error: EngineFailure | str | None = None


_decoder: Final = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """The event in `data`. Raises: `StreamBroken`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StreamBroken("The model's engine has sent an event that is malformed.") from error
