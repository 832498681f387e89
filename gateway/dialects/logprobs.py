"""Log probabilities as clients read them: per token for chats, in columns for completions.

Source: OpenAI's API reference.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from contracts.inference import TokenLogprob

LOWEST: Final = -9999.0
"""What stands for minus infinity, which JSON does not have."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at some place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of an answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """All tokens of an answer or of a piece of one."""

    content: tuple[ChatLogprob, ...]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The older form: one list per column, all of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins in the text, in characters."""


def to_chat_logprobs(entries: Iterable[TokenLogprob]) -> ChatLogprobs:
    """The entries of a chat's answer."""
    return ChatLogprobs(
        tuple(
            ChatLogprob(
                entry.token.decode(errors="replace"),
                _bound(entry.logprob),
                list(entry.token),
                tuple(
                    TopLogprob(token.decode(errors="replace"), _bound(logprob), list(token))
                    for _, token, logprob in entry.top
                ),
            )
            for entry in entries
        )
    )


class CompletionColumns:
    """Columns that grow with the text; offsets count from its beginning."""

    __slots__ = ("_num_chars",)

    def __init__(self) -> None:
        """At the beginning of a text."""
        self._num_chars = 0

    def add(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The columns of the next tokens. A token of half a character counts with its last half;
        what the text does not show of one does not count.
        """
        offsets: list[int] = []
        pending = b""
        for entry in entries:
            offsets.append(self._num_chars)
            pending += entry.token[entry.num_hidden_bytes :]
            try:
                self._num_chars += len(pending.decode())
                pending = b""
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data":
                    self._num_chars += len(pending.decode(errors="replace"))
                    pending = b""
        return CompletionLogprobs(
            [name_token(entry.token) for entry in entries],
            [None if entry.logprob is None else _bound(entry.logprob) for entry in entries],
            [_to_dict(entry) for entry in entries],
            offsets,
        )


def name_token(token: bytes) -> str:
    """The token as a text that no other token has."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _to_dict(entry: TokenLogprob) -> dict[str, float] | None:
    """The likeliest tokens by name; None where nothing precedes the token."""
    if entry.logprob is None:
        return None
    return {name_token(token): _bound(logprob) for _, token, logprob in entry.top}


def _bound(logprob: float | None) -> float:
    """A number that JSON has."""
    return 0.0 if logprob is None else max(logprob, LOWEST)
