"""Random latents over blocks in no order, for the tests of both kernels that attend to them."""

import torch
from torch import Tensor

from gpu_pool.kernels.paged_attention import PagedBatch, PagedLayout, choose_tile_tokens, list_tiles
from tests.gpu_pool.kernels.triton_cases import DEVICE

BLOCK_SIZE = 16
NUM_LAYERS = 2
LAYER = 1
# Heads, values, and the turned part of the keys.
SIZES = [(16, 32, 16), (5, 24, 8), (40, 64, 20)]


def create_latents(
    num_new: list[int], lengths: list[int], sizes: tuple[int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, PagedBatch]:
    """Queries, KV memory full of numbers, and the batch."""
    num_heads, value_dim, rest_dim = sizes
    generator = torch.Generator().manual_seed(3)
    num_blocks = -(-max(lengths) // BLOCK_SIZE)
    total = num_blocks * len(lengths)
    tables = torch.randperm(total, generator=generator).view(len(lengths), num_blocks)
    head_dim = value_dim + rest_dim
    slots = torch.randn(total * NUM_LAYERS * BLOCK_SIZE, head_dim, generator=generator)
    q = torch.randn(sum(num_new), num_heads, head_dim, generator=generator)
    tile_tokens = choose_tile_tokens(num_heads, max(num_new))
    parts = (
        tables,
        torch.tensor([0, *num_new]).cumsum(0),
        lengths,
        *list_tiles(num_new, tile_tokens),
    )
    tensors = (torch.as_tensor(part, dtype=torch.int32, device=DEVICE) for part in parts)
    return q.to(DEVICE, dtype), slots.to(DEVICE, dtype), PagedBatch(*tensors, tile_tokens)


def create_latent_layout(window: int = 0, is_chunked: bool = False) -> PagedLayout:
    """The layout of the second of two layers."""
    return PagedLayout(LAYER, NUM_LAYERS, BLOCK_SIZE, 1, 0.2, window, is_chunked)
