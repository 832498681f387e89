"""Which tokens would complete what an answer must not contain, and how they are made impossible.

A spelling forbids its last token wherever the answer's newest ones are its others; one of a single
token is forbidden everywhere. The prompt does not count. Nothing waits for the device, where the
newest tokens may still be. Source: vLLM's `bad_words`.
Shapes: W spellings, L tokens of the longest less its last (1 at least), V vocabulary, N tokens.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.device_values import to_device

_ANY: Final = -1
"""Stands in front of the shorter spellings: what comes before them does not matter."""
_NOTHING: Final = -2
"""Stands where an answer has no token yet."""


class BadWords:
    """What one sequence's answer must not contain, and the end of what it has by now."""

    __slots__ = ("_beginnings_WL", "_is_any_WL", "_lasts_W", "_newest_L", "_nothing_W")

    def __init__(
        self, spellings: Sequence[Sequence[int]], output: Sequence[int], device: torch.device
    ) -> None:
        """`spellings`: at least one, none empty; `output` is not empty after a preemption."""
        length = max(2, *map(len, spellings)) - 1
        beginnings = [[_ANY] * (length + 1 - len(one)) + list(one[:-1]) for one in spellings]
        self._beginnings_WL = to_device(beginnings, torch.int32, device)
        self._is_any_WL = self._beginnings_WL == _ANY
        self._lasts_W = to_device([one[-1] for one in spellings], torch.int64, device)
        self._nothing_W = torch.zeros(len(spellings), dtype=torch.float32, device=device)
        newest = [_NOTHING] * length + list(output[-length:])
        self._newest_L = to_device(newest[len(newest) - length :], torch.int32, device)

    def add(self, token_id: int) -> None:
        """The answer goes on with one more token."""
        self.add_drawn(to_device([token_id], torch.int64, self._newest_L.device))

    def add_drawn(self, token_ids_N: Tensor) -> None:
        """The answer goes on with tokens that may still be on their way, int64 on the device."""
        self._newest_L = _follow(self._newest_L, token_ids_N.int())

    def forbid(self, logits_V: Tensor, drafts: Sequence[int] = ()) -> None:
        """Makes impossible, in place, what would complete a spelling behind the answer and
        `drafts`, which are guesses at how it goes on.
        """
        newest_L = self._newest_L
        if drafts:
            newest_L = _follow(newest_L, to_device(drafts, torch.int32, newest_L.device))
        is_begun_W = ((self._beginnings_WL == newest_L) | self._is_any_WL).all(-1)
        # Adding is the same in any order where several spellings end with one token.
        logits_V.index_add_(0, self._lasts_W, self._nothing_W.masked_fill(is_begun_W, -torch.inf))


def _follow(newest_L: Tensor, token_ids_N: Tensor) -> Tensor:
    """The newest tokens, once these have followed."""
    return torch.cat((newest_L, token_ids_N))[token_ids_N.shape[0] :]
