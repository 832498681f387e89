"""Mixed batches over blocks: the kernel against the reference, the reference against plain sdpa."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.fp8_slots import Fp8Slots, narrow_slots
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    choose_tile_tokens,
    list_tiles,
    paged_attention_reference,
    paged_attention_triton,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton

BLOCK_SIZE = 16
NUM_LAYERS = 2
LAYER = 1


def create_step(
    num_new: list[int],
    lengths: list[int],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    most_rows: int = 64,
) -> tuple[Tensor, Tensor, PagedBatch]:
    """Queries, KV memory full of numbers, and a batch whose blocks lie in no order."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(7)
    num_blocks = -(-max(lengths) // BLOCK_SIZE)
    total = num_blocks * len(lengths)
    tables = torch.randperm(total, generator=generator).view(len(lengths), num_blocks)
    slots = torch.randn(
        total * NUM_LAYERS * BLOCK_SIZE, 2 * num_kv_heads * head_dim, generator=generator
    )
    q = torch.randn(sum(num_new), num_heads, head_dim, generator=generator)
    tile_tokens = choose_tile_tokens(num_heads // num_kv_heads, max(num_new), most_rows)
    sequences, firsts = list_tiles(num_new, tile_tokens)
    starts = torch.tensor([0, *num_new]).cumsum(0)
    batch = PagedBatch(
        *(
            torch.as_tensor(values, dtype=torch.int32, device=DEVICE)
            for values in (tables, starts, lengths, sequences, firsts)
        ),
        tile_tokens,
    )
    return q.to(DEVICE, dtype), slots.to(DEVICE, dtype), batch


def create_layout(heads: tuple[int, int, int], window: int, soft_cap: float) -> PagedLayout:
    """The layout of the second of two layers."""
    scale = heads[2] ** -0.5
    return PagedLayout(LAYER, NUM_LAYERS, BLOCK_SIZE, heads[1], scale, window, soft_cap=soft_cap)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (20, 0.0), (0, 5.0), (33, 3.0)])
@pytest.mark.parametrize("heads", [(8, 2, 64), (3, 1, 40), (4, 4, 128)])
def test_the_kernel_agrees_with_the_reference(
    heads: tuple[int, int, int], window: int, soft_cap: float, dtype: torch.dtype
) -> None:
    q, slots, batch = create_step([5, 70, 1, 16], [37, 70, 100, 48], heads, dtype)
    layout = create_layout(heads, window, soft_cap)
    expected = paged_attention_reference(q, slots, batch, layout)
    actual = paged_attention_triton(q, slots, batch, layout)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("window", [0, 33])
def test_tiles_as_large_as_hoppers_agree_with_the_reference(
    window: int, dtype: torch.dtype
) -> None:
    heads = (8, 2, 64)
    q, slots, batch = create_step([5, 70, 1, 16], [37, 190, 100, 48], heads, dtype, most_rows=128)
    assert batch.tile_tokens * 4 == 128
    layout = create_layout(heads, window, 0.0)
    expected = paged_attention_reference(q, slots, batch, layout)
    actual = paged_attention_triton(q, slots, batch, layout)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize("heads", [(8, 2, 64), (3, 1, 40)])
def test_slots_of_eight_bits_are_widened_as_the_reference_does(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    q, slots, batch = create_step([5, 20, 1], [37, 20, 60], heads, dtype)
    fp8 = Fp8Slots(slots.shape[1], 2 * heads[1])
    layout = replace(create_layout(heads, 33, 3.0), fp8=fp8)
    narrow = narrow_slots(slots, fp8)
    expected = paged_attention_reference(q, narrow, batch, layout)
    actual = paged_attention_triton(q, narrow, batch, layout)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_new", [1, 7, 40])
def test_the_reference_is_causal_attention_over_the_blocks_in_their_order(num_new: int) -> None:
    heads = (4, 2, 32)
    q, slots, batch = create_step([num_new], [40], heads, torch.float32)
    mixed = paged_attention_reference(q, slots, batch, create_layout(heads, 0, 0.0))
    kv = slots.view(-1, NUM_LAYERS, BLOCK_SIZE, 2, 2, 32)[batch.tables_BC[0].long(), LAYER]
    kv = kv.reshape(-1, 2, 2, 32)[:40].repeat_interleave(2, 2)
    is_seen = torch.ones(40, 40, dtype=torch.bool, device=DEVICE).tril()[40 - num_new :]
    expected = functional.scaled_dot_product_attention(
        q.transpose(0, 1), kv[:, 0].transpose(0, 1), kv[:, 1].transpose(0, 1), attn_mask=is_seen
    )
    torch.testing.assert_close(mixed, expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


@needs_triton
def test_blocks_outside_the_context_are_never_read() -> None:
    heads = (4, 2, 32)
    q, slots, batch = create_step([3, 1], [20, 33], heads, torch.float32)
    layout = create_layout(heads, 0, 0.0)
    expected = paged_attention_triton(q, slots, batch, layout)
    rows = slots.view(-1, NUM_LAYERS, BLOCK_SIZE, 128)
    rows[:, 0] = torch.nan  # another layer
    rows[batch.tables_BC[0, 1].long(), LAYER, 4:] = torch.nan  # behind the first one's end
    rows[batch.tables_BC[0, 2].long()] = torch.nan
    rows[batch.tables_BC[1, 2].long(), LAYER, 1:] = torch.nan
    assert torch.equal(paged_attention_triton(q, slots, batch, layout), expected)
    rows[batch.tables_BC[1, 2].long(), LAYER, 0] = torch.nan  # the control: inside
    assert paged_attention_triton(q, slots, batch, layout).isnan().any()


def test_tiles_cover_every_token_once() -> None:
    sequences, firsts = list_tiles([5, 1, 9], 4)
    covered = [(s, t) for s, f in zip(sequences, firsts, strict=True) for t in range(f, f + 4)]
    wanted = [(s, t) for s, n in enumerate([5, 1, 9]) for t in range(n)]
    assert sorted(set(covered) & set(wanted)) == wanted
    assert len(set(covered)) == len(covered)
