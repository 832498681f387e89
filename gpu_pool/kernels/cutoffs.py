"""Top-k, top-p and min-p as one cut-off per row: what scores below it cannot be drawn.

Applied in Hugging Face's order: top-k, then top-p over what is left, then min-p relative to the
most likely token. Tokens that tie with the last one kept are kept too. Scores are logits over
temperature with each row's largest at 0.
The reference sorts rows as far as their filters reach. The kernels never sort: scores are 0 or
below, so that their bits without the sign count how far down they are, and the cut-off is the
smallest such number by which k tokens, or p of the mass, are reached. Eight passes over the row
find it, four bits each; each tells for 16 numbers what is reached by them. Sums are taken in an
order that depends on the size of the vocabulary alone.
Shapes: R rows, V vocabulary, C candidates, P parts of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.scores import PART, load_largest, load_scores
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl

_BLOCK: Final = 512
_FIRST_CANDIDATES: Final = 1024
"""A nucleus is nearly always smaller; rows where it is not are sorted in full."""
_PASSES: Final = 8


@dataclass(frozen=True, slots=True)
class Filters:
    """What each row may draw, each `[R]`."""

    top_ks_R: Tensor
    """int32; 0 keeps the whole vocabulary."""
    top_ps_R: Tensor
    """fp32; 1 keeps everything."""
    min_ps_R: Tensor
    """fp32; 0 keeps everything."""


def cutoffs_reference(scores_RV: Tensor, filters: Filters) -> Tensor | None:
    """The smallest score each row may draw, `[R]`, or None when no row filters."""
    vocab_size = scores_RV.shape[1]
    k_R = filters.top_ks_R.masked_fill(filters.top_ks_R == 0, vocab_size).clamp_max_(vocab_size)
    rows = ((k_R < vocab_size) | (filters.top_ps_R < 1)).nonzero()[:, 0]
    if rows.shape[0] == 0 and not bool((filters.min_ps_R > 0).any()):
        return None
    cutoffs_R = filters.min_ps_R.clamp_min(0).log_()
    if rows.shape[0]:
        found_R = _cut_sorted(scores_RV[rows], k_R[rows], filters.top_ps_R[rows])
        cutoffs_R[rows] = torch.maximum(cutoffs_R[rows], found_R)
    # Rounding, or a min_p of 1 and more, must never exclude the most likely token.
    return cutoffs_R.clamp_max_(0)


def _cut_sorted(scores_RV: Tensor, k_R: Tensor, p_R: Tensor) -> Tensor:
    """The cut-off of top-k and top-p, `[R]`."""
    vocab_size = scores_RV.shape[1]
    largest_k = int(k_R.max())
    num_candidates = largest_k if largest_k < vocab_size else min(_FIRST_CANDIDATES, vocab_size)
    cutoffs_R, is_complete_R = _cut_candidates(scores_RV, k_R, p_R, num_candidates)
    rest = is_complete_R.logical_not().nonzero()[:, 0]
    if rest.shape[0]:  # a flat row costs its neighbours nothing
        cutoffs_R[rest] = _cut_candidates(scores_RV[rest], k_R[rest], p_R[rest], vocab_size)[0]
    return cutoffs_R


def _cut_candidates(
    scores_RV: Tensor, k_R: Tensor, p_R: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor]:
    """The cut-offs as far as the best `num_candidates` tell, and for which rows they do."""
    vocab_size = scores_RV.shape[1]
    sorted_RC = _sort_best(scores_RV, num_candidates)
    k_R1, p_R1 = k_R[:, None], p_R[:, None]
    rank_C = torch.arange(num_candidates, dtype=torch.int32, device=scores_RV.device)
    weights_RC = sorted_RC.exp().masked_fill_(rank_C >= k_R1, 0)
    reached_RC = weights_RC.cumsum(-1)
    total_R1 = torch.where(
        k_R1 < vocab_size, reached_RC[:, -1:], scores_RV.exp().sum(-1, keepdim=True)
    )
    budget_R1 = total_R1 * p_R1
    is_kept_RC = (rank_C < k_R1) & ((reached_RC - weights_RC < budget_R1) | (p_R1 >= 1))
    last_R1 = is_kept_RC.sum(-1, keepdim=True).clamp_min_(1) - 1
    is_whole_R1 = k_R1 == vocab_size  # only then is the total known without all k candidates
    is_complete_R1 = (k_R1 <= num_candidates) | (is_whole_R1 & (reached_RC[:, -1:] >= budget_R1))
    if num_candidates == vocab_size:
        is_complete_R1 = torch.ones_like(is_complete_R1)
    return sorted_RC.gather(-1, last_R1)[:, 0], is_complete_R1[:, 0]


def _sort_best(scores_RV: Tensor, count: int) -> Tensor:
    """The best `count` scores of each row in falling order, by numpy: it sorts with vectors, which
    takes a tenth of the time of torch's own on a CPU.
    """
    scores = scores_RV.cpu().numpy()
    if count < scores.shape[1]:
        scores = np.partition(scores, scores.shape[1] - count, axis=1)[:, -count:]
    return torch.from_numpy(np.sort(scores, axis=1)).flip(1).to(scores_RV.device)


@jit
def _is_searched(temperature, k, p, vocab_size, IS_MASS: tl.constexpr):
    """True where top-k, or with IS_MASS top-p of a row has something to find."""
    if IS_MASS:
        return (temperature > 0) & (p < 1)
    return (temperature > 0) & (k > 0) & (k < vocab_size)


@jit
def _sum_parts(pointers, WIDTH: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """The sum of rows of WIDTH numbers, one row per part."""
    parts = tl.arange(0, PADDED)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    return tl.sum(tl.load(pointers + parts * WIDTH + columns, mask=parts < PARTS, other=0.0), 0)


@jit
def _find_start(
    starts_ptr,
    reached_ptr,
    totals_ptr,
    limits_ptr,
    row,
    num_rows,
    step,
    k,
    p,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    IS_MASS: tl.constexpr,
):
    """The digits found before pass number `step`, from what the pass before it has reached."""
    start = 0
    if step > 0:
        target = k.to(tl.float32)
        if IS_MASS:
            totals = _sum_parts(totals_ptr + row * PARTS * 2, 2, PARTS, PADDED)
            is_count = tl.arange(0, 2) == 1
            mass = tl.sum(tl.where(is_count, 0.0, totals), 0)
            count = tl.sum(tl.where(is_count, totals, 0.0), 0)
            # Of the tokens that tie with the last of k only as many count as make up k.
            tied = tl.exp(-tl.load(limits_ptr + row).to(tl.float32, bitcast=True))
            target = p * (mass + tl.maximum(target - count, 0.0) * tied)
        last_ptr = reached_ptr + ((step - 1) * num_rows + row) * PARTS * 16
        reached = _sum_parts(last_ptr, 16, PARTS, PADDED)
        digit = tl.minimum(tl.sum((reached < target).to(tl.int32), 0), 15)
        found = tl.load(starts_ptr + row * 8 + step - 1) + (digit << (32 - 4 * step))
        start = found & 0x7FFFFFFF
    return start


@jit
def _reach_kernel(
    logits_ptr,
    largest_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    limits_ptr,
    starts_ptr,
    reached_ptr,
    totals_ptr,
    row_stride,
    num_rows,
    vocab_size,
    step,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    IS_MASS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """What 16 numbers reach in one part of one row, in one pass; counts, or mass."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    temperature = tl.load(temperatures_ptr + row)
    k = tl.load(top_ks_ptr + row)
    p = tl.load(top_ps_ptr + row)
    if _is_searched(temperature, k, p, vocab_size, IS_MASS):
        begun = _find_start(
            starts_ptr,
            reached_ptr,
            totals_ptr,
            limits_ptr,
            row,
            num_rows,
            step,
            tl.where((k > 0) & (k < vocab_size), k, vocab_size),
            p,
            PARTS,
            PADDED,
            IS_MASS,
        )
        largest = load_largest(largest_ptr, row, PARTS, PADDED)
        limit = tl.load(limits_ptr + row) if IS_MASS else 0
        shift = 28 - 4 * step
        digits = tl.arange(0, 16)
        bounds = (begun >> shift) + digits
        reached = tl.zeros((16,), tl.float32)
        mass = 0.0
        count = 0.0
        for first in range(part * PART, tl.minimum((part + 1) * PART, vocab_size), BLOCK):
            tokens = first + tl.arange(0, BLOCK)
            is_inside = tokens < vocab_size
            row_ptr = logits_ptr + row * row_stride
            scores = load_scores(row_ptr, tokens, is_inside, largest, temperature)
            magnitudes = scores.to(tl.int32, bitcast=True) & 0x7FFFFFFF
            weights = is_inside.to(tl.float32)
            if IS_MASS:
                is_below = is_inside & (magnitudes < limit)
                count += tl.sum(is_below.to(tl.float32), 0)
                weights = tl.where(is_inside, tl.exp(scores), 0.0)
                mass += tl.sum(tl.where(is_below, weights, 0.0), 0)
            is_reached = (magnitudes >> shift)[:, None] <= bounds[None, :]
            reached += tl.sum(tl.where(is_reached, weights[:, None], 0.0), 0)
        tl.store(starts_ptr + row * 8 + step, begun, mask=part == 0)
        tl.store(reached_ptr + ((step * num_rows + row) * PARTS + part) * 16 + digits, reached)
        if IS_MASS:
            total_ptr = totals_ptr + (row * PARTS + part) * 2
            tl.store(total_ptr, mass, mask=step == 0)
            tl.store(total_ptr + 1, count, mask=step == 0)


