"""Guesses at what a sequence says next, taken from what it has said or was told before.

Owns when and how much to guess; must not know blocks or plans. The last tokens of a sequence are
looked up in its own history; where they stood before, what followed them is the guess. It costs
computing but never changes an answer. Guesses grow while they come true, stop when they do not,
and are tried again after a while. Read next: `planner` (the caller).
Source: Saxena, Prompt Lookup Decoding (2023).
"""

from array import array
from collections.abc import Sequence as Series
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpu_pool.engine.settings import NgramSettings

UInt32Array = NDArray[np.uint32]
_MAX_HISTORY_TOKENS: Final = 8192
"""How far back is looked: bounds the time a look-up takes."""
_NEAR_TOKENS: Final = 256
"""Here is looked first: what is found whole need not be looked for further back."""
_LONGEST_PAUSE_STEPS: Final = 64
_OBSERVED_TOKENS: Final = 8
"""Every so many tokens one is guessed in silence."""
_HOT_RATE: Final = 0.5
"""Share of guesses that came true above which a sequence waits for its tokens to be known."""


class Drafter:
    """The guesses of one sequence, and what became of them."""

    __slots__ = (
        "_history",
        "_length",
        "_num_observed",
        "_num_pauses",
        "_pause",
        "_rate",
        "_settings",
        "_silent_guess",
    )

    def __init__(self, settings: NgramSettings) -> None:
        """Has not guessed yet."""
        self._settings = settings
        self._history = array("I")
        self._length = min(2, settings.max_draft_tokens)
        """Tokens of the next guess."""
        self._pause = 0
        """Steps until the next guess."""
        self._num_pauses = 0
        self._rate = 0.0
        self._num_observed = 0
        self._silent_guess: int | None = None
        """What the next token would be, guessed for practice only."""

    @property
    def is_hot(self) -> bool:
        """True while most guesses come true."""
        return self._rate > _HOT_RATE

    def propose(self, token_ids: Series[int], limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that may follow `token_ids`; often none."""
        self._history.extend(token_ids[len(self._history) :])
        if self._pause > 0:
            self._pause -= 1
            return ()
        count = min(limit, self._length)
        return self._look_up(count) if count > 0 else ()

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """Takes in how a guess turned out."""
        if num_drafts == 0:
            return
        self._rate += 0.25 * (num_accepted / num_drafts - self._rate)
        if num_accepted == num_drafts:
            self._length = min(2 * self._length, self._settings.max_draft_tokens)
            self._num_pauses = 0
        elif num_accepted == 0:
            self._length = max(1, self._length // 2)
            self._pause = min(2**self._num_pauses, _LONGEST_PAUSE_STEPS)
            self._num_pauses += 1

    def observe(self, token_ids: Series[int]) -> None:
        """Takes in a token that came without a guess, which now and then is guessed in silence.

        Where steps are planned ahead, nothing is guessed before this says that it would pay.
        """
        if self._silent_guess is not None:
            self._rate += 0.5 * ((token_ids[-1] == self._silent_guess) - self._rate)
            self._silent_guess = None
        self._num_observed += 1
        if self._num_observed % _OBSERVED_TOKENS == 0:
            self._history.extend(token_ids[len(self._history) :])
            self._silent_guess = next(iter(self._look_up(1)), None)

    def _look_up(self, count: int) -> tuple[int, ...]:
        """What followed the last occurrence of the longest ending that occurred before."""
        shortest, longest = self._settings.min_match_tokens, self._settings.max_match_tokens
        for num_tokens in (_NEAR_TOKENS, _MAX_HISTORY_TOKENS):
            history = np.frombuffer(self._history[-num_tokens:], dtype=np.uint32)
            length, place = _find_last(history, longest)
            if length == longest or history.size == len(self._history):
                break
        return tuple(history[place : place + count].tolist()) if length >= shortest else ()


def _find_last(history: UInt32Array, longest: int) -> tuple[int, int]:
    """The length of the longest ending of `history` that occurred before, at most `longest`, and
    the place behind its last earlier occurrence; in a time that hardly depends on what they are.
    """
    found = 0, 0
    places = np.flatnonzero(history[:-1] == history[-1:]) + 1  # the ending itself does not count
    for length in range(1, min(longest, history.size - 1) + 1):
        if length > 1:
            places = places[places >= length]
            places = places[history[places - length] == history[-length]]
        if not places.size:
            break
        found = length, int(places[-1])
    return found
