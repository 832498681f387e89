"""Paged causal attention of one sequence's chunk: as `decode_attention`, with many query tokens.

The chunk is cut into tiles, each of which sees the keys up to its own end only: that saves the
half above the diagonal and makes what a token attends to a function of its position, not of where
the scheduler ended the chunk. Tiles are padded to a multiple of four rows (see `decode_attention`).
Shapes: T tokens of the chunk, N query heads, K KV heads, G = N / K, H head dim, C blocks, L tokens
that a tile sees; X and E as in `decode_attention`. Takes bf16 or fp32, fp32 accumulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.attention_form import (
    PLAIN,
    AttentionForm,
    mix_values,
    split_kv,
    trim_values,
)
from gpu_pool.kernels.decode_attention import ROW_MULTIPLE
from gpu_pool.kernels.fp8_slots import Fp8Slots, read_rows


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Query tokens `first` to `end` of a chunk. `mask_TL`: 0 where seen, -inf elsewhere."""

    first: int
    end: int
    mask_TL: Tensor
    first_key: int = 0
    """The gathered key that the mask begins at."""


def prefill_attention_reference(
    q_TNH: Tensor,
    rows_XE: Tensor,
    row_ids_C: Tensor,
    tiles: Sequence[AttentionTile],
    num_kv_heads: int,
    form: AttentionForm = PLAIN,
    fp8: Fp8Slots | None = None,
) -> Tensor:
    """The mixed values `[T, N, H]`, in plain torch: gather the blocks, then one sdpa per tile."""
    num_tokens, num_heads, head_dim = q_TNH.shape
    num_shared = num_heads // num_kv_heads
    rows = read_rows(rows_XE.index_select(0, row_ids_C), fp8, q_TNH.dtype)
    k_BLKH, v_BLKH = split_kv(rows, 1, num_kv_heads, head_dim, form)
    k_KLH, v_KLH = k_BLKH[0].transpose(0, 1), v_BLKH[0].transpose(0, 1)
    q_KGTH = q_TNH.reshape(num_tokens, num_kv_heads, num_shared, head_dim).permute(1, 2, 0, 3)
    sinks_KG1 = None if form.sinks_N is None else form.sinks_N.view(num_kv_heads, num_shared, 1)
    value_dim = form.value_dim or head_dim
    out_TNH = q_TNH.new_empty(num_tokens, num_heads, value_dim)
    for tile in tiles:
        num_rows, num_seen = tile.mask_TL.shape
        padding = num_rows - (tile.end - tile.first)
        part_KGTH = q_KGTH[:, :, tile.first : tile.end]
        if padding:
            part_KGTH = functional.pad(part_KGTH, (0, 0, 0, padding))
        shape = (num_kv_heads, num_shared, num_seen, head_dim)
        keys = slice(tile.first_key, tile.first_key + num_seen)
        mixed_KGTH = mix_values(
            part_KGTH,
            k_KLH[:, None, keys].expand(shape),
            v_KLH[:, None, keys].expand(shape),
            tile.mask_TL,
            form,
            sinks_KG1,
        )
        mixed_KGTH = trim_values(mixed_KGTH[:, :, : tile.end - tile.first], form)
        mixed_TKGH = mixed_KGTH.permute(2, 0, 1, 3)
        out_TNH[tile.first : tile.end].view(mixed_TKGH.shape).copy_(mixed_TKGH)
    return out_TNH


def prefill_attention(
    q_TNH: Tensor,
    rows_XE: Tensor,
    row_ids_C: Tensor,
    tiles: Sequence[AttentionTile],
    num_kv_heads: int,
    form: AttentionForm = PLAIN,
    fp8: Fp8Slots | None = None,
) -> Tensor:
    """The mixed values `[T, N, H]` of one chunk; `tiles` cover it in order."""
    num_tokens, num_heads, _ = q_TNH.shape
    assert num_heads % num_kv_heads == 0, "N is no multiple of K"
    assert (tiles[0].first, tiles[-1].end) == (0, num_tokens), "tiles do not cover the chunk"
    assert all(tile.mask_TL.shape[0] % ROW_MULTIPLE == 0 for tile in tiles), "tile rows not padded"
    return prefill_attention_reference(q_TNH, rows_XE, row_ids_C, tiles, num_kv_heads, form, fp8)
