"""Top-k, top-p and min-p as one cut-off per row: what lies below it cannot be drawn.

Applied in Hugging Face's order: top-k, then top-p over what is left, then min-p relative to the
most likely token. Tokens that tie with the last one kept are kept too. Rows are sorted only as far
as their filters reach. Shapes: R rows, V vocabulary, C candidates.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from contracts.inference import SamplingParams

_FIRST_CANDIDATES: Final = 1024
"""A nucleus is nearly always smaller; rows where it is not are sorted in full."""


def compute_cutoffs(scores_RV: Tensor, sampling: Sequence[SamplingParams]) -> Tensor | None:
    """The smallest score each row may draw, `[R, 1]`, or None when no row filters.

    `scores_RV` are logits over temperature with each row's largest at 0.
    """
    if all(s.top_k == 0 and s.top_p >= 1.0 and s.min_p <= 0.0 for s in sampling):
        return None
    vocab_size = scores_RV.shape[1]
    cutoffs_R1 = _to_column([s.min_p for s in sampling], scores_RV).clamp_min_(0).log_()
    rows = [i for i, s in enumerate(sampling) if 0 < s.top_k < vocab_size or s.top_p < 1.0]
    if rows:
        index = torch.tensor(rows, device=scores_RV.device)
        top_k = [min(sampling[i].top_k or vocab_size, vocab_size) for i in rows]
        top_p = [sampling[i].top_p for i in rows]
        found_R1 = _cut_sorted(scores_RV[index], top_k, top_p)
        cutoffs_R1[index] = torch.maximum(cutoffs_R1[index], found_R1)
    # Rounding, or a min_p of 1 and more, must never exclude the most likely token.
    return cutoffs_R1.clamp_max_(0)


def _cut_sorted(scores_RV: Tensor, top_k: list[int], top_p: list[float]) -> Tensor:
    """The cut-off of top-k and top-p, `[R, 1]`."""
    vocab_size = scores_RV.shape[1]
    largest_k = max(top_k)
    num_candidates = largest_k if largest_k < vocab_size else min(_FIRST_CANDIDATES, vocab_size)
    cutoffs_R1, is_complete_R = _cut_candidates(scores_RV, top_k, top_p, num_candidates)
    if bool(is_complete_R.all()):
        return cutoffs_R1
    return _cut_candidates(scores_RV, top_k, top_p, vocab_size)[0]


def _cut_candidates(
    scores_RV: Tensor, top_k: list[int], top_p: list[float], num_candidates: int
) -> tuple[Tensor, Tensor]:
    """The cut-offs as far as the best `num_candidates` tell, and for which rows they do."""
    vocab_size = scores_RV.shape[1]
    sorted_RC = scores_RV.topk(num_candidates, dim=-1).values
    k_R1 = _to_column(top_k, scores_RV)
    rank_C = torch.arange(num_candidates, device=scores_RV.device)
    weights_RC = sorted_RC.exp().masked_fill_(rank_C >= k_R1, 0)
    reached_RC = weights_RC.cumsum(-1)
    total_R1 = torch.where(
        k_R1 < vocab_size, reached_RC[:, -1:], scores_RV.exp().sum(-1, keepdim=True)
    )
    p_R1 = _to_column(top_p, scores_RV)
    budget_R1 = total_R1 * p_R1
    is_kept_RC = (rank_C < k_R1) & ((reached_RC - weights_RC < budget_R1) | (p_R1 >= 1))
    last_R1 = is_kept_RC.sum(-1, keepdim=True).clamp_min_(1) - 1
    is_complete_R1 = (k_R1 <= num_candidates) | (reached_RC[:, -1:] >= budget_R1)
    if num_candidates == vocab_size:
        is_complete_R1 = torch.ones_like(is_complete_R1)
    return sorted_RC.gather(-1, last_R1), is_complete_R1[:, 0]


def _to_column(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers, one per row, `[R, 1]`."""
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]
