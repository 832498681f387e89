"""A layer of a Gemma: attention and a feed-forward network, each between two norms.

Read next: `model`, which joins layers to a network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.gelu_mul import gelu_mul
from gpu_pool.kernels.head_norm import HeadNorm
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.grouped_attention import GroupedAttention, HeadSizes
from gpu_pool.layers.rotary_embedding import RotaryForm
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import read_linear
from gpu_pool.models.parameters import ReadParameter


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(DecoderConfig):
    """What Gemma adds to a decoder's configuration."""

    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    window_rotary: RotaryForm
    """How heads turn in layers that look back by a window; `rotary` is that of the others."""


class GemmaLayer:
    """Attention, then the feed-forward network, each between two norms and added back."""

    def __init__(self, config: GemmaConfig, layer: int, read: ReadParameter) -> None:
        """Reads the layer's parameters."""
        prefix = f"layers.{layer}."
        self.input_norm_D = read_norm(read, f"{prefix}input_norm")
        self.attention = _create_attention(config, layer, read)
        self.output_norm_D = read_norm(read, f"{prefix}output_norm")
        self.mlp_input_norm_D = read_norm(read, f"{prefix}mlp_input_norm")
        self.mlp = GatedMlp(
            read_linear(read, f"{prefix}gate_up"), read_linear(read, f"{prefix}down"), gelu_mul
        )
        self.mlp_output_norm_D = read_norm(read, f"{prefix}mlp_output_norm")


def read_norm(read: ReadParameter, name: str) -> Tensor:
    """A norm's weights, in fp32."""
    return read(name).float() + 1.0


def _create_attention(config: GemmaConfig, layer: int, read: ReadParameter) -> GroupedAttention:
    """The attention of one layer."""
    prefix = f"layers.{layer}."
    norm = None
    if config.has_head_norm:
        q_H, k_H = read_norm(read, f"{prefix}q_norm"), read_norm(read, f"{prefix}k_norm")
        weights = [q_H] * config.num_heads + [k_H] * config.num_kv_heads
        norm = HeadNorm(torch.stack(weights), config.rms_norm_eps)
    return GroupedAttention(
        HeadSizes(config.num_heads, config.num_kv_heads, config.head_dim),
        config.place_layer(layer, rotation=0 if config.reaches[layer].num_tokens is None else 1),
        qkv=read_linear(read, f"{prefix}qkv", config.has_qkv_bias),
        o=read_linear(read, f"{prefix}o", config.has_o_bias),
        norm=norm,
        form=AttentionForm(scale=config.attention_scale, softcap=config.attention_softcap),
    )
