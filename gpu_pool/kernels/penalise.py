"""Repetition, frequency and presence penalties on one row of logits, in place.

Repetition (Hugging Face's) looks at prompt and output: positive logits are divided, negative ones
multiplied. Frequency and presence (OpenAI's) look at the output only and subtract.
Invariant: what came out is among what occurred. Shapes: V vocabulary, N tokens that occurred.
Takes fp32 logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Penalties:
    """How much tokens lose that occurred; these defaults take nothing."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0


def penalise_reference(
    logits_V: Tensor, is_seen_V: Tensor, output_V: Tensor, penalties: Penalties
) -> None:
    """The three in turn, in plain torch; what never occurred is not looked at."""
    index_N = is_seen_V.nonzero()[:, 0]
    logits_N, output_N = logits_V[index_N], output_V[index_N]
    if penalties.repetition != 1.0:
        factor = penalties.repetition
        logits_N = torch.where(logits_N > 0, logits_N / factor, logits_N * factor)
    if penalties.frequency != 0.0:
        logits_N.sub_(output_N * penalties.frequency)
    if penalties.presence != 0.0:
        logits_N.sub_((output_N > 0) * penalties.presence)
    logits_V[index_N] = logits_N


@jit
def _penalise_kernel(
    logits_ptr,
    is_seen_ptr,
    output_ptr,
    repetition,
    frequency,
    presence,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """A stretch of the row per program."""
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = tokens < vocab_size
    logits = tl.load(logits_ptr + tokens, mask=is_inside, other=0.0)
    is_seen = tl.load(is_seen_ptr + tokens, mask=is_inside, other=0) != 0
    output = tl.load(output_ptr + tokens, mask=is_inside, other=0)
    repeated = tl.where(logits > 0, logits / repetition, logits * repetition)
    logits = tl.where(is_seen, repeated, logits)
    logits = logits - output.to(tl.float32) * frequency
    logits = tl.where(output > 0, logits - presence, logits)
    tl.store(logits_ptr + tokens, logits, mask=is_inside)


def penalise_triton(
    logits_V: Tensor, is_seen_V: Tensor, output_V: Tensor, penalties: Penalties
) -> None:
    """The three in turn, by triton."""
    assert logits_V.stride(0) == 1, "the elements of logits_V lie apart"
    vocab_size = logits_V.shape[0]
    _penalise_kernel[(-(-vocab_size // _BLOCK),)](
        logits_V,
        is_seen_V,
        output_V,
        penalties.repetition,
        penalties.frequency,
        penalties.presence,
        vocab_size,
        BLOCK=_BLOCK,
    )


def penalise(logits_V: Tensor, is_seen_V: Tensor, output_V: Tensor, penalties: Penalties) -> None:
    """Lowers tokens that occurred (`is_seen_V` bool, prompt too) or came out (`output_V` int32)."""
    assert is_seen_V.shape == output_V.shape == logits_V.shape, "counts do not fit the vocabulary"
    if uses_triton(logits_V):
        penalise_triton(logits_V, is_seen_V, output_V, penalties)
    else:
        penalise_reference(logits_V, is_seen_V, output_V, penalties)
