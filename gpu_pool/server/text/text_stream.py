"""One sequence's way from token ids to the text its reader sees.

Joins detokenisation and stop strings, and keeps count of which tokens the visible text came from.
Must not know engine or wire. Read next: `gpu_pool.server.generation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_pool.server.text.detokenizer import Detokenizer
from gpu_pool.server.text.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became visible. Tokens of an unfinished character come with its rest."""

    text: str
    token_ids: tuple[int, ...]
    is_stopped: bool = False


class TextStream:
    """The state of one sequence."""

    __slots__ = ("_detokenizer", "_held_ids", "_matcher", "num_tokens")

    def __init__(self, detokenizer: Detokenizer, matcher: StopMatcher) -> None:
        """Both at the beginning of an answer."""
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._held_ids: list[int] = []
        self.num_tokens = 0
        """Tokens taken, up to and including the one that completed a stop string."""

    def push(self, token_ids: Sequence[int]) -> Piece:
        """What became visible with `token_ids`; nothing may follow once it is stopped."""
        texts: list[str] = []
        whole_ids: list[int] = []
        for token_id in token_ids:
            self.num_tokens += 1
            text, is_stopped = self._matcher.push(self._detokenizer.push(token_id))
            texts.append(text)
            self._held_ids.append(token_id)
            if is_stopped:
                return Piece("".join(texts), (*whole_ids, *self._held_ids), is_stopped=True)
            if not self._detokenizer.is_partial and not self._matcher.is_holding:
                whole_ids += self._held_ids
                self._held_ids.clear()
        return Piece("".join(texts), tuple(whole_ids))

    def finish(self) -> Piece:
        """What was held back, at the end of the answer."""
        text, is_stopped = self._matcher.push(self._detokenizer.finish())
        if not is_stopped:
            text += self._matcher.finish()
        return Piece(text, tuple(self._held_ids), is_stopped)
