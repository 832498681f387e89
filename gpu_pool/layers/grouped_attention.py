"""Grouped-query attention over paged memory; query, key and value in one product.

Shapes: T tokens, D hidden size, N query heads, K KV heads, X = N + 2 · K, H head dim,
E = 2 · K · H.
"""

from dataclasses import dataclass

from torch import Tensor

from gpu_pool.attention.paged import attend, find_slots
from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.kernels.head_norm import HeadNorm
from gpu_pool.kernels.norm_rotate_write import norm_rotate_write
from gpu_pool.layers.decoder_step import DecoderStep, LayerPlace
from gpu_pool.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """How the rows of the fused product divide."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class GroupedAttention:
    """Mixes a token's states with those of the tokens it sees."""

    __slots__ = ("form", "norm", "o", "place", "qkv", "sizes")

    def __init__(
        self,
        sizes: HeadSizes,
        place: LayerPlace,
        qkv: Linear,
        o: Linear,
        *,
        norm: HeadNorm | None = None,
        form: AttentionForm = PLAIN,
    ) -> None:
        """Joins the products; `qkv` holds rows of queries, then of keys, then of values."""
        self.sizes = sizes
        self.place = place
        self.qkv = qkv
        self.o = o
        self.norm = norm
        self.form = form

    def __call__(self, x_TD: Tensor, step: DecoderStep) -> Tensor:
        """The mixed states `[T, D]`."""
        sizes, place = self.sizes, self.place
        group = step.groups[place.group]
        qkv = self.qkv(x_TD)
        heads_TXH = qkv.view(x_TD.shape[0], -1, sizes.head_dim)
        rotation = None if place.rotation is None else step.rotations[place.rotation]
        slots = find_slots(place.index, qkv.dtype, group)
        norm_rotate_write(heads_TXH, sizes.num_heads, self.norm, rotation, slots)
        q_TNH = heads_TXH[:, : sizes.num_heads]
        kv_TE = qkv[:, sizes.num_heads * sizes.head_dim :] if slots is None else None
        mixed_TNH = attend(place.index, q_TNH, kv_TE, group, self.form)
        return self.o(mixed_TNH.view(x_TD.shape[0], -1))
