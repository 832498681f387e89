"""Residual add and norm in one: r' = r + x, y = rms_norm(r').

Every layer needs both twice; joined, the sum is read once. Shapes: T tokens, D hidden size.
Takes bf16 or fp32; r' is rounded to the dtype before the norm, as an unfused pair does it.
"""

from torch import Tensor

from gpu_pool.kernels.rms_norm import rms_norm_reference


def add_rms_norm_reference(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The normed sum and the sum, in plain torch."""
    sum_TD = residual_TD + x_TD
    return rms_norm_reference(sum_TD, weight_D, eps), sum_TD


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The normed sum and the sum itself, which is the next residual."""
    assert x_TD.shape == residual_TD.shape, "x_TD and residual_TD differ in shape"
    assert x_TD.shape[1:] == weight_D.shape, "x_TD and weight_D disagree on D"
    return add_rms_norm_reference(x_TD, residual_TD, weight_D, eps)
