"""The norm against its formula, and its independence of neighbours."""

import pytest
import torch

from gpu_pool.kernels.rms_norm import rms_norm
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (3, 257), (65, 1024)])
def test_rows_are_divided_by_their_root_mean_square(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = torch.randn(shape).mul_(3).to(dtype)
    weight = torch.rand(shape[1]).add_(0.5).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(rms_norm(x, weight, 1e-5), expected)


def test_a_row_of_zeros_stays_zero() -> None:
    assert not rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    x, weight = torch.randn(300, 256).to(dtype), torch.rand(256).to(dtype)
    whole = rms_norm(x, weight, 1e-5)
    for count in (1, 2, 33):
        assert torch.equal(rms_norm(x[:count], weight, 1e-5), whole[:count])


def test_a_weight_of_another_size_is_refused() -> None:
    with pytest.raises(AssertionError, match="disagree on D"):
        rms_norm(torch.zeros(2, 8), torch.ones(9), 1e-6)


def test_fp32_weights_are_not_rounded_to_the_states_dtype() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 64).bfloat16(), 1 + torch.randn(64) * 1e-3
    normed = rms_norm(x, weight, 1e-6)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    assert normed.dtype == torch.bfloat16
    assert torch.equal(normed, exact.bfloat16())
    assert not torch.equal(rms_norm(x, weight.bfloat16(), 1e-6), normed)
