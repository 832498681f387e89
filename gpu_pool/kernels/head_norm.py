"""Root-mean-square norm of every head by itself, in place, with weights per head.

Queries and keys lie side by side and are normed in one go. Shapes: T tokens, N heads, H head dim.
Takes bf16 or fp32; with fp32 weights on bf16 heads the product is rounded once, else the normed
head is rounded before it, as Hugging Face's families do it either way. Source: Qwen3, Gemma 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm of every query and key head before they turn."""

    weight_XH: Tensor
    eps: float


def head_norm_reference(x_TNH: Tensor, weight_NH: Tensor, eps: float) -> None:
    """Norms `x_TNH`, which may be a part of a larger tensor, in plain torch."""
    normed_TNH = functional.rms_norm(x_TNH.to(weight_NH.dtype), x_TNH.shape[-1:], None, eps)
    if x_TNH.dtype == weight_NH.dtype:
        torch.mul(normed_TNH, weight_NH, out=x_TNH)
    else:
        x_TNH.copy_(normed_TNH.mul_(weight_NH))


def head_norm(x_TNH: Tensor, weight_NH: Tensor, eps: float) -> None:
    """Norms every head of `x_TNH` and scales it by its weights, in place."""
    assert x_TNH.shape[1:] == weight_NH.shape, "x_TNH and weight_NH disagree on N or H"
    head_norm_reference(x_TNH, weight_NH, eps)
