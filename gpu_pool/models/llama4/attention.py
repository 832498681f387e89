"""Llama 4's attention: within chunks with positions, or over everything without.

Layers without positions grow sharper with length; the others may norm their heads once they have
turned. Shapes: T tokens, D hidden size, N query heads, K KV heads, X = N + K, H head dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.attention.paged import attend
from gpu_pool.kernels.head_norm import head_norm
from gpu_pool.kernels.rotary import rotary
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.rotary_embedding import to_halves
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import read_linear
from gpu_pool.models.parameters import ReadParameter


@dataclass(frozen=True, slots=True)
class Sharpening:
    """Queries at position p are multiplied by log(1 + ⌊(p + 1) / every⌋) · weight + 1."""

    every: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Llama4Config(DecoderConfig):
    """What Llama 4 adds to a decoder's configuration."""

    layers_without_positions: frozenset[int]
    norms_turned_heads: bool
    sharpening: Sharpening | None
    """In layers without positions."""


class Llama4Attention:
    """Grouped-query attention of either kind of layer."""

    __slots__ = ("_config", "_o", "_ones_XH", "_place", "_qkv")

    def __init__(self, config: Llama4Config, layer: int, read: ReadParameter) -> None:
        """Reads the layer's products; rotary pairs, neighbours in the checkpoint, become halves."""
        prefix = f"layers.{layer}."
        self._config = config
        has_positions = layer not in config.layers_without_positions
        self._place = config.place_layer(layer, rotation=0 if has_positions else None)
        qkv = read(f"{prefix}qkv")
        bias = read(f"{prefix}qkv_bias") if config.has_qkv_bias else None
        if has_positions:
            qkv = self._reorder(qkv)
            bias = None if bias is None else self._reorder(bias)
        arrange = self._reorder if has_positions else None
        self._qkv = Linear(qkv, bias, name=f"{prefix}qkv", arrange=arrange)
        self._o = read_linear(read, f"{prefix}o", config.has_o_bias)
        self._ones_XH = torch.ones(
            (config.num_heads + config.num_kv_heads, config.head_dim),
            dtype=qkv.dtype,
            device="cpu" if qkv.is_meta else qkv.device,  # what is packed already has no content
        )

    def __call__(self, x_TD: Tensor, step: DecoderStep) -> Tensor:
        """The mixed states `[T, D]`."""
        config, place = self._config, self._place
        num_turned = config.num_heads + config.num_kv_heads
        qkv = self._qkv(x_TD)
        heads_TXH = qkv.view(x_TD.shape[0], -1, config.head_dim)
        q_TNH = heads_TXH[:, : config.num_heads]
        if place.rotation is not None:
            rotary(heads_TXH[:, :num_turned], *step.rotations[place.rotation])
            if config.norms_turned_heads:
                head_norm(heads_TXH[:, :num_turned], self._ones_XH, config.rms_norm_eps)
        elif config.sharpening is not None:
            q_TNH = q_TNH * _sharpen(step.positions_T, config.sharpening)[:, None, None]
            q_TNH = q_TNH.to(x_TD.dtype)
        kv_TE = qkv[:, config.num_heads * config.head_dim :]
        mixed_TNH = attend(place.index, q_TNH, kv_TE, step.groups[place.group])
        return self._o(mixed_TNH.view(x_TD.shape[0], -1))

    def _reorder(self, rows: Tensor) -> Tensor:
        """Rows of queries and keys with their pairs as halves; those of values stay."""
        end = (self._config.num_heads + self._config.num_kv_heads) * self._config.head_dim
        return torch.cat((to_halves(rows[:end], self._config.head_dim), rows[end:]))


def _sharpen(positions_T: Tensor, sharpening: Sharpening) -> Tensor:
    """The factor of each token's queries, fp32."""
    steps_T = torch.floor((positions_T.float() + 1.0) / sharpening.every)
    return torch.log1p(steps_T) * sharpening.weight + 1.0
