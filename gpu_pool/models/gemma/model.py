"""Gemma: norms before and behind each part of a layer, scaled embeddings, capped logits.

Layers that look back by a window alternate with layers that see everything; in Gemma 3 the two turn
heads by different frequencies. Norms store their distance from one, and are kept in fp32.
Shapes: T tokens of a step, R rows that sample, V vocabulary, D hidden size.
Read next: `layer`, then `gpu_pool.models.decoder` (what differs from it), then `names`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_pool.attention.paged import PagedStep
from gpu_pool.kernels.add_rms_norm import add_rms_norm
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.rotary_embedding import create_rotary_embedding
from gpu_pool.layers.vocabulary import Embedding
from gpu_pool.models.decoder_head import create_head
from gpu_pool.models.gemma.layer import GemmaConfig, GemmaLayer, read_norm
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


class GemmaModel:
    """The whole network."""

    def __init__(
        self, config: GemmaConfig, read: ReadParameter, context_window: int, group: TensorGroup
    ) -> None:
        """Reads all parameters that this stage has, layer by layer, and packs them."""
        self._eps = config.rms_norm_eps
        self._logit_softcap = config.logit_softcap
        self._group = group
        self._embedding = Embedding(read("embedding"), group) if config.holds_first else None
        layers = [GemmaLayer(config, layer, read) for layer in config.held_layers]
        norm_D = read_norm(read, "norm") if config.holds_last else None
        self._first_norm_D = layers[0].input_norm_D
        next_norms = [layer.input_norm_D for layer in layers[1:]] + [norm_D]
        self.passage: Sequence[tuple[GemmaLayer, Tensor | None]] = tuple(
            zip(layers, next_norms, strict=True)
        )
        """The layers, each with the norm behind it."""
        self._head = create_head(config, read, self._embedding, group)
        like = read(f"layers.{config.held_layers.start}.input_norm")
        # Rounded to the dtype as the checkpoint's makers do it.
        self._embedding_scale = like.new_tensor(config.hidden_size**0.5)
        self._rotaries = [
            create_rotary_embedding(form, config.head_dim, context_window, like)
            for form in (config.rotary, config.window_rotary)
        ]

    def forward(
        self,
        token_ids_T: Tensor,
        positions_T: Tensor,
        groups: Sequence[PagedStep],
        states_TD: Tensor | None = None,
    ) -> Tensor:
        """The normed hidden states `[T, D]`; keys and values of all tokens are in the cache.

        Between stages of a pipeline go the sums that layers add to, before any norm.
        """
        rotations = tuple([rotary(positions_T) for rotary in self._rotaries])
        step = DecoderStep(positions_T, rotations, groups)
        residual_TD, eps = states_TD, self._eps
        if self._embedding is not None:
            residual_TD = self._embedding(token_ids_T) * self._embedding_scale
        assert residual_TD is not None, "a later stage needs the states of the one before it"
        x_TD = rms_norm(residual_TD, self._first_norm_D, eps)
        for layer, next_norm_D in self.passage:
            x_TD = self._group.add_up(layer.attention(x_TD, step))
            x_TD = rms_norm(x_TD, layer.output_norm_D, eps)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, layer.mlp_input_norm_D, eps)
            x_TD = rms_norm(self._group.add_up(layer.mlp(x_TD)), layer.mlp_output_norm_D, eps)
            if next_norm_D is None:
                return residual_TD + x_TD
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, next_norm_D, eps)
        return x_TD

    def compute_logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32, capped where the family caps them."""
        assert self._head is not None, "only the last stage has logits"
        logits_RV = self._head(hidden_RD)
        if self._logit_softcap is None:
            return logits_RV
        return torch.tanh(logits_RV / self._logit_softcap) * self._logit_softcap
