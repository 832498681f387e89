"""The norm of each head, in place."""

import pytest
import torch

from gpu_pool.kernels.head_norm import head_norm
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "num_heads", "head_dim"), [(1, 3, 8), (33, 6, 128)])
def test_heads_are_normed_each_by_itself_where_they_lie(
    num_tokens: int,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
) -> None:
    if dtype == torch.float32:
        weight_dtype = dtype
    torch.manual_seed(0)
    whole = torch.randn(num_tokens, num_heads + 2, head_dim).to(dtype)
    weights = torch.randn(num_heads, head_dim).to(weight_dtype)
    before = whole.double()
    head_norm(whole[:, :num_heads], weights, 1e-3)
    heads = before[:, :num_heads]
    rms = (heads.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    assert_close(whole[:, :num_heads], heads / rms * weights.double())
    assert torch.equal(whole[:, num_heads:].double(), before[:, num_heads:])


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(AssertionError, match="disagree"):
        head_norm(torch.zeros(1, 2, 4), torch.zeros(3, 4), 1e-6)
