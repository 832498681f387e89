"""Chunks: where they are cut changes nothing (values: `attention/test_paged`)."""

from itertools import pairwise

import pytest
import torch

from gpu_pool.attention.batch import Span, create_attention_batch
from gpu_pool.attention.kv_cache import KvShape
from gpu_pool.attention.paged import PagedStep, attend
from gpu_pool.kernels.prefill_attention import AttentionTile, prefill_attention
from tests.gpu_pool.attention.paged_case import create_case
from tests.gpu_pool.kernels.tolerances import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 4), (3, 3), (8, 1)])
@pytest.mark.parametrize("cuts", [[0, 1, 2, 700], [0, 33, 34, 290, 700], [0, 256, 699, 700]])
def test_a_token_does_not_depend_on_where_chunks_end(
    cuts: list[int], num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    case = create_case(
        [(0, 700)], num_heads=num_heads, shape=KvShape(1, 16, num_kv_heads, 32), dtype=dtype
    )
    table = case.spans[0].block_table
    with torch.inference_mode():
        batch = create_attention_batch(case.spans, case.cache)
        whole = attend(0, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch))
        for start, end in pairwise(cuts):
            batch = create_attention_batch([Span(start, end - start, table)], case.cache)
            part = slice(start, end)
            alone = attend(0, case.q_TNH[part], case.kv_TE[part], PagedStep(case.cache, batch))
            assert torch.equal(alone, whole[part]), (start, end)


def test_tiles_that_leave_a_gap_at_the_end_are_refused() -> None:
    tile = AttentionTile(0, 4, torch.zeros(4, 64))
    with pytest.raises(AssertionError, match="cover"):
        prefill_attention(torch.zeros(5, 2, 8), torch.zeros(4, 256), torch.arange(4), [tile], 1)
