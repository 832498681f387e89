"""What most decoders share: token ids in, pre-normed layers, hidden states and logits out.

A layer is attention, then a feed-forward network, each behind a norm and added back. Families
choose the two parts. Mathematics only: must not know files, sequences or sampling.
Shapes: T tokens of a step, R rows that sample, V vocabulary, D hidden size, X query and KV heads.
Read next: `decoder_parts`, then `llama.model` and any other family.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_pool.attention.paged import PagedStep
from gpu_pool.kernels.add_rms_norm import add_rms_norm
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.experts import FeedForward
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.rotary_embedding import RotaryEmbedding, create_rotary_embedding
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import create_attention, create_feed_forward
from gpu_pool.models.parameters import ReadParameter

Attention = Callable[[Tensor, DecoderStep], Tensor]


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """The parts of a layer, in the order in which they compute."""

    input_norm_D: Tensor
    attention: Attention
    post_norm_D: Tensor
    feed_forward: FeedForward


class PreNormDecoder:
    """The whole network."""

    def __init__(
        self,
        read: ReadParameter,
        layers: Sequence[PreNormLayer],
        rotaries: Sequence[RotaryEmbedding],
        eps: float,
    ) -> None:
        """Reads what stands before and behind the layers."""
        self._eps = eps
        self._embedding_VD = read("embedding")
        self._layers = layers
        self._norm_D = read("norm")
        self._head = Linear(read("head"))
        self._rotaries = rotaries

    def forward(
        self, token_ids_T: Tensor, positions_T: Tensor, groups: Sequence[PagedStep]
    ) -> Tensor:
        """The normed hidden states `[T, D]`; keys and values of all tokens are in the cache."""
        rotations = tuple([rotary(positions_T) for rotary in self._rotaries])
        step = DecoderStep(positions_T, rotations, groups)
        residual_TD = self._embedding_VD.index_select(0, token_ids_T)
        x_TD = rms_norm(residual_TD, self._layers[0].input_norm_D, self._eps)
        next_norms = [layer.input_norm_D for layer in self._layers[1:]] + [self._norm_D]
        for layer, next_norm_D in zip(self._layers, next_norms, strict=True):
            x_TD = layer.attention(x_TD, step)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, layer.post_norm_D, self._eps)
            x_TD = layer.feed_forward(x_TD)
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, next_norm_D, self._eps)
        return x_TD

    def compute_logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32."""
        return self._head(hidden_RD).float()


def create_layer(
    layer: int, read: ReadParameter, attention: Attention, feed_forward: FeedForward
) -> PreNormLayer:
    """A layer of these two parts, its norms read."""
    prefix = f"layers.{layer}."
    return PreNormLayer(
        read(f"{prefix}input_norm"), attention, read(f"{prefix}post_norm"), feed_forward
    )


def create_decoder(
    config: DecoderConfig, read: ReadParameter, context_window: int
) -> PreNormDecoder:
    """A decoder with grouped-query attention in every layer; all parameters are read and packed."""
    layers = [
        create_layer(
            layer,
            read,
            create_attention(config, layer, read),
            create_feed_forward(config, layer, read),
        )
        for layer in range(config.num_layers)
    ]
    rotary = create_rotary_embedding(
        config.rotary, config.head_dim, context_window, layers[0].input_norm_D
    )
    return PreNormDecoder(read, layers, [rotary], config.rms_norm_eps)
