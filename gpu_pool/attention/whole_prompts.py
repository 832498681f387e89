"""Prompts of which nothing was cached, by torch's own attention where that is faster.

Their keys and values lie one behind the other once they are brought together, so that torch's
fused kernels (FlashAttention, cuDNN) serve them. `WHOLE_PROMPTS` says where a GPU has shown it
(`python -m benchmarks.gpu --only rates`: TFLOP/s of both by length). Prompts with a cached prefix,
shorter windows, caps, sinks, latents and slots of eight bits are our kernels' own.
Shapes: T tokens of the chunks, N query heads, K KV heads, H head dim, E = 2 · K · H.
Read next: `device_batch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.paged_attention import PagedLayout


@dataclass(frozen=True, slots=True)
class WholePromptTable:
    """From how many tokens on torch is faster, by generation (as in sm_90) and head dim."""

    least_tokens: Mapping[tuple[int, int], int]

    def prefers_torch(self, traits: GpuTraits, head_dim: int, num_tokens: Sequence[int]) -> bool:
        """True where a GPU has shown it for all of these prompts."""
        least = self.least_tokens.get((traits.capability, head_dim))
        return least is not None and min(num_tokens) >= least


WHOLE_PROMPTS: Final = WholePromptTable(MappingProxyType({(90, 128): 1024}))
"""On an H200, heads of 128: 0.65 of our kernel's time at 1,024 tokens and at 8,192, when that had a
second loop for keys that all rows see; without it tiles of 128 rows have not been measured. Beside
tiles of 64 rows it is 0.59 and 0.51.
"""


def can_be_whole(layout: PagedLayout, num_tokens: Sequence[int]) -> bool:
    """Torch's kernels compute what this layer asks for."""
    is_plain = layout.soft_cap == 0 and layout.sinks_N is None and layout.fp8 is None
    return is_plain and (layout.window == 0 or max(num_tokens) <= layout.window)


def should_be_whole(
    table: WholePromptTable, q_TNH: Tensor, layout: PagedLayout, num_tokens: Sequence[int]
) -> bool:
    """Torch's kernels compute what this layer asks for, and by `table` faster."""
    traits = find_traits(q_TNH.device)
    return table.prefers_torch(traits, q_TNH.shape[2], num_tokens) and can_be_whole(
        layout, num_tokens
    )


def attend_to_whole_prompts(
    q_TNH: Tensor, kv_TE: Tensor, num_tokens: Sequence[int], layout: PagedLayout
) -> Tensor:
    """The mixed values `[T, N, H]` of prompts that lie one behind the other."""
    head_dim = q_TNH.shape[2]
    kv_T2KH = kv_TE.view(-1, 2, layout.num_kv_heads, head_dim)
    mixed: list[Tensor] = []
    pieces = zip(q_TNH.split(list(num_tokens)), kv_T2KH.split(list(num_tokens)), strict=True)
    for q_PNH, kv_P2KH in pieces:
        k_PKH, v_PKH = kv_P2KH.unbind(1)
        mixed_NPH = functional.scaled_dot_product_attention(
            q_PNH.transpose(0, 1)[None],
            k_PKH.transpose(0, 1)[None],
            v_PKH.transpose(0, 1)[None],
            is_causal=True,
            scale=layout.scale,
            enable_gqa=True,
        )[0]
        mixed.append(mixed_NPH.transpose(0, 1))
    return torch.cat(mixed)
