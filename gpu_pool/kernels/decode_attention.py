"""Paged attention of single tokens: softmax(q · Kᵀ / √H) · V over each sequence's blocks.

`attention_form` says how families deviate from that.

The query heads that share a KV head are folded into one query of that many rows, so that keys and
values are read once instead of being repeated (four times faster on CPU).
Rows are padded to a multiple of four: with fewer, fp32 products add in another order than those of
`prefill_attention`, and a sequence computed again after preemption could differ in its last bit.
Shapes: B sequences, N query heads, K KV heads, G = N / K, H head dim, C blocks (padded),
L = C · block size, X rows of KV memory: one per block and layer (E = block size · 2 · K · H, or
block size · K · H where values are a part of the keys).
Takes bf16 or fp32, fp32 accumulation.
"""

from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.attention_form import (
    PLAIN,
    AttentionForm,
    mix_values,
    split_kv,
    trim_values,
)
from gpu_pool.kernels.fp8_slots import Fp8Slots, read_rows

ROW_MULTIPLE = 4


def decode_attention_reference(
    q_BNH: Tensor,
    rows_XE: Tensor,
    row_ids_BC: Tensor,
    mask_B11L: Tensor,
    num_kv_heads: int,
    form: AttentionForm = PLAIN,
    fp8: Fp8Slots | None = None,
) -> Tensor:
    """The mixed values `[B, N, H]`, in plain torch: gather the blocks, then one sdpa."""
    batch_size, num_heads, head_dim = q_BNH.shape
    num_shared = num_heads // num_kv_heads
    rows = read_rows(rows_XE.index_select(0, row_ids_BC.flatten()), fp8, q_BNH.dtype)
    k_BLKH, v_BLKH = split_kv(rows, batch_size, num_kv_heads, head_dim, form)
    q_BKGH = q_BNH.reshape(batch_size, num_kv_heads, num_shared, head_dim)
    sinks_KG = None if form.sinks_N is None else form.sinks_N.view(num_kv_heads, num_shared)
    padding = -num_shared % ROW_MULTIPLE
    if padding:
        q_BKGH = functional.pad(q_BKGH, (0, 0, 0, padding))
        sinks_KG = None if sinks_KG is None else functional.pad(sinks_KG, (0, padding))
    out_BKGH = mix_values(
        q_BKGH, k_BLKH.transpose(1, 2), v_BLKH.transpose(1, 2), mask_B11L, form, sinks_KG
    )
    mixed_BKGH = trim_values(out_BKGH[:, :, :num_shared], form).contiguous()
    return mixed_BKGH.view(batch_size, num_heads, -1)


def decode_attention(
    q_BNH: Tensor,
    rows_XE: Tensor,
    row_ids_BC: Tensor,
    mask_B11L: Tensor,
    num_kv_heads: int,
    form: AttentionForm = PLAIN,
    fp8: Fp8Slots | None = None,
) -> Tensor:
    """The mixed values `[B, N, H]`; `mask_B11L` is 0 where a token is seen and -inf elsewhere."""
    batch_size, num_heads, _ = q_BNH.shape
    assert num_heads % num_kv_heads == 0, "N is no multiple of K"
    assert row_ids_BC.shape[0] == mask_B11L.shape[0] == batch_size, "arguments disagree on B"
    return decode_attention_reference(
        q_BNH, rows_XE, row_ids_BC, mask_B11L, num_kv_heads, form, fp8
    )
