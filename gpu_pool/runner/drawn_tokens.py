"""What a step has drawn and scored while it is still on the device, and on its way to the host.

Shapes: B rows that draw, V vocabulary, N alternatives. Read next: `under_way`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_pool.plan import TokenScore
from gpu_pool.runner.transfers import Download, Downloads
from gpu_pool.runner.work import Work
from gpu_pool.sampling.scoring import ROWS_AT_ONCE, GatheredScores, gather_scores


@dataclass(frozen=True, slots=True)
class _ScoredRows:
    """Scores of some rows; `nums_top`: alternatives that each asked for."""

    rows: tuple[int, ...]
    nums_top: tuple[int, ...]
    scores: GatheredScores


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token for each row, and scores of those that asked for them."""

    token_ids_B: Tensor
    """Nobody changes it any more."""
    scored: tuple[_ScoredRows, ...] = ()

    def fetch(self, downloads: Downloads) -> "Fetched":
        """Begins to copy everything to the host."""
        parts = [
            (one, [downloads.start(part) for part in one.scores.list_parts()])
            for one in self.scored
        ]
        return Fetched(downloads.start(self.token_ids_B), parts)


class Fetched:
    """What was drawn, on its way to the host."""

    def __init__(
        self, token_ids: Download, scored: Sequence[tuple[_ScoredRows, Sequence[Download]]]
    ) -> None:
        """Takes what `Drawn.fetch` has begun."""
        self._token_ids = token_ids
        self._scored = scored

    def read(self) -> tuple[list[int], dict[int, TokenScore]]:
        """Waits for the tokens, and for the scores by row."""
        scores: dict[int, TokenScore] = {}
        for one, parts in self._scored:
            there = GatheredScores(*[part.take() for part in parts])
            scores |= dict(zip(one.rows, there.read(one.nums_top), strict=True))
        return self._token_ids.take().tolist(), scores


def draws_plainly(work: Work) -> bool:
    """The token depends on the row's own logits and its seed alone, and nobody asks how likely."""
    sampling = work.row.sampling
    return not (
        work.item.allowed_tokens is not None
        or sampling.num_logprobs is not None
        or sampling.has_penalties
        or sampling.logit_bias
        or sampling.bad_spellings
    )


def have_filters(works: Sequence[Work]) -> bool:
    """One of them draws from a part of the vocabulary."""
    return any(work.row.sampling.has_filters for work in works)


def list_scored(works: Sequence[Work]) -> list[int]:
    """The rows whose tokens are scored."""
    return [row for row, work in enumerate(works) if work.row.sampling.num_logprobs is not None]


def score_drawn(
    works: Sequence[Work], rows: Sequence[int], logits_SV: Tensor, token_ids_S: Tensor
) -> tuple[_ScoredRows, ...]:
    """Scores of the tokens that `rows` of the step drew, by their logits before any adjustment."""
    pieces: list[_ScoredRows] = []
    for first in range(0, len(rows), ROWS_AT_ONCE):
        few = tuple(rows[first : first + ROWS_AT_ONCE])
        nums_top = tuple([works[row].row.sampling.num_logprobs or 0 for row in few])
        piece = slice(first, first + len(few))
        gathered = gather_scores(logits_SV[piece], token_ids_S[piece], max(nums_top))
        pieces.append(_ScoredRows(few, nums_top, gathered))
    return tuple(pieces)
