"""Makes tokens impossible that a packed mask has no bit for, in place.

Shapes: R rows, M masked rows, V vocabulary, W = ⌈V / 32⌉ words. Bit i of word w stands for token
32 · w + i. Rows without a mask are not touched. Takes fp32 logits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 2048


def token_mask_reference(logits_RV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
    """Writes −inf where there is no bit, by numpy and torch."""
    vocab_size = logits_RV.shape[1]
    packed = words_MW.cpu().numpy().view(np.uint8)
    bits = np.unpackbits(packed, axis=1, count=vocab_size, bitorder="little")
    is_forbidden_MV = torch.from_numpy(bits == 0).to(logits_RV.device)
    for row, is_forbidden_V in zip(rows_M.tolist(), is_forbidden_MV, strict=True):
        logits_RV[row].masked_fill_(is_forbidden_V, float("-inf"))


@jit
def _token_mask_kernel(
    logits_ptr, rows_ptr, words_ptr, row_stride, num_words, vocab_size, BLOCK: tl.constexpr
):
    """A stretch of one masked row per program."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = tokens < vocab_size
    words = tl.load(words_ptr + place * num_words + tokens // 32, mask=is_inside, other=0)
    is_forbidden = is_inside & ((words >> (tokens % 32)) & 1 == 0)
    tl.store(logits_ptr + row * row_stride + tokens, float("-inf"), mask=is_forbidden)


def token_mask_triton(logits_RV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
    """Writes −inf where there is no bit, by triton."""
    assert logits_RV.stride(1) == 1, "the elements of a row of logits_RV lie apart"
    assert words_MW.is_contiguous(), "words_MW is not contiguous"
    vocab_size = logits_RV.shape[1]
    _token_mask_kernel[(rows_M.shape[0], -(-vocab_size // _BLOCK))](
        logits_RV,
        rows_M,
        words_MW,
        logits_RV.stride(0),
        words_MW.shape[1],
        vocab_size,
        BLOCK=_BLOCK,
    )


def token_mask(logits_RV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
    """Forbids in row `rows_M[m]` (int64) what `words_MW[m]` (int32) has no bit for."""
    num_words = -(-logits_RV.shape[1] // 32)
    assert words_MW.shape == (rows_M.shape[0], num_words), "words_MW does not fit"
    assert words_MW.dtype == torch.int32, "words_MW is not int32"
    if uses_triton(logits_RV):
        token_mask_triton(logits_RV, rows_M, words_MW)
    else:
        token_mask_reference(logits_RV, rows_M, words_MW)
