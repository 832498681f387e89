"""Texts attend to themselves, whatever their neighbours' lengths."""

import pytest
import torch

from gpu_pool.kernels.encoder_attention import encoder_attention
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[5], [3, 3, 3], [1, 40, 40, 7, 40]])
def test_every_token_attends_to_its_own_text(lengths: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 2, 16).to(dtype)
    expected: list[torch.Tensor] = []
    for part in qkv.double().split(lengths):
        q, k, v = part.unbind(1)
        weights = (torch.einsum("tnh,lnh->ntl", q, k) / 4).softmax(-1)
        expected.append(torch.einsum("ntl,lnh->tnh", weights, v))
    assert_close(encoder_attention(qkv, lengths), torch.cat(expected))


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AssertionError, match="lengths"):
        encoder_attention(torch.zeros(5, 3, 1, 8), [2, 2])
