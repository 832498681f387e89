"""Layer norm of a sum: y = (r − mean) / sqrt(var + eps) · w + b, with r = x + residual.

Encoders need it behind every part. Shapes: T tokens, D hidden size. Takes bf16 or fp32; mean and
variance are taken in fp32 either way. Source: Ba et al. 2016.
"""

from torch import Tensor
from torch.nn import functional


def add_layer_norm_reference(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> Tensor:
    """The normed sum, in plain torch."""
    return functional.layer_norm(x_TD + residual_TD, weight_D.shape, weight_D, bias_D, eps)


def add_layer_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> Tensor:
    """The normed sum, of the same shape and dtype."""
    assert x_TD.shape == residual_TD.shape, "x_TD and residual_TD differ in shape"
    assert x_TD.shape[1:] == weight_D.shape == bias_D.shape, "arguments disagree on D"
    return add_layer_norm_reference(x_TD, residual_TD, weight_D, bias_D, eps)
