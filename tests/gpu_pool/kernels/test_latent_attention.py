"""Mixed batches over latents: the kernel against the reference, the reference against sdpa."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from gpu_pool.kernels.fp8_slots import Fp8Slots, narrow_slots
from gpu_pool.kernels.gpu_traits import get_traits
from gpu_pool.kernels.latent_attention import (
    choose_latent_launch,
    latent_attention,
    latent_attention_reference,
    latent_attention_triton,
)
from gpu_pool.kernels.latent_decode import latent_decode_triton
from gpu_pool.kernels.split_plan import plan_splits_reference
from tests.gpu_pool.kernels.latent_case import (
    BLOCK_SIZE,
    LAYER,
    NUM_LAYERS,
    SIZES,
    create_latent_layout,
    create_latents,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(("window", "is_chunked"), [(0, False), (20, False), (32, True)])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernel_agrees_with_the_reference(
    sizes: tuple[int, int, int], window: int, is_chunked: bool, dtype: torch.dtype
) -> None:
    q, slots, batch = create_latents([5, 18, 1], [37, 18, 50], sizes, dtype)
    layout = create_latent_layout(window, is_chunked)
    expected = latent_attention_reference(q, slots, batch, layout, sizes[1])
    actual = latent_attention_triton(q, slots, batch, layout, sizes[1])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
def test_slots_of_eight_bits_are_widened_as_the_reference_does(dtype: torch.dtype) -> None:
    q, slots, batch = create_latents([5, 18, 1], [37, 18, 50], (5, 24, 8), dtype)
    fp8 = Fp8Slots(32, 1)
    layout = replace(create_latent_layout(), fp8=fp8)
    narrow = narrow_slots(slots, fp8)
    expected = latent_attention_reference(q, narrow, batch, layout, 24)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    actual = latent_attention_triton(q, narrow, batch, layout, 24)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    last = batch.starts_B[1:] - 1
    single = q[last.long()].contiguous()
    plan = plan_splits_reference(batch.lengths_B, 64, 0, False)
    decoded = latent_decode_triton(single, narrow, batch.tables_BC, plan, layout, 24)
    torch.testing.assert_close(decoded, expected[last.long()], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_new", [1, 7, 40])
def test_the_reference_is_causal_attention_whose_values_lead_the_keys(num_new: int) -> None:
    q, slots, batch = create_latents([num_new], [40], (4, 24, 8), torch.float32)
    mixed = latent_attention(q, slots, batch, create_latent_layout(), 24)
    latents = slots.view(-1, NUM_LAYERS, BLOCK_SIZE, 32)[batch.tables_BC[0].long(), LAYER]
    k = latents.reshape(-1, 32)[:40].expand(4, 40, 32)
    is_seen = torch.ones(40, 40, dtype=torch.bool, device=DEVICE).tril()[40 - num_new :]
    expected = functional.scaled_dot_product_attention(
        q.transpose(0, 1), k, k[..., :24], attn_mask=is_seen, scale=0.2
    )
    torch.testing.assert_close(mixed, expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


@needs_triton
def test_latents_outside_the_context_are_never_read() -> None:
    q, slots, batch = create_latents([3, 1], [20, 33], (4, 32, 16), torch.float32)
    layout = create_latent_layout()
    expected = latent_attention_triton(q, slots, batch, layout, 32)
    rows = slots.view(-1, NUM_LAYERS, BLOCK_SIZE, 48)
    rows[:, 0] = torch.nan  # another layer
    rows[batch.tables_BC[0, 1].long(), LAYER, 4:] = torch.nan  # behind the first one's end
    rows[batch.tables_BC[0, 2].long()] = torch.nan
    rows[batch.tables_BC[1, 2].long(), LAYER, 1:] = torch.nan
    assert torch.equal(latent_attention_triton(q, slots, batch, layout, 32), expected)
    rows[batch.tables_BC[1, 2].long(), LAYER, 0] = torch.nan  # the control: inside
    assert latent_attention_triton(q, slots, batch, layout, 32).isnan().any()


def test_what_latents_do_not_have_is_refused() -> None:
    q, slots, batch = create_latents([1], [5], (4, 32, 16), torch.float32)
    with pytest.raises(AssertionError, match="no part"):
        latent_attention(q, slots, batch, create_latent_layout(), 48)


@pytest.mark.parametrize("capability", [80, 86, 89, 90])
@pytest.mark.parametrize("num_rows", [1, 16, 40, 128])
def test_a_tile_holds_rows_that_are_there(capability: int, num_rows: int) -> None:
    launch = choose_latent_launch(get_traits(capability, 1), num_rows, 512, 2)
    assert 16 <= launch.rows <= max(16, 2 * num_rows)
