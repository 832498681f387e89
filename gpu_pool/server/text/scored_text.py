"""Scored tokens with their own bytes, and how many of those the text does not show.

Owns where the text and its tokens' bytes differ: control tokens stand in no text, and the space
that SentencePiece puts in front of a first word is none of a text that begins with the word.
Must not know who asked. Read next: `token_bytes`, `detokenizer`.
"""

from collections.abc import Iterable, Sequence

from contracts.inference import TokenLogprob
from gpu_pool.plan import TokenScore
from gpu_pool.server.text.token_bytes import TokenBytes


class ScoredText:
    """The tokens of one text, in order."""

    __slots__ = ("_hides_space", "_table")

    def __init__(self, table: TokenBytes, *, hides_space: bool) -> None:
        """At the beginning; `hides_space` where the text lacks the space of its first word."""
        self._table = table
        self._hides_space = hides_space

    def skip(self, token_ids: Iterable[int]) -> None:
        """Passes tokens over that are told already."""
        for token_id in token_ids:
            self._count_hidden(token_id)

    def spell(
        self, token_ids: Sequence[int], scores: Sequence[TokenScore]
    ) -> tuple[TokenLogprob, ...]:
        """`scores` of the next tokens."""
        spell = self._table.spell
        return tuple(
            TokenLogprob(
                token_id,
                spell(token_id),
                score.logprob,
                tuple((other, spell(other), logprob) for other, logprob in score.top),
                self._count_hidden(token_id),
            )
            for token_id, score in zip(token_ids, scores, strict=True)
        )

    def _count_hidden(self, token_id: int) -> int:
        """Leading bytes of the next token that the text does not show."""
        if token_id in self._table.special:
            return len(self._table.spell(token_id))
        if not self._hides_space:
            return 0
        token = self._table.spell(token_id)
        self._hides_space = not token
        return int(token.startswith(b" "))


def lacks_first_space(table: TokenBytes, token_ids: Iterable[int], text: str) -> bool:
    """True where the tokens of `text` begin with one space more than it does."""
    if not table.strips_first_space:
        return False
    num_spaces = 0
    for token_id in token_ids:
        token = b"" if token_id in table.special else table.spell(token_id)
        num_left = len(token.lstrip(b" "))
        num_spaces += len(token) - num_left
        if num_left:
            break
    return num_spaces > len(text) - len(text.lstrip(" "))
