"""A mixed batch as the CPU's own kernels read it: tables and lengths, no masks, nothing gathered.

The counterpart of `batch` where `KvCache.kernels` is set; one call per layer writes the step's keys
and values and attends, for single tokens and chunks alike. Must not know sequences or plans.
Shapes: T tokens of the step, B sequences, C blocks of the longest table, N query heads, H head
dim, E elements of a slot. Read next: `gpu_pool/kernels/cpu/attention.cpp`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, locate_tokens
from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.attention.reach import Reach
from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.cpu.calls import AttentionCall
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.plan import KvGroupKind

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """A whole step of one KV group."""

    kernels: NativeKernels
    call: AttentionCall
    """What holds for all layers is filled in; a layer fills in the rest."""
    slot_ids: Tensor
    """`[layers, T]`, where each token's keys and values go."""
    tables_BC: Int32Array
    starts_B: Int32Array
    """First row of each sequence, and the end of the last."""
    lengths_B: Int32Array


def create_native_batch(
    spans: Sequence[Span], cache: KvCache, kernels: NativeKernels, reach: Reach
) -> NativeBatch:
    """The batch of `spans`, in their order."""
    lengths_B = np.array([span.end for span in spans], dtype=np.int32)
    starts_B = np.cumsum([0, *[span.num_tokens for span in spans]], dtype=np.int32)
    num_blocks = -(-int(lengths_B.max()) // cache.shape.block_size)
    tables_BC = np.stack([span.block_table[:num_blocks] for span in spans]).astype(np.int32)
    call = AttentionCall(
        slots=cache.blocks.data_ptr(),
        tables=tables_BC.ctypes.data,
        starts=starts_B.ctypes.data,
        lengths=lengths_B.ctypes.data,
        table_stride=num_blocks,
        num_sequences=len(spans),
        num_kv_heads=cache.shape.num_kv_heads,
        head_dim=cache.shape.head_dim,
        slot_elements=cache.shape.slot_elements,
        num_layers=cache.shape.num_layers,
        block_size=cache.shape.block_size,
        window=reach.num_tokens or 0,
        is_chunked=reach.kind is KvGroupKind.CHUNKED,
    )
    return NativeBatch(kernels, call, locate_tokens(spans, cache), tables_BC, starts_B, lengths_B)


def attend_natively(
    layer: int,
    q_TNH: Tensor,
    kv_TE: Tensor,
    cache: KvCache,
    batch: NativeBatch,
    form: AttentionForm,
) -> Tensor:
    """The mixed values `[T, N, H]` of all tokens; `kv_TE` is in the cache afterwards."""
    num_tokens, num_heads, head_dim = q_TNH.shape
    value_dim = form.value_dim or head_dim
    if q_TNH.stride(2) != 1 or q_TNH.stride(1) != head_dim:
        q_TNH = q_TNH.contiguous()
    assert (num_tokens, head_dim) == (batch.starts_B[-1], cache.shape.head_dim), "q does not fit"
    assert kv_TE.shape == (num_tokens, cache.shape.slot_elements), "kv_TE does not fit the slots"
    assert kv_TE.stride(1) == 1, "the elements of a row of kv_TE lie apart"
    assert {q_TNH.dtype, kv_TE.dtype, cache.blocks.dtype} == {torch.bfloat16}, "not all in bf16"
    out_TNH = torch.empty((num_tokens, num_heads, value_dim), dtype=q_TNH.dtype)
    call = batch.call
    call.q, call.q_stride = q_TNH.data_ptr(), q_TNH.stride(0)
    call.kv, call.kv_stride = kv_TE.data_ptr(), kv_TE.stride(0)
    call.slot_ids = batch.slot_ids[layer].data_ptr()
    call.out = out_TNH.data_ptr()
    call.sinks = None if form.sinks_N is None else form.sinks_N.data_ptr()
    call.num_heads, call.value_dim, call.layer = num_heads, value_dim, layer
    call.scale, call.soft_cap = form.scale or head_dim**-0.5, form.softcap or 0.0
    batch.kernels.attend(call)
    return out_TNH
