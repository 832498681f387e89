"""Single tokens: folding and independence of neighbours (values: `attention/test_paged`)."""

import pytest
import torch

from gpu_pool.kernels.decode_attention import decode_attention
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close


def attend(
    batch_size: int, num_heads: int, num_kv_heads: int, length: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Arguments over one row of memory per block of 16 tokens, all different."""
    head_dim = 32
    rows = torch.randn(batch_size * length // 16, 16 * 2 * num_kv_heads * head_dim).to(dtype)
    ids = torch.randperm(rows.shape[0]).view(batch_size, -1)
    lengths = torch.randint(1, length + 1, (batch_size, 1))
    mask = torch.zeros(batch_size, length, dtype=dtype)
    mask.masked_fill_(torch.arange(length) >= lengths, float("-inf"))
    q = torch.randn(batch_size, num_heads, head_dim).to(dtype)
    return q, rows, ids, mask[:, None, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 4), (3, 3), (8, 1)])
@pytest.mark.parametrize("length", [64, 384, 640])
def test_a_sequence_does_not_depend_on_its_neighbours(
    length: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    q, rows, ids, mask = attend(33, num_heads, num_kv_heads, length, dtype)
    with torch.inference_mode():
        whole = decode_attention(q, rows, ids, mask, num_kv_heads)
        for first, end in ((0, 1), (7, 9), (5, 33)):
            part = slice(first, end)
            alone = decode_attention(q[part], rows, ids[part], mask[part], num_kv_heads)
            assert torch.equal(alone, whole[part])


def test_one_visible_token_hands_its_value_to_every_head_of_its_group() -> None:
    q, rows, ids, mask = attend(2, 4, 2, 64, torch.float32)
    mask.fill_(float("-inf"))[..., 5] = 0
    mixed = decode_attention(q, rows, ids, mask, 2)
    values = rows.view(-1, 16, 2, 2, 32)[ids[:, 0], 5, 1]
    assert_close(mixed, values.repeat_interleave(2, 1).double())


def test_heads_that_do_not_divide_are_refused() -> None:
    q, rows, ids, mask = attend(1, 3, 3, 64, torch.float32)
    with pytest.raises(AssertionError, match="no multiple"):
        decode_attention(q, rows, ids, mask, 2)
