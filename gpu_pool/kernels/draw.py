"""Draws a token per row by a race: argmax over tokens of score − log E.

Scores are logits over temperature (`scores`), E is exponential noise hashed from (seed, position,
token id), computed where it is used (`noise`): the logits are read once and nothing as large is
written. Tokens whose score is below the row's cut-off (`cutoffs`) cannot win. A row of temperature
0 takes its largest logit. Of equals the first wins. A row without a number draws `NO_TOKEN`.
Nothing waits for the device, and what is launched depends on shapes and `has_filters` alone.
Shapes: R rows, V vocabulary, P parts of a row. Takes fp32 logits. Source: Gumbel 1954.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.cutoffs import Filters, cutoffs_reference, cutoffs_triton
from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.noise import (
    draw_log_exponentials,
    log_exponential_in_kernel,
    mix_key,
    mix_key_in_kernel,
)
from gpu_pool.kernels.row_pieces import cut_rows
from gpu_pool.kernels.scores import (
    BLOCK,
    PART,
    SMALLEST,
    find_largest_triton,
    load_largest,
    load_scores,
    make_finite,
    scores_reference,
)
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton
from gpu_pool.plan import NO_TOKEN


@dataclass(frozen=True, slots=True)
class DrawParameters:
    """How each row draws; tensors `[R]` beside the logits."""

    temperatures_R: Tensor
    """fp32; 0 is greedy."""
    top_ks_R: Tensor
    """int32; 0 keeps the whole vocabulary."""
    top_ps_R: Tensor
    """fp32."""
    min_ps_R: Tensor
    """fp32."""
    seeds_R: Tensor
    """int64, modulo 2⁶⁴."""
    positions_R: Tensor
    """int64, of the drawn tokens in their sequences."""
    has_filters: bool = True
    """False promises that no row has top-k, top-p or min-p, so that nothing looks for them."""

    def select(self, index: Tensor | slice) -> DrawParameters:
        """Those of some rows."""
        return DrawParameters(
            self.temperatures_R[index],
            self.top_ks_R[index],
            self.top_ps_R[index],
            self.min_ps_R[index],
            self.seeds_R[index],
            self.positions_R[index],
            self.has_filters,
        )

    @property
    def filters(self) -> Filters:
        """What each row may draw."""
        return Filters(self.top_ks_R, self.top_ps_R, self.min_ps_R)


def draw_reference(logits_RV: Tensor, parameters: DrawParameters) -> Tensor:
    """Token ids `[R]`, in plain torch; makes `logits_RV` finite."""
    make_finite(logits_RV)
    temperatures = parameters.temperatures_R.tolist()
    random = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if len(random) == len(temperatures):
        return _refuse_garbage(logits_RV, _race(logits_RV, parameters))
    token_ids_R = logits_RV.max(-1).indices  # sooner than `argmax`
    if random:
        index = torch.tensor(random, device=logits_RV.device)
        token_ids_R[index] = _race(logits_RV[index], parameters.select(index))
    return _refuse_garbage(logits_RV, token_ids_R)


def _refuse_garbage(logits_RV: Tensor, token_ids_R: Tensor) -> Tensor:
    """`NO_TOKEN` where even the drawn token was impossible, as then all are."""
    drawn_R = logits_RV.gather(-1, token_ids_R[:, None])[:, 0]
    return token_ids_R.masked_fill(drawn_R <= SMALLEST, NO_TOKEN)


def _race(logits_RV: Tensor, parameters: DrawParameters) -> Tensor:
    """One token per row by its probability; every temperature is above 0."""
    pieces = cut_rows(*logits_RV.shape)
    return torch.cat([_race_few(logits_RV[rows], parameters.select(rows)) for rows in pieces])


def _race_few(logits_RV: Tensor, parameters: DrawParameters) -> Tensor:
    """The same of rows that are looked at in one go."""
    scores_RV = scores_reference(logits_RV, parameters.temperatures_R)
    cutoffs_R = cutoffs_reference(scores_RV, parameters.filters) if parameters.has_filters else None
    places = zip(parameters.seeds_R.tolist(), parameters.positions_R.tolist(), strict=True)
    keys = [mix_key(seed, position) for seed, position in places]
    race_RV = scores_RV - draw_log_exponentials(keys, logits_RV.shape[1], logits_RV.device)
    if cutoffs_R is not None:
        race_RV.masked_fill_(scores_RV < cutoffs_R[:, None], float("-inf"))
    return race_RV.max(-1).indices


@jit
def _race_kernel(
    logits_ptr,
    largest_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    cutoffs_ptr,
    best_ptr,
    winner_ptr,
    row_stride,
    vocab_size,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_CUTOFFS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The winner of one part of one row per program."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    largest = load_largest(largest_ptr, row, PARTS, PADDED)
    temperature = tl.load(temperatures_ptr + row)
    key_1, key_2 = mix_key_in_kernel(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    best = float("-inf")
    winner = part * PART
    for start in range(part * PART, tl.minimum((part + 1) * PART, vocab_size), BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        is_inside = tokens < vocab_size
        row_ptr = logits_ptr + row * row_stride
        scores = load_scores(row_ptr, tokens, is_inside, largest, temperature)
        race = scores
        if temperature > 0:
            race = scores - log_exponential_in_kernel(tokens, key_1, key_2)
            if HAS_CUTOFFS:
                race = tl.where(scores >= tl.load(cutoffs_ptr + row), race, float("-inf"))
        race = tl.where(is_inside, race, float("-inf"))
        block_best = tl.max(race, 0)
        winner = tl.where(block_best > best, start + tl.argmax(race, 0), winner)
        best = tl.maximum(best, block_best)
    tl.store(best_ptr + row * PARTS + part, best)
    tl.store(winner_ptr + row * PARTS + part, winner)


@jit
def _finish_kernel(
    largest_ptr,
    best_ptr,
    winner_ptr,
    token_ids_ptr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The best of a row's winners, of equals the first; none where the row has no number."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PADDED)
    best = tl.load(best_ptr + row * PARTS + parts, mask=parts < PARTS, other=float("-inf"))
    winner = tl.load(winner_ptr + row * PARTS + tl.argmax(best, 0))
    largest = load_largest(largest_ptr, row, PARTS, PADDED)
    winner = tl.where(largest > -3.4028234663852886e38, winner, -1)
    tl.store(token_ids_ptr + row, winner.to(tl.int64))


def draw_triton(logits_RV: Tensor, parameters: DrawParameters) -> Tensor:
    """Token ids `[R]`, by triton; rows of logits may lie apart."""
    num_rows, vocab_size = logits_RV.shape
    largest_RP = find_largest_triton(logits_RV)
    num_parts = largest_RP.shape[1]
    sizes = {"PARTS": num_parts, "PADDED": next_power_of_2(num_parts)}
    sizes |= find_launch_options(logits_RV.device)
    temperatures_R = cutoffs_R = parameters.temperatures_R
    if parameters.has_filters:
        cutoffs_R = cutoffs_triton(logits_RV, largest_RP, temperatures_R, parameters.filters)
    best_RP = torch.empty_like(largest_RP)
    winner_RP = torch.empty_like(largest_RP, dtype=torch.int32)
    token_ids_R = torch.empty(num_rows, dtype=torch.int64, device=logits_RV.device)
    _race_kernel[(num_rows, num_parts)](
        logits_RV,
        largest_RP,
        temperatures_R,
        parameters.seeds_R,
        parameters.positions_R,
        cutoffs_R,
        best_RP,
        winner_RP,
        logits_RV.stride(0),
        vocab_size,
        **sizes,
        HAS_CUTOFFS=parameters.has_filters,
        PART=PART,
        BLOCK=BLOCK,
    )
    _finish_kernel[(num_rows,)](largest_RP, best_RP, winner_RP, token_ids_R, **sizes, num_warps=1)
    return token_ids_R


def draw(logits_RV: Tensor, parameters: DrawParameters) -> Tensor:
    """One token id per row, `[R]` int64, inside the vocabulary; `logits_RV` may be changed.

    NaN counts as impossible, and a row in which all is impossible draws `NO_TOKEN`: it harms none
    of its neighbours.
    """
    assert logits_RV.dtype == torch.float32, "logits_RV is not fp32"
    assert parameters.temperatures_R.shape == logits_RV.shape[:1], "parameters do not fit the rows"
    if uses_triton(logits_RV):
        return draw_triton(logits_RV, parameters)
    return draw_reference(logits_RV, parameters)
