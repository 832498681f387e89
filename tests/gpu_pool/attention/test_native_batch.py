"""Native attention over paged memory against float64, and what may not change its bits."""

from functools import cache, partial
from random import Random

import pytest
import torch

from gpu_pool.attention.kv_cache import KvShape
from gpu_pool.attention.native_batch import create_native_batch
from gpu_pool.attention.paged import PagedStep, attend
from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.plan import KvGroupKind
from tests.gpu_pool.attention.paged_case import PagedCase, attend_in_float64, create_case
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, at_every_level, load_level, one_thread

__all__ = ["one_thread"]  # applies to every test here
create_bf16_case = partial(create_case, dtype=torch.bfloat16)
SPANS = [(0, 1), (31, 1), (37, 1), (530, 1), (0, 21), (70, 45), (200, 100)]
WINDOW, CHUNKED = Reach(KvGroupKind.SLIDING_WINDOW, 24), Reach(KvGroupKind.CHUNKED, 40)
SINKS = torch.linspace(-2, 3, 6)
FORMS = {
    "plain": PLAIN,
    "scaled": AttentionForm(scale=0.31),
    "capped": AttentionForm(softcap=2.0),
    "sinks": AttentionForm(sinks_N=SINKS),
}


def run(
    level: str,
    case: PagedCase,
    reach: Reach = FULL_REACH,
    form: AttentionForm = PLAIN,
    layer: int = 0,
) -> torch.Tensor:
    """One layer's attention over the case, whose own keys and values go in first."""
    kernels = load_level(level)
    case.cache.kernels = kernels
    step = PagedStep(case.cache, create_native_batch(case.spans, case.cache, kernels, reach))
    return attend(layer, case.q_TNH, case.kv_TE, step, form)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Weights and results are rounded to bf16, at some levels, and nothing else is."""
    bound = 2**-8 * (1 + expected.abs().max().item())
    assert (actual.double() - expected).abs().max().item() <= bound


@cache
def create_mixed() -> PagedCase:
    """Single tokens and chunks, contexts short and long; attending writes what is there anyway."""
    shape = KvShape(num_layers=2, block_size=16, num_kv_heads=2, head_dim=32)
    return create_bf16_case(SPANS, num_heads=6, shape=shape, layer=1)


@cache
def expect_mixed(reach: Reach, form: str) -> torch.Tensor:
    """What float64 makes of it."""
    return attend_in_float64(create_mixed(), reach, FORMS[form])


@at_every_level
@pytest.mark.parametrize("reach", [FULL_REACH, WINDOW, CHUNKED], ids=lambda reach: reach.kind)
@pytest.mark.parametrize("form", FORMS)
def test_a_mixed_batch_is_attended_exactly(level: str, reach: Reach, form: str) -> None:
    actual = run(level, create_mixed(), reach, FORMS[form], layer=1)
    assert_near(actual, expect_mixed(reach, form))


@at_every_level
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 8, 16), (4, 4, 20, 32), (10, 2, 80, 64), (12, 1, 128, 16), (2, 1, 264, 32)],
)
def test_awkward_shapes_are_attended_exactly(
    level: str, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int
) -> None:
    shape = KvShape(1, block_size, num_kv_heads, head_dim)
    case = create_bf16_case(SPANS[2:6], num_heads=num_heads, shape=shape)
    assert_near(run(level, case), attend_in_float64(case))


@at_every_level
@pytest.mark.parametrize("seed", range(12))
def test_random_batches_are_attended_exactly(level: str, seed: int) -> None:
    draw = Random(seed)
    torch.manual_seed(seed)
    num_parts, num_kv_heads = draw.choice([(1, 1), (2, draw.randint(1, 4))])
    shape = KvShape(1, draw.choice([16, 32]), num_kv_heads, 8 * draw.randint(1, 20), num_parts)
    num_tokens = [draw.choice([1, draw.randint(2, 150)]) for _ in range(4)]
    spans = [(draw.randint(0, 200), count) for count in sorted(num_tokens)]
    num_heads = num_kv_heads * draw.randint(1, 9)
    value_dim = None if num_parts == 2 else draw.randint(1, shape.head_dim)
    form = AttentionForm(
        value_dim=value_dim,
        softcap=draw.choice([None, 3.0]),
        sinks_N=draw.choice([None, torch.randn(num_heads)]),
    )
    reach = draw.choice([FULL_REACH, WINDOW, CHUNKED])
    case = create_bf16_case(spans, num_heads=num_heads, shape=shape)
    assert_near(run(level, case, reach, form), attend_in_float64(case, reach, form))


@at_every_level
@pytest.mark.parametrize(("head_dim", "value_dim"), [(36, 24), (96, 64)])
def test_values_may_be_a_part_of_the_keys(level: str, head_dim: int, value_dim: int) -> None:
    form = AttentionForm(scale=0.2, value_dim=value_dim)
    shape = KvShape(1, 16, 1, head_dim, num_parts=1)
    case = create_bf16_case(SPANS[1:6], num_heads=5, shape=shape)
    assert_near(run(level, case, form=form), attend_in_float64(case, form=form))


@at_every_level
@pytest.mark.parametrize("reach", [FULL_REACH, WINDOW, CHUNKED], ids=lambda reach: reach.kind)
def test_neither_chunks_nor_neighbours_change_a_bit(level: str, reach: Reach) -> None:
    shape = KvShape(1, 16, 2, 32)
    torch.manual_seed(3)
    whole = create_bf16_case([(0, 150)], num_heads=6, shape=shape)
    expected = run(level, whole, reach)
    for cuts in ([16] * 7 + [1] * 38, [7, 16, 33, 64, 30], [149, 1]):
        torch.manual_seed(3)
        case = create_bf16_case([(0, 150)], num_heads=6, shape=shape)
        start = 0
        for num_tokens in cuts:
            rows = slice(start, start + num_tokens)
            span = type(case.spans[0])(start, num_tokens, case.spans[0].block_table)
            part = PagedCase(case.cache, [span], [case.histories[0][: span.end]], case.q_TNH[rows])
            assert torch.equal(run(level, part, reach), expected[rows])
            start += num_tokens


@at_every_level
@pytest.mark.parametrize("head_dim", [16, 32])
def test_what_no_row_sees_is_never_read(level: str, head_dim: int) -> None:
    shape = KvShape(1, 16, 1, head_dim)
    torch.manual_seed(5)
    case = create_bf16_case([(40, 1), (100, 3)], num_heads=2, shape=shape)
    expected = attend_in_float64(case, WINDOW)
    filled = case.cache.blocks.clone()
    case.cache.blocks.fill_(float("nan"))
    for span in case.spans:
        for position in range(span.start - WINDOW.num_tokens + 1, span.end):  # type: ignore[operator]
            block, offset = divmod(position, 16)
            where = (int(span.block_table[block]), 0, offset)
            case.cache.blocks[where] = filled[where]
    assert_near(run(level, case, WINDOW), expected)
    # The control: without the window the garbage is seen.
    assert run(level, case).isnan().any()


@at_every_level
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["q", "k", "v", "overflow"])
def test_what_is_no_number_is_none_in_the_end(level: str, what: str, form: str) -> None:
    torch.manual_seed(7)
    case = create_bf16_case([(40, 1), (30, 20)], num_heads=6, shape=KvShape(1, 16, 2, 32))
    calm = run(level, case, form=FORMS[form])
    assert calm.isfinite().all()
    if what == "overflow":
        case.q_TNH[0] = case.histories[0][-1] = 1e30
    elif what == "q":
        case.q_TNH[0, :, 5] = float("nan")
    else:  # of the token itself, which it always sees
        case.histories[0][-1, "kv".index(what), :, 5] = float("nan")
    garbled = run(level, case, form=FORMS[form])
    is_bounded = what == "overflow" and form == "capped"  # it is the cap then
    assert (
        garbled[0].isfinite().all() if is_bounded else garbled[0].isnan().flatten(1).any(-1).all()
    )
    assert torch.equal(garbled[1:], calm[1:])


@pytest.mark.skipif(not NAMES, reason="native kernels are for x86-64 Linux")
def test_several_threads_give_the_same_bits_as_one() -> None:
    before, outputs = torch.get_num_threads(), []
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            torch.manual_seed(6)
            case = create_bf16_case(SPANS, num_heads=6, shape=KvShape(1, 16, 2, 32))
            outputs.append(run(NAMES[0], case))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*outputs)
