"""Single tokens over long contexts: the kernel against the reference, splits and neighbours."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.fp8_slots import Fp8Slots, narrow_slots
from gpu_pool.kernels.gpu_traits import get_traits
from gpu_pool.kernels.paged_attention import PagedLayout
from gpu_pool.kernels.split_decode import (
    choose_split_decode_launch,
    split_decode_reference,
    split_decode_triton,
)
from gpu_pool.kernels.split_plan import MIN_SPLIT_KEYS, plan_splits_reference
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton

BLOCK_SIZE = 32
LENGTHS = [1, MIN_SPLIT_KEYS, MIN_SPLIT_KEYS + 1, 3 * MIN_SPLIT_KEYS - 5]
Step = tuple[Tensor, Tensor, Tensor, Tensor]


def create_step(heads: tuple[int, int, int], dtype: torch.dtype) -> Step:
    """Queries, KV memory, block tables and lengths of one sequence per entry of `LENGTHS`."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(11)
    num_blocks = -(-max(LENGTHS) // BLOCK_SIZE)
    total = num_blocks * len(LENGTHS)
    tables = torch.randperm(total, generator=generator).view(len(LENGTHS), num_blocks)
    slots = torch.randn(total * BLOCK_SIZE, 2 * num_kv_heads * head_dim, generator=generator)
    q = torch.randn(len(LENGTHS), num_heads, head_dim, generator=generator)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=DEVICE)
    return (
        q.to(DEVICE, dtype),
        slots.to(DEVICE, dtype),
        tables.to(DEVICE, torch.int32),
        lengths,
    )


def create_layout(
    heads: tuple[int, int, int], window: int = 0, is_chunked: bool = False, **form: float | Tensor
) -> PagedLayout:
    """The only layer."""
    return PagedLayout(0, 1, BLOCK_SIZE, heads[1], heads[2] ** -0.5, window, is_chunked, **form)  # pyright: ignore[reportArgumentType]


def mix(step: Step, layout: PagedLayout, max_length: int = 1024) -> Tensor:
    """What the kernels make of a step."""
    q, slots, tables, lengths = step
    plan = plan_splits_reference(lengths, max_length, layout.window, layout.is_chunked)
    return split_decode_triton(q, slots, tables, plan, layout)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(
    ("window", "is_chunked", "soft_cap"),
    [(0, False, 0.0), (600, False, 0.0), (40, False, 4.0), (300, True, 0.0)],
)
@pytest.mark.parametrize("heads", [(8, 2, 64), (5, 5, 24), (20, 1, 16)])
def test_the_kernel_agrees_with_the_reference(
    heads: tuple[int, int, int], window: int, is_chunked: bool, soft_cap: float, dtype: torch.dtype
) -> None:
    step = create_step(heads, dtype)
    sinks = torch.randn(heads[0], device=DEVICE)
    layout = create_layout(heads, window, is_chunked, soft_cap=soft_cap, sinks_N=sinks)
    expected = split_decode_reference(*step, layout)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(mix(step, layout), expected, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("heads", [(8, 2, 64), (5, 5, 24)])
def test_slots_of_eight_bits_are_widened_as_the_reference_does(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    q, slots, tables, lengths = create_step(heads, dtype)
    fp8 = Fp8Slots(slots.shape[1], 2 * heads[1])
    step = (q, narrow_slots(slots, fp8), tables, lengths)
    layout = replace(create_layout(heads, 300), fp8=fp8)
    expected = split_decode_reference(*step, layout)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(mix(step, layout), expected, rtol=tolerance, atol=tolerance)
    whole = split_decode_reference(q, slots, tables, lengths, replace(layout, fp8=None))
    lost = ((expected - whole).norm() / whole.norm()).item()
    assert 1e-3 < lost < 0.1


@needs_triton
def test_a_sequence_depends_neither_on_neighbours_nor_on_the_room_for_items() -> None:
    heads = (4, 2, 32)
    q, slots, tables, lengths = create_step(heads, torch.float32)
    layout = create_layout(heads)
    whole = mix((q, slots, tables, lengths), layout, 8192)
    for index, length in enumerate(LENGTHS):
        part = slice(index, index + 1)
        alone = mix((q[part], slots, tables[part], lengths[part]), layout, length)
        assert torch.equal(alone, whole[part])


@needs_triton
def test_what_no_token_sees_is_never_read() -> None:
    heads = (4, 2, 32)
    q, slots, tables, lengths = create_step(heads, torch.float32)
    layout = create_layout(heads, window=100)
    step = (q[3:], slots, tables[3:], lengths[3:])
    expected = mix(step, layout)
    rows = slots.view(-1, BLOCK_SIZE, 128)
    end = int(lengths[3])
    positions = torch.arange(end - 100, end)
    is_seen = torch.zeros(rows.shape[:2], dtype=torch.bool)
    is_seen[tables[3].long()[positions // BLOCK_SIZE], positions % BLOCK_SIZE] = True
    rows[~is_seen] = torch.nan
    assert torch.equal(mix(step, layout), expected)
    rows[is_seen] += 1  # the control
    assert not torch.isclose(mix(step, layout), expected).any()


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 120])
@pytest.mark.parametrize("row", [(64, 2), (128, 2), (256, 2), (128, 4), (256, 4)])
def test_two_stretches_of_keys_fit_every_gpu_s_shared_memory(
    capability: int, row: tuple[int, int]
) -> None:
    traits = get_traits(capability, 100)
    launch = choose_split_decode_launch(traits, 16, *row)
    assert 2 * launch.keys * 2 * row[0] * row[1] <= traits.shared_bytes
    assert launch.num_programs % 100 == 0
