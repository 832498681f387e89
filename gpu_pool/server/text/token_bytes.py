"""The bytes that each token id stands for, read once from a model's `tokenizer.json`.

Tokens of a byte-level vocabulary are pieces of UTF-8, so an answer is the concatenation of its
tokens' bytes. Must not know streams. Read next: `detokenizer`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tokenizers import Tokenizer

from contracts.errors import UnsupportedFeature

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START: Final = "\u2581"
"""What SentencePiece writes for a space."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A table by token id: `str` where the bytes are whole characters, else `bytes`."""

    pieces: tuple[str | bytes, ...]
    strips_first_space: bool
    """True when the space in front of the first word is an artefact of the vocabulary."""
    max_token_bytes: int | None
    """The longest token, or None where text may shrink before it is cut into tokens."""
    special: Mapping[int, str]
    """Control tokens, which an answer does not show."""

    def show(self, token_ids: Mapping[int, str]) -> "TokenBytes":
        """The same table, but these control tokens are visible."""
        if not token_ids:
            return self
        pieces = list(self.pieces)
        for token_id, content in token_ids.items():
            pieces[token_id] = content
        return replace(self, pieces=tuple(pieces))

    def spell(self, token_id: int) -> bytes:
        """The bytes of one token by itself; control tokens have those of their names."""
        if token_id in self.special:
            return self.special[token_id].encode()
        piece = self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""
        return piece if isinstance(piece, bytes) else piece.encode()


def create_token_bytes(tokenizer: Tokenizer, document: Mapping[str, Any]) -> TokenBytes:
    """The table for `document`, the content of the `tokenizer.json` behind `tokenizer`.

    Raises: `UnsupportedFeature` for vocabularies that are neither byte-level nor SentencePiece.
    """
    kinds = _list_decoders(document.get("decoder"))
    names = {kind["type"] for kind in kinds}
    is_byte_level = "ByteLevel" in names
    if not is_byte_level and not names & {"ByteFallback", "Metaspace"}:
        found = ", ".join(sorted(names)) or "none"
        raise UnsupportedFeature(f"This tokenizer's decoder is not supported: {found}.")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    special = {t["id"]: str(t["content"]) for t in document["added_tokens"] if t["special"]}
    characters = byte_level_characters()
    pieces: list[str | bytes] = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        if token_id not in special:
            data = _decode_byte_level(token, characters) if is_byte_level else _decode_piece(token)
            pieces[token_id] = _as_text(data)
    is_exact = is_byte_level and document.get("normalizer") is None
    return TokenBytes(
        pieces=tuple(pieces),
        strips_first_space=not is_byte_level and bool(names & {"Strip", "Metaspace"}),
        max_token_bytes=max(len(t.encode()) for t in vocabulary) if is_exact else None,
        special=special,
    )


def _list_decoders(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The decoder's steps, a sequence flattened."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _list_decoders(inner)]
    return [decoder]


def byte_level_characters() -> dict[str, int]:
    """GPT-2's alphabet: the visible character that stands for each byte. Source: `encoder.py`."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    shifted = {chr(256 + n): byte for n, byte in enumerate(hidden)}
    return {chr(byte): byte for byte in visible} | shifted


def _decode_byte_level(token: str, characters: Mapping[str, int]) -> bytes:
    """The bytes of `token`; one with a character outside the alphabet stands for itself."""
    try:
        return bytes([characters[character] for character in token])
    except KeyError:
        return token.encode()


def _decode_piece(token: str) -> bytes:
    """The bytes of a SentencePiece token."""
    if (match := _BYTE_TOKEN.fullmatch(token)) is not None:
        return bytes([int(match.group(1), 16)])
    return token.replace(_WORD_START, " ").encode()


def _as_text(data: bytes) -> str | bytes:
    """`data` as text when it is whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
