"""sigmoid, silu and gelu whose bits do not depend on where an element stands.

On a CPU torch computes what is left over at the end of a tensor, or of a thread's part of it, one
by one, and these three so in other instructions: the last bit of a row would follow from how many
rows share its step. exp and tanh have one way of computing, so here all are made of them, in fp32
and rounded at the end, as torch does it. Elsewhere torch's own are used, element by element.
Takes bf16, fp16 or fp32. Source: Hendrycks and Gimpel 2016 (gelu, by tanh).
"""

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

_INNER_SCALE: Final = math.sqrt(2 / math.pi)
_CUBE_SCALE: Final = 0.044715


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    if x.device.type != "cpu":
        return torch.sigmoid(x)
    return torch.exp(-x.float()).add_(1).reciprocal_().to(x.dtype)


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    if x.device.type != "cpu":
        return functional.silu(x)
    wide = x.float()
    return torch.div(wide, torch.exp(-wide).add_(1)).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """x / 2 · (1 + tanh(√(2 / π) · (x + 0.044715 · x³)))."""
    if x.device.type != "cpu":
        return functional.gelu(x, approximate="tanh")
    wide = x.float()
    inner = (wide * wide).mul_(_CUBE_SCALE).add_(1).mul_(wide).mul_(_INNER_SCALE)
    return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)
