"""The fused pair against its two halves."""

import pytest
import torch

from gpu_pool.kernels.add_rms_norm import add_rms_norm
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (7, 129)])
def test_the_sum_is_handed_on_and_its_norm_returned(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = torch.rand(shape[1]).to(dtype)
    before = residual.clone()
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    wide = x.double() + residual.double()
    assert_close(total, wide)
    assert_close(
        normed, wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    )
    assert torch.equal(residual, before)


def test_a_residual_of_another_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match="differ in shape"):
        add_rms_norm(torch.zeros(2, 8), torch.zeros(1, 8), torch.ones(8), 1e-6)