@jit
def _settle_kernel(
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    limits_ptr,
    starts_ptr,
    reached_ptr,
    totals_ptr,
    cutoffs_ptr,
    num_rows,
    vocab_size,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    IS_MASS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Ends a search of one row: a limit after that of counts, the cut-off after that of mass."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    k = tl.load(top_ks_ptr + row)
    p = tl.load(top_ps_ptr + row)
    found = tl.load(limits_ptr + row) if IS_MASS else 0x7F800000
    if _is_searched(tl.load(temperatures_ptr + row), k, p, vocab_size, IS_MASS):
        k = tl.where((k > 0) & (k < vocab_size), k, vocab_size)
        end = _find_start(
            starts_ptr,
            reached_ptr,
            totals_ptr,
            limits_ptr,
            row,
            num_rows,
            8,
            k,
            p,
            PARTS,
            PADDED,
            IS_MASS,
        )
        found = tl.minimum(found, end)
    if IS_MASS:
        min_p = tl.load(min_ps_ptr + row)
        # Rounding, or a min_p of 1 and more, must never exclude the most likely token.
        least = tl.minimum(tl.log(tl.where(min_p > 0, min_p, 1.0)), 0.0)
        cutoff = -tl.cast(found, tl.float32, bitcast=True)
        tl.store(cutoffs_ptr + row, tl.where(min_p > 0, tl.maximum(cutoff, least), cutoff))
    else:
        tl.store(limits_ptr + row, found)


def cutoffs_triton(
    logits_RV: Tensor, largest_RP: Tensor, temperatures_R: Tensor, filters: Filters
) -> Tensor:
    """The smallest score each row may draw, `[R]`, by triton; 18 launches, whatever the rows ask.

    `largest_RP` is of `find_largest_triton`. Rows of temperature 0 are not cut.
    """
    (num_rows, vocab_size), num_parts = logits_RV.shape, largest_RP.shape[1]
    device = logits_RV.device
    limits_R = torch.empty(num_rows, dtype=torch.int32, device=device)
    starts = torch.empty(num_rows, _PASSES, dtype=torch.int32, device=device)
    reached = torch.empty(_PASSES, num_rows, num_parts, 16, dtype=torch.float32, device=device)
    totals = torch.empty(num_rows, num_parts, 2, dtype=torch.float32, device=device)
    cutoffs_R = torch.empty(num_rows, dtype=torch.float32, device=device)
    sizes = {"PARTS": num_parts, "PADDED": next_power_of_2(num_parts)}
    sizes |= find_launch_options(device)
    for is_mass in (False, True):
        for step in range(_PASSES):
            _reach_kernel[(num_rows, num_parts)](
                logits_RV,
                largest_RP,
                temperatures_R,
                filters.top_ks_R,
                filters.top_ps_R,
                limits_R,
                starts,
                reached,
                totals,
                logits_RV.stride(0),
                num_rows,
                vocab_size,
                step,
                **sizes,
                IS_MASS=is_mass,
                PART=PART,
                BLOCK=_BLOCK,
            )
        _settle_kernel[(num_rows,)](
            temperatures_R,
            filters.top_ks_R,
            filters.top_ps_R,
            filters.min_ps_R,
            limits_R,
            starts,
            reached,
            totals,
            cutoffs_R,
            num_rows,
            vocab_size,
            **sizes,
            IS_MASS=is_mass,
            num_warps=1,
        )
    return cutoffs_R
