"""How likely tokens were by the model's own logits.

Works on a few rows at a time, so that memory stays bounded however many tokens are scored.
Shapes: R rows, V vocabulary, N alternatives.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from gpu_pool.plan import TokenScore

ROWS_AT_ONCE: Final = 64


def score_tokens(
    logits_RV: Tensor, token_ids: Sequence[int], nums_top: Sequence[int]
) -> list[TokenScore]:
    """The score of one token per row, each with its number of alternatives.

    Logits may be of any size: NaN and -inf count as impossible, as in sampling.
    """
    scores: list[TokenScore] = []
    for rows in _split(len(token_ids)):
        scores += _score_few(logits_RV[rows], token_ids[rows], nums_top[rows])
    return scores


def _split(num_rows: int) -> Iterator[slice]:
    """Runs of at most `ROWS_AT_ONCE` rows."""
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, num_rows, ROWS_AT_ONCE))


def _score_few(
    logits_RV: Tensor, token_ids: Sequence[int], nums_top: Sequence[int]
) -> list[TokenScore]:
    """As `score_tokens`, all rows in one go."""
    limit = torch.finfo(torch.float32).max
    finite_RV = torch.nan_to_num(logits_RV.float(), nan=-limit, posinf=limit, neginf=-limit)
    # The largest is moved to 0 first: sums of differences of the largest floats stay finite.
    shifted_RV = finite_RV.sub_(finite_RV.amax(-1, keepdim=True))
    log_total_R1 = shifted_RV.logsumexp(-1, keepdim=True)
    ids_R1 = torch.tensor(token_ids, device=logits_RV.device)[:, None]
    chosen = (shifted_RV.gather(-1, ids_R1) - log_total_R1)[:, 0].clamp_min_(-limit).tolist()
    num_top = max(nums_top)
    if num_top == 0:
        return [TokenScore(logprob) for logprob in chosen]
    top = shifted_RV.topk(num_top, dim=-1)
    values_RN = (top.values - log_total_R1).clamp_min_(-limit).tolist()
    ids_RN = top.indices.tolist()
    return [
        TokenScore(logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for logprob, ids, values, count in zip(chosen, ids_RN, values_RN, nums_top, strict=True)
    ]
