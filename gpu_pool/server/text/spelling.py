"""The token sequences with which an answer would spell a word.

Vocabularies have other tokens for a word behind a space than for one at the beginning of a line,
and those made of SentencePiece put a space in front of every text. So a word is encoded behind what
may come before it, and what stands for the word itself is cut off by the bytes of the tokens.
Must not know what spellings are for. Read next: `tokenizer`, `token_bytes`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from contracts.errors import InvalidRequest
from gpu_pool.server.text.token_bytes import TokenBytes
from gpu_pool.server.text.tokenizer import Tokenizer

Spelling = tuple[int, ...]
_BEFORE: Final = ("", " ", "\n")


def spell_words(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[Spelling, ...]:
    """The spellings of all `words`, each once; spaces in front of a word are no part of it.

    Raises: `InvalidRequest` for a word of which no token is left, or that is a control token
    whatever is done.
    """
    spellings: dict[Spelling, None] = {}
    for word in words:
        found = _spell(tokenizer, word.lstrip(" "))
        if not found:
            raise InvalidRequest("One of `bad_words` has no tokens.", param="bad_words")
        spellings |= dict.fromkeys(found)
    return tuple(spellings)


def _spell(tokenizer: Tokenizer, word: str) -> list[Spelling]:
    """The spellings of one word; none where the vocabulary keeps nothing of it."""
    table = tokenizer.table
    encoded = [tokenizer.encode_plain(before + word) for before in _BEFORE]
    own = b"".join(map(table.spell, encoded[0])).removeprefix(b" ")
    if not own:
        return []
    found = [_find_ending(table, ids, own) for ids in encoded]
    return [spelling for spelling in found if spelling]


def _find_ending(table: TokenBytes, token_ids: Sequence[int], own: bytes) -> Spelling:
    """The last of `token_ids` that stand for `own`, with or without a space before it; () where
    none do.
    """
    wanted, ending = (own, b" " + own), b""
    for first in range(len(token_ids) - 1, -1, -1):
        ending = table.spell(token_ids[first]) + ending
        if ending in wanted:
            return tuple(token_ids[first:])
    return ()
