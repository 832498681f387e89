"""The rotation against complex multiplication in float64."""

import pytest
import torch

from gpu_pool.kernels.rotary import rotary
from gpu_pool.layers.rotary_embedding import RotaryEmbedding, compute_frequencies
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "num_heads", "head_dim"), [(1, 1, 2), (5, 3, 32)])
def test_halves_turn_as_complex_numbers(
    num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    frequencies = compute_frequencies(head_dim, 10_000.0, None)
    table = RotaryEmbedding(frequencies, 64, dtype, torch.device("cpu"))
    positions = torch.randint(0, 64, (num_tokens,))
    x = torch.randn(num_tokens, num_heads, head_dim).to(dtype)
    low, high = x.double().chunk(2, -1)
    angles = positions.double()[:, None, None] * frequencies.double()
    turned = torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)
    rotary(x, *table(positions))
    assert_close(x, torch.cat((turned.real, turned.imag), -1))


def test_only_the_given_part_of_a_larger_tensor_turns() -> None:
    whole = torch.randn(4, 6, 8)
    before = whole.clone()
    table = RotaryEmbedding(compute_frequencies(8, 1e4, None), 9, whole.dtype, whole.device)
    rotary(whole[:, :4], *table(torch.tensor([1, 3, 5, 8])))
    assert torch.equal(whole[:, 4:], before[:, 4:])
    assert not torch.equal(whole[:, :4], before[:, :4])


def test_tables_of_another_size_are_refused() -> None:
    with pytest.raises(AssertionError, match="cos_TH"):
        rotary(torch.zeros(2, 1, 8), torch.zeros(3, 8), torch.zeros(3, 8))
