"""The norm of a sum against its formula."""

import pytest
import torch

from gpu_pool.kernels.layer_norm import add_layer_norm
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (3, 257), (65, 1024)])
def test_rows_are_centred_and_divided_by_their_deviation(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight, bias = torch.rand(shape[1]).add_(0.5).to(dtype), torch.randn(shape[1]).to(dtype)
    wide = (x + residual).double()
    centred = wide - wide.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = centred / deviation * weight.double() + bias.double()
    assert_close(add_layer_norm(x, residual, weight, bias, 1e-5), expected)


def test_a_bias_of_another_size_is_refused() -> None:
    with pytest.raises(AssertionError, match="disagree on D"):
        add_layer_norm(torch.zeros(2, 8), torch.zeros(2, 8), torch.ones(8), torch.ones(9), 1e-6)
