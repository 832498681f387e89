"""Gemma: norms before and behind each part of a layer, scaled embeddings, capped logits.

Layers that look back by a window alternate with layers that see everything; in Gemma 3 the two turn
heads by different frequencies. Norms store their distance from one, and are kept in fp32.
Shapes: T tokens of a step, R rows that sample, V vocabulary, D hidden size.
Read next: `gpu_pool.models.decoder` (what differs from it), then `names`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.attention.paged import PagedStep
from gpu_pool.kernels.add_rms_norm import add_rms_norm
from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.gelu_mul import gelu_mul
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.grouped_attention import GroupedAttention, HeadNorm, HeadSizes
from gpu_pool.layers.rotary_embedding import RotaryForm, create_rotary_embedding
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
        self.input_norm_D = _read_norm(read, f"{prefix}input_norm")
        self.attention = _create_attention(config, layer, read)
        self.output_norm_D = _read_norm(read, f"{prefix}output_norm")
        self.mlp_input_norm_D = _read_norm(read, f"{prefix}mlp_input_norm")
        self.mlp = GatedMlp(
            read_linear(read, f"{prefix}gate_up"), read_linear(read, f"{prefix}down"), gelu_mul
        )
        self.mlp_output_norm_D = _read_norm(read, f"{prefix}mlp_output_norm")


class GemmaModel:
    """The whole network."""

    def __init__(self, config: GemmaConfig, read: ReadParameter, context_window: int) -> None:
        """Reads all parameters, layer by layer, and packs them."""
        self._eps = config.rms_norm_eps
        self._logit_softcap = config.logit_softcap
        self._embedding_VD = read("embedding")
        # Rounded to the dtype as the checkpoint's makers do it.
        self._embedding_scale = self._embedding_VD.new_tensor(config.hidden_size**0.5)
        self._layers = [GemmaLayer(config, layer, read) for layer in range(config.num_layers)]
        self._norm_D = _read_norm(read, "norm")
        self._head = read_linear(read, "head")
        self._rotaries = [
            create_rotary_embedding(form, config.head_dim, context_window, self._embedding_VD)
            for form in (config.rotary, config.window_rotary)
        ]

    def forward(
        self, token_ids_T: Tensor, positions_T: Tensor, groups: Sequence[PagedStep]
    ) -> Tensor:
        """The normed hidden states `[T, D]`; keys and values of all tokens are in the cache."""
        rotations = tuple([rotary(positions_T) for rotary in self._rotaries])
        step = DecoderStep(positions_T, rotations, groups)
        residual_TD = self._embedding_VD.index_select(0, token_ids_T) * self._embedding_scale
        eps = self._eps
        x_TD = rms_norm(residual_TD, self._layers[0].input_norm_D, eps)
        next_norms = [layer.input_norm_D for layer in self._layers[1:]] + [self._norm_D]
        for layer, next_norm_D in zip(self._layers, next_norms, strict=True):
            x_TD = rms_norm(layer.attention(x_TD, step), layer.output_norm_D, eps)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, layer.mlp_input_norm_D, eps)
            x_TD = rms_norm(layer.mlp(x_TD), layer.mlp_output_norm_D, eps)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, next_norm_D, eps)
        return x_TD

    def compute_logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32, capped where the family caps them."""
        logits_RV = self._head(hidden_RD).float()
        if self._logit_softcap is None:
            return logits_RV
        return torch.tanh(logits_RV / self._logit_softcap) * self._logit_softcap


def _read_norm(read: ReadParameter, name: str) -> Tensor:
    """A norm's weights, in fp32."""
    return read(name).float() + 1.0


def _create_attention(config: GemmaConfig, layer: int, read: ReadParameter) -> GroupedAttention:
    """The attention of one layer."""
    prefix = f"layers.{layer}."
    norm = None
    if config.has_head_norm:
        q_H, k_H = _read_norm(read, f"{prefix}q_norm"), _read_norm(read, f"{prefix}k_norm")
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
