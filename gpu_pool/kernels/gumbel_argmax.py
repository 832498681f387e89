"""Draws a token per row by a race: argmax over tokens of logit / temperature − log E.

E is exponential noise hashed from (row key, token id), exactly that of `sampling.noise`, computed
where it is used instead of being stored: the logits are read once and nothing as large is written.
A row of temperature 0 takes its largest logit. Tokens below a row's cut-off cannot win.
Shapes: R rows, V vocabulary, P parts of a row. Takes fp32 logits.
Source: Gumbel 1954; Wellons 2018 (lowbias32).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl

_BLOCK = 1024
_PART = 8192


def gumbel_argmax_reference(
    logits_RV: Tensor, log_exponentials_RV: Tensor, temperatures_R: Tensor, cutoffs_R: Tensor
) -> Tensor:
    """Token ids `[R]`, in plain torch from noise that has been drawn."""
    is_random_R1 = temperatures_R[:, None] > 0
    scale_R1 = torch.where(is_random_R1, temperatures_R[:, None], 1.0)
    scores_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)) / scale_R1
    race_RV = torch.where(is_random_R1, scores_RV - log_exponentials_RV, scores_RV)
    return race_RV.masked_fill(scores_RV < cutoffs_R[:, None], float("-inf")).argmax(-1)


@jit
def _shift_right(bits, COUNT: tl.constexpr, MASK: tl.constexpr):
    """A logical shift of int32; the language's own drags the sign along."""
    return (bits >> COUNT) & MASK


@jit
def _log_of_rest(u):
    """log(1 − u) at full relative precision, for u between 0 and 1."""
    rest = 1.0 - u
    lost = (1.0 - rest) - u  # what rounding took from the difference, exactly
    return tl.where(u < 1e-4, -u - u * u * 0.5, tl.log(rest) + lost / rest)


@jit
def _race_kernel(
    logits_ptr,
    largest_ptr,
    keys_ptr,
    temperatures_ptr,
    cutoffs_ptr,
    best_ptr,
    winner_ptr,
    vocab_size,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The winner of one part of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    largest = tl.load(largest_ptr + row)
    temperature = tl.load(temperatures_ptr + row)
    cutoff = tl.load(cutoffs_ptr + row)
    key_1 = tl.load(keys_ptr + row * 2)
    key_2 = tl.load(keys_ptr + row * 2 + 1)
    is_random = temperature > 0
    scale = tl.where(is_random, temperature, 1.0)
    best = float("-inf")
    winner = part * PART
    for start in range(part * PART, tl.minimum((part + 1) * PART, vocab_size), BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        is_inside = tokens < vocab_size
        logits = tl.load(logits_ptr + row * vocab_size + tokens, mask=is_inside, other=0.0)
        scores = (logits - largest) / scale
        bits = (tokens * -1640531535) ^ key_1
        bits = (bits ^ _shift_right(bits, 16, 0xFFFF)) * 2146121005 + key_2
        bits = (bits ^ _shift_right(bits, 15, 0x1FFFF)) * -2073254261
        bits = (bits ^ _shift_right(bits, 16, 0xFFFF)) & 2147483647
        uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 4.656612873077393e-10, 1 - 5.9604645e-8)
        race = tl.where(is_random, scores - tl.log(-_log_of_rest(uniform)), scores)
        race = tl.where(is_inside & (scores >= cutoff), race, float("-inf"))
        block_best = tl.max(race, 0)
        block_winner = start + tl.argmax(race, 0)
        winner = tl.where(block_best > best, block_winner, winner)
        best = tl.maximum(best, block_best)
    tl.store(best_ptr + row * PARTS + part, best)
    tl.store(winner_ptr + row * PARTS + part, winner)


def gumbel_argmax_triton(
    logits_RV: Tensor, keys_R2: Tensor, temperatures_R: Tensor, cutoffs_R: Tensor
) -> Tensor:
    """Token ids `[R]`, by triton; `keys_R2` are int32."""
    num_rows, vocab_size = logits_RV.shape
    assert logits_RV.is_contiguous(), "logits_RV is not contiguous"
    num_parts = -(-vocab_size // _PART)
    best_RP = torch.empty((num_rows, num_parts), dtype=torch.float32, device=logits_RV.device)
    winner_RP = torch.empty((num_rows, num_parts), dtype=torch.int32, device=logits_RV.device)
    _race_kernel[(num_rows, num_parts)](
        logits_RV,
        logits_RV.amax(-1),
        keys_R2,
        temperatures_R,
        cutoffs_R,
        best_RP,
        winner_RP,
        vocab_size,
        PARTS=num_parts,
        PART=_PART,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return winner_RP.gather(1, best_RP.argmax(-1, keepdim=True))[:, 0].long()
