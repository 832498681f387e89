"""How likely tokens were by the model's own logits.

Works on a few rows at a time, so that memory stays bounded however many tokens are scored.
Shapes: R rows, V vocabulary, N alternatives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.device_values import to_device
from gpu_pool.kernels.row_pieces import cut_rows
from gpu_pool.plan import TokenScore

ROWS_AT_ONCE: Final = 64


def score_tokens(
    logits_RV: Tensor, token_ids: Sequence[int], nums_top: Sequence[int]
) -> list[TokenScore]:
    """The score of one token per row, each with its number of alternatives.

    Logits may be of any size: NaN and -inf count as impossible, as in sampling.
    """
    scores: list[TokenScore] = []
    is_cpu = logits_RV.device.type == "cpu"
    for rows in _split(logits_RV.shape[1], nums_top, is_cpu=is_cpu):
        scores += _score_few(logits_RV[rows], token_ids[rows], nums_top[rows])
    return scores


def _split(vocab_size: int, nums_top: Sequence[int], *, is_cpu: bool) -> Iterator[slice]:
    """Runs of at most `ROWS_AT_ONCE` rows; on a CPU of rows that want the same number, since which
    of equals torch takes for alternatives depends on how many it is asked for.
    """
    if not is_cpu:
        for first in range(0, len(nums_top), ROWS_AT_ONCE):
            yield slice(first, first + ROWS_AT_ONCE)
        return
    for piece in cut_rows(len(nums_top), vocab_size):
        first = piece.start
        for _, run in groupby(nums_top[piece]):
            end = first + len(list(run))
            yield slice(first, end)
            first = end


def _score_few(
    logits_RV: Tensor, token_ids: Sequence[int], nums_top: Sequence[int]
) -> list[TokenScore]:
    """As `score_tokens`, all rows in one go."""
    token_ids_R = to_device(token_ids, torch.int64, logits_RV.device)
    return gather_scores(logits_RV, token_ids_R, max(nums_top)).read(nums_top)


@dataclass(frozen=True, slots=True)
class GatheredScores:
    """Scores on the device; `chosen_R` of one token per row, the others of the likeliest."""

    chosen_R: Tensor
    values_RN: Tensor
    ids_RN: Tensor

    def list_parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors in the order in which they are given."""
        return self.chosen_R, self.values_RN, self.ids_RN

    def read(self, nums_top: Sequence[int]) -> list[TokenScore]:
        """The scores, each with its number of alternatives; waits for the device."""
        chosen = self.chosen_R.tolist()
        values_RN, ids_RN = self.values_RN.tolist(), self.ids_RN.tolist()
        return [
            TokenScore(logprob, tuple(zip(ids[:count], values[:count], strict=True)))
            for logprob, ids, values, count in zip(chosen, ids_RN, values_RN, nums_top, strict=True)
        ]


def gather_scores(logits_RV: Tensor, token_ids_R: Tensor, num_top: int) -> GatheredScores:
    """The scores of one token per row, which may still be on its way; waits for nothing.

    What stands for no token is scored like the first of the vocabulary.
    Memory is bounded by the caller: `ROWS_AT_ONCE`.
    """
    limit = torch.finfo(torch.float32).max
    finite_RV = torch.nan_to_num(logits_RV.float(), nan=-limit, posinf=limit, neginf=-limit)
    # The largest is moved to 0 first: sums of differences of the largest floats stay finite.
    shifted_RV = finite_RV.sub_(finite_RV.amax(-1, keepdim=True))
    log_total_R1 = shifted_RV.logsumexp(-1, keepdim=True)
    chosen_R1 = shifted_RV.gather(-1, token_ids_R.clamp_min(0)[:, None]) - log_total_R1
    top = shifted_RV.topk(num_top, dim=-1)
    values_RN = (top.values - log_total_R1).clamp_min_(-limit)
    return GatheredScores(chosen_R1[:, 0].clamp_min_(-limit), values_RN, top.indices)
