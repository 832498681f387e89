"""Root-mean-square norm: y = x / sqrt(mean(x²) + eps) · w, over the last dimension.

Shapes: T tokens, D hidden size. Takes bf16 or fp32; the mean is taken in fp32 either way.
Source: Zhang and Sennrich 2019. Read next: `add_rms_norm`.
"""

from torch import Tensor
from torch.nn import functional


def rms_norm_reference(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`x_TD` normed, in plain torch."""
    return functional.rms_norm(x_TD, weight_D.shape, weight_D, eps)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`x_TD` normed, of the same shape and dtype."""
    assert x_TD.shape[1:] == weight_D.shape, "x_TD and weight_D disagree on D"
    return rms_norm_reference(x_TD, weight_D, eps)
