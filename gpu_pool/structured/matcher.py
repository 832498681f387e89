"""Token masks from grammars: llguidance over one model's vocabulary.

Owns the limits under which a grammar is prepared and followed, the same ones in trial process and
engine core. Counts of the library's own steps, not time: what passes once passes always.
Must not know the scheduler, whose `TokenMatcher` this is. Read next: `grammar_text`.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from contracts.errors import InvalidRequest, UnsupportedFeature

_MAX_GRAMMAR_SIZE: Final = 250_000
_MAX_LEXER_STATES: Final = 50_000
_STEP_LEXER_FUEL: Final = 100_000
_MAX_MESSAGE_CHARS: Final = 200


class GrammarMatcher:
    """One answer's way through its grammar."""

    __slots__ = ("_escape", "_is_misled", "_lexer", "_mask", "_matcher")

    def __init__(self, matcher: LLMatcher, escape: bytes, lexer: threading.Lock) -> None:
        """`escape` is the mask for when `matcher` has given up: a token that it does not accept.
        `lexer` is held by whichever of the copies uses what they share. They would wait for one
        another without it, but while tokens are taken in the library keeps Python's own lock then,
        and with it all other threads.
        """
        self._matcher = matcher
        self._lexer = lexer
        self._escape = escape
        self._mask = b""
        self._is_misled = False

    def copy(self) -> "GrammarMatcher":
        """Another answer's at the same place, which shares what was prepared."""
        return GrammarMatcher(self._matcher.deep_copy(), self._escape, self._lexer)

    def fill_mask(self) -> bytes:
        """A bit per token that may come next; end-of-sequence tokens where the answer may end."""
        with self._lexer:
            mask = self._matcher.compute_bitmask()
        self._mask = self._escape if self._matcher.is_error() else mask
        return self._mask

    def accept(self, token_id: int) -> bool:
        """Takes the next token; False when the grammar does not allow it, or became too complex."""
        with self._lexer:
            is_right = self._matcher.consume_token(token_id)
        if not is_right and self._mask:
            self._is_misled = not self._mask[token_id // 8] >> token_id % 8 & 1
        return is_right

    @property
    def has_given_up(self) -> bool:
        """True when the grammar cannot be satisfied any more, or became too complex to follow; not
        when it was broken by a token that its mask forbids.
        """
        return self._matcher.is_error() and not self._is_misled

    @property
    def is_finished(self) -> bool:
        """True when the answer is complete and nothing may follow it."""
        return self._matcher.is_stopped() and not self._matcher.is_error()


class MatcherFactory:
    """Matchers for one model."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`vocab_size` is the model's, which may be larger than the tokenizer's.

        Raises: `UnsupportedFeature` when the tokenizer is of a kind that has no masks.
        """
        try:
            self._tokenizer = LLTokenizer(
                tokenizer_json,
                n_vocab=vocab_size,
                eos_token=list(eos_token_ids),
                slices=LLTokenizer.json_slices(),
            )
        except Exception as error:  # whatever the library makes of a file that it does not know
            raise UnsupportedFeature(f"This tokenizer has no token masks: {error}") from error
        self._limits = LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR_SIZE,
            max_lexer_states=_MAX_LEXER_STATES,
            step_lexer_fuel=_STEP_LEXER_FUEL,
            verbose_errors=False,
        )
        ordinary = next(i for i in range(vocab_size) if i not in set(eos_token_ids))
        self._escape = (1 << ordinary).to_bytes(-(-vocab_size // 32) * 4, "little")

    def create(self, grammar: str) -> GrammarMatcher:
        """A matcher at the beginning of `grammar`.

        Raises: `InvalidRequest` for one that cannot be followed.
        """
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars show what they are at their first step only
        if matcher.is_error() or matcher.is_stopped():
            raise InvalidRequest(describe_refusal(matcher.get_error()))
        return GrammarMatcher(matcher, self._escape, threading.Lock())


def load_matchers(
    directory: Path, vocab_size: int, eos_token_ids: Sequence[int]
) -> Callable[[str], GrammarMatcher]:
    """What makes matchers for the checkpoint in `directory`. Raises: `UnsupportedFeature`."""
    text = (directory / "tokenizer.json").read_text(encoding="utf-8")
    return MatcherFactory(text, vocab_size, eos_token_ids).create


def describe_refusal(message: str) -> str:
    """A sentence for clients about a grammar that was refused, of the library's first line.

    Of an expression that line only says that it is wrong; what is wrong with it stands in the last.
    """
    reason, _, more = message.strip().partition("\n")
    if reason.endswith(":"):
        reason += " " + more.rpartition("\n")[2].removeprefix("error: ")
    if not reason:
        return "No answer can match the schema."
    return f"The schema cannot be enforced: {reason.strip()[:_MAX_MESSAGE_CHARS]}."
