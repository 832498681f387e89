"""Masks: every bit, no other row, nothing behind the vocabulary."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.token_mask import token_mask, token_mask_reference, token_mask_triton
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton


def create_words(num_rows: int, vocab_size: int) -> Tensor:
    """Random bits, the highest of words among them."""
    generator = torch.Generator().manual_seed(vocab_size)
    size = (num_rows, -(-vocab_size // 32))
    words = torch.randint(-(2**31), 2**31, size, generator=generator)
    return words.to(torch.int32).to(DEVICE)


def is_allowed(words_W: Tensor, token_id: int) -> bool:
    """The bit of a token, by plain integers."""
    return bool((int(words_W[token_id // 32]) & 0xFFFF_FFFF) >> (token_id % 32) & 1)


@needs_triton
@pytest.mark.parametrize("vocab_size", [5, 32, 2048, 4999])
def test_kernel_and_reference_forbid_what_has_no_bit(vocab_size: int) -> None:
    rows = torch.tensor([3, 0], device=DEVICE)
    words = create_words(2, vocab_size)
    before = torch.randn(5, vocab_size + 3, device=DEVICE)
    actual, expected = before.clone(), before.clone()
    token_mask_triton(actual[:, :vocab_size], rows, words)
    token_mask_reference(expected[:, :vocab_size], rows, words)
    assert torch.equal(actual, expected)
    for place, row in enumerate((3, 0)):
        kept = (actual[row, :vocab_size] == before[row, :vocab_size]).tolist()
        assert kept == [is_allowed(words[place], i) for i in range(vocab_size)]
    assert torch.equal(actual[[1, 2, 4]], before[[1, 2, 4]])
    assert torch.equal(actual[:, vocab_size:], before[:, vocab_size:])


def test_a_mask_that_is_too_short_is_refused() -> None:
    with pytest.raises(AssertionError, match="does not fit"):
        token_mask(torch.zeros(1, 33), torch.tensor([0]), torch.zeros(1, 1, dtype=torch.int32))
