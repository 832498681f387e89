"""Single tokens over latents: the kernel against the references, splits and neighbours."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.latent_attention import latent_attention_reference
from gpu_pool.kernels.latent_decode import latent_decode_reference, latent_decode_triton
from gpu_pool.kernels.paged_attention import PagedLayout
from gpu_pool.kernels.split_plan import MIN_SPLIT_KEYS, plan_splits_reference
from tests.gpu_pool.kernels.latent_case import SIZES, create_latent_layout, create_latents
from tests.gpu_pool.kernels.triton_cases import PRODUCT_DTYPES, needs_triton

LENGTHS = [1, MIN_SPLIT_KEYS, MIN_SPLIT_KEYS + 1, 3 * MIN_SPLIT_KEYS - 5]


def mix(
    q: Tensor, slots: Tensor, tables: Tensor, lengths: Tensor, layout: PagedLayout, value_dim: int
) -> Tensor:
    """What the kernels make of single tokens."""
    plan = plan_splits_reference(lengths, 1024, layout.window, layout.is_chunked)
    return latent_decode_triton(q, slots, tables, plan, layout, value_dim)


@needs_triton
@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(("window", "is_chunked"), [(0, False), (300, False), (300, True)])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernel_agrees_with_the_reference(
    sizes: tuple[int, int, int], window: int, is_chunked: bool, dtype: torch.dtype
) -> None:
    q, slots, batch = create_latents([1] * len(LENGTHS), LENGTHS, sizes, dtype)
    layout = create_latent_layout(window, is_chunked)
    arguments = (q, slots, batch.tables_BC, batch.lengths_B, layout, sizes[1])
    expected = latent_decode_reference(*arguments)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(mix(*arguments), expected, rtol=tolerance, atol=tolerance)
    tiled = latent_attention_reference(q, slots, batch, layout, sizes[1])
    torch.testing.assert_close(tiled, expected, rtol=tolerance, atol=tolerance)


@needs_triton
def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    sizes = (20, 32, 16)
    q, slots, batch = create_latents([1] * len(LENGTHS), LENGTHS, sizes, torch.float32)
    layout = create_latent_layout()
    whole = mix(q, slots, batch.tables_BC, batch.lengths_B, layout, 32)
    for index in range(len(LENGTHS)):
        part = slice(index, index + 1)
        alone = mix(q[part], slots, batch.tables_BC[part], batch.lengths_B[part], layout, 32)
        assert torch.equal(alone, whole[part])
