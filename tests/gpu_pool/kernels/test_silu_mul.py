"""The gate against its formula."""

import pytest
import torch

from gpu_pool.kernels.silu_mul import silu_mul
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (5, 96)])
def test_the_first_half_gates_the_second(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape).mul_(4).to(dtype)
    gate, up = x.double().chunk(2, -1)
    assert_close(silu_mul(x), gate / (1 + (-gate).exp()) * up)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(AssertionError, match="halves"):
        silu_mul(torch.zeros(1, 3))
