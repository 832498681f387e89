"""Mixed batches against softmax attention in float64."""

import pytest
import torch

from gpu_pool.attention.batch import create_attention_batch, order_key
from gpu_pool.attention.kv_cache import KvShape
from gpu_pool.attention.paged import PagedStep, attend
from gpu_pool.attention.reach import Reach
from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.plan import KvGroupKind
from tests.gpu_pool.attention.paged_case import attend_in_float64, create_case
from tests.gpu_pool.kernels.tolerances import DTYPES, assert_close

DECODES = [(0, 1), (62, 1), (63, 1), (64, 1), (200, 1), (701, 1)]
CHUNKS = [(0, 2), (0, 63), (5, 300), (256, 3), (300, 257)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(4, 2, 32), (3, 3, 16), (8, 1, 8), (6, 2, 24)]
)
@pytest.mark.parametrize("spans", [DECODES, CHUNKS, DECODES + CHUNKS])
def test_every_token_attends_to_its_own_history_only(
    spans: list[tuple[int, int]],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(len(spans))
    shape = KvShape(3, block_size, num_kv_heads, head_dim)
    case = create_case(spans, num_heads=num_heads, shape=shape, layer=1, dtype=dtype)
    assert sorted(case.spans, key=order_key) == case.spans
    with torch.inference_mode():
        batch = create_attention_batch(case.spans, case.cache)
        mixed = attend(1, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch))
    assert_close(mixed, attend_in_float64(case))


REACHES = [
    Reach(KvGroupKind.SLIDING_WINDOW, 1),
    Reach(KvGroupKind.SLIDING_WINDOW, 40),
    Reach(KvGroupKind.SLIDING_WINDOW, 600),
    Reach(KvGroupKind.CHUNKED, 48),
    Reach(KvGroupKind.CHUNKED, 512),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reach", REACHES)
def test_a_window_or_chunk_hides_what_lies_before_it(reach: Reach, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    spans = [*DECODES, (1022, 1), *CHUNKS, (700, 300)]
    shape = KvShape(2, 16, 2, 16)
    case = create_case(spans, num_heads=4, shape=shape, layer=1, dtype=dtype)
    with torch.inference_mode():
        batch = create_attention_batch(case.spans, case.cache, reach)
        mixed = attend(1, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch))
    expected = attend_in_float64(case, reach)
    assert_close(mixed, expected)
    assert (expected - attend_in_float64(case)).abs().max() > 0.1  # a full reach would be wrong


def test_a_window_spares_the_blocks_before_it() -> None:
    case = create_case([(1022, 1)], num_heads=4, shape=KvShape(1, 16, 2, 16))
    reach = Reach(KvGroupKind.SLIDING_WINDOW, 40)
    (group,) = create_attention_batch(case.spans, case.cache, reach).groups
    assert group.row_ids.shape == (1, 1, 512 // 16)


FORMS = [
    AttentionForm(scale=0.6),
    AttentionForm(scale=0.6, softcap=2.0),
    AttentionForm(sinks_N=torch.tensor([1.0, -2.0, 0.5, 5.0, 0.0, 0.1])),
    AttentionForm(scale=0.6, softcap=2.0, sinks_N=torch.arange(6.0)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_scores_take_the_form_a_family_asks_for(form: AttentionForm, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    case = create_case(DECODES + CHUNKS, num_heads=6, shape=KvShape(1, 16, 2, 16), dtype=dtype)
    with torch.inference_mode():
        batch = create_attention_batch(case.spans, case.cache)
        mixed = attend(0, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch), form)
    expected = attend_in_float64(case, form=form)
    assert_close(mixed, expected)
    assert (expected - attend_in_float64(case)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_may_be_a_part_of_the_keys(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape = KvShape(1, 16, 1, 24, num_parts=1)
    case = create_case(DECODES + CHUNKS, num_heads=4, shape=shape, dtype=dtype)
    form = AttentionForm(scale=0.3, value_dim=16)
    with torch.inference_mode():
        batch = create_attention_batch(case.spans, case.cache)
        mixed = attend(0, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch), form)
    assert_close(mixed, attend_in_float64(case, form=form))


def test_only_the_step_s_own_slots_of_its_own_layer_are_written() -> None:
    shape = KvShape(2, 16, 2, 8)
    case = create_case([(17, 1), (30, 5)], num_heads=4, shape=shape, layer=1)
    before = case.cache.blocks.clone()
    batch = create_attention_batch(case.spans, case.cache)
    attend(1, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch))
    changed = (case.cache.blocks != before).flatten(3).any(-1).nonzero()
    expected = {
        (int(span.block_table[position // 16]), 1, position % 16)
        for span in case.spans
        for position in range(span.start, span.end)
    }
    assert {tuple(place) for place in changed.tolist()} == expected


def test_garbage_in_blocks_of_others_does_not_reach_a_result() -> None:
    shape = KvShape(1, 16, 2, 8)
    case = create_case([(40, 1), (3, 20)], num_heads=4, shape=shape)
    own = {int(block) for span in case.spans for block in span.block_table}
    others = [block for block in range(case.cache.blocks.shape[0]) if block not in own]
    assert others
    case.cache.blocks[others] = float("nan")
    batch = create_attention_batch(case.spans, case.cache)
    mixed = attend(0, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch))
    assert_close(mixed, attend_in_float64(case))


def test_garbage_in_a_block_of_its_own_would_show_and_clearing_helps() -> None:
    """The control: masked slots are read, which is why stale blocks are cleared."""
    shape = KvShape(1, 16, 2, 8)
    for is_cleared in (False, True):
        case = create_case([(0, 1)], num_heads=4, shape=shape)
        own = case.spans[0].block_table[:1]
        case.cache.blocks[own] = float("nan")
        if is_cleared:
            case.cache.clear(torch.from_numpy(own))
        batch = create_attention_batch(case.spans, case.cache)
        mixed = attend(0, case.q_TNH, case.kv_TE, PagedStep(case.cache, batch))
        assert bool(mixed.isfinite().all()) is is_cleared
