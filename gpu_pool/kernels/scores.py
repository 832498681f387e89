"""Scores of tokens: logits over temperature, with each row's largest at 0.

The largest is moved to 0 first, so that it stays finite at any temperature. NaN counts as the
smallest number and infinities as the largest ones, so that a row of garbage still has a largest.
A temperature of 0 stands for a greedy row, whose logits are not divided.
Nothing as large as the logits is written: kernels that need scores compute them from the largest
logit of each part. Shapes: R rows, V vocabulary, P parts of a row. Takes fp32 logits.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.triton_language import jit, tl

PART: Final = 8192
"""Tokens of one program."""
BLOCK: Final = 1024
"""Tokens it looks at in one go."""
_LIMIT: Final = torch.finfo(torch.float32).max
SMALLEST: Final = -_LIMIT
"""Of what is impossible, once it is finite."""


def make_finite(logits_RV: Tensor) -> None:
    """Takes NaN and infinities out of `logits_RV`, in place and in plain torch."""
    torch.nan_to_num_(logits_RV, nan=-_LIMIT, posinf=_LIMIT, neginf=-_LIMIT)


def scores_reference(logits_RV: Tensor, temperatures_R: Tensor) -> Tensor:
    """Scores `[R, V]` of finite logits, in plain torch; every temperature is above 0."""
    return (logits_RV - logits_RV.amax(-1, keepdim=True)).div_(temperatures_R[:, None])


@jit
def load_finite(pointers, is_inside):
    """Logits without NaN and infinities; the smallest number where nothing is."""
    logits = tl.load(pointers, mask=is_inside, other=-3.4028234663852886e38)
    logits = tl.where(logits != logits, -3.4028234663852886e38, logits)
    return tl.minimum(tl.maximum(logits, -3.4028234663852886e38), 3.4028234663852886e38)


@jit
def load_scores(row_ptr, tokens, is_inside, largest, temperature):
    """Scores of a row's `tokens`, rounded as torch rounds them."""
    scale = tl.where(temperature > 0, temperature, 1.0)
    return tl.div_rn(load_finite(row_ptr + tokens, is_inside) - largest, scale)


@jit
def load_largest(largest_ptr, row, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """The largest logit of a row, from those of its parts."""
    parts = tl.arange(0, PADDED)
    return tl.max(
        tl.load(largest_ptr + row * PARTS + parts, mask=parts < PARTS, other=float("-inf")), 0
    )


@jit
def _largest_kernel(
    logits_ptr,
    largest_ptr,
    row_stride,
    vocab_size,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The largest logit of one part of one row per program."""
    wait_for_inputs(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(part * PART, tl.minimum((part + 1) * PART, vocab_size), BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        logits = load_finite(logits_ptr + row * row_stride + tokens, tokens < vocab_size)
        largest = tl.maximum(largest, logits)
    tl.store(largest_ptr + row * tl.num_programs(1) + part, tl.max(largest, 0))


def find_largest_triton(logits_RV: Tensor) -> Tensor:
    """The largest logit of each part, `[R, P]`, by triton; rows of logits may lie apart."""
    assert logits_RV.stride(1) == 1, "the elements of a row of logits_RV lie apart"
    num_rows, vocab_size = logits_RV.shape
    shape = (num_rows, -(-vocab_size // PART))
    largest_RP = torch.empty(shape, dtype=torch.float32, device=logits_RV.device)
    _largest_kernel[shape](
        logits_RV,
        largest_RP,
        logits_RV.stride(0),
        vocab_size,
        PART=PART,
        BLOCK=BLOCK,
        **find_launch_options(logits_RV.device),
    )
    return largest_RP
