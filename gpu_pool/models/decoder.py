"""What most decoders share: token ids in, pre-normed layers, hidden states and logits out.

A layer is attention, then a feed-forward network, each behind a norm and added back. Families
choose the two parts. Where ranks share layers, each part's results are added up over them: twice a
layer and no more. Mathematics only: must not know files, sequences or sampling.
Shapes: T tokens of a step, R rows that sample, V vocabulary, D hidden size, X query and KV heads.
Read next: `decoder_layer`, `native_passage`, then `llama.model` and any other family.
"""

from collections.abc import Sequence

from torch import Tensor

from gpu_pool.attention.paged import PagedStep
from gpu_pool.kernels.add_rms_norm import add_rms_norm
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.rotary_embedding import RotaryEmbedding
from gpu_pool.layers.vocabulary import Embedding
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_head import create_head
from gpu_pool.models.decoder_layer import Passage, PreNormLayer
from gpu_pool.models.native_passage import join_natively
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


class PreNormDecoder:
    """The whole network."""

    def __init__(
        self,
        config: DecoderConfig,
        read: ReadParameter,
        layers: Sequence[PreNormLayer],
        rotaries: Sequence[RotaryEmbedding],
        group: TensorGroup,
    ) -> None:
        """Reads what stands before and behind the layers, where this stage has it."""
        self._eps = config.rms_norm_eps
        self._embedding = Embedding(read("embedding"), group) if config.holds_first else None
        norm_D = read("norm") if config.holds_last else None
        self._first_norm_D = layers[0].input_norm_D
        next_norms = [layer.input_norm_D for layer in layers[1:]] + [norm_D]
        self.passage: Passage = tuple(zip(layers, next_norms, strict=True))
        self._native = join_natively(self.passage, self._eps) if group.size == 1 else None
        self._head = create_head(config, read, self._embedding, group)
        self._rotaries = rotaries
        self._group = group

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
        residual_TD = states_TD if self._embedding is None else self._embedding(token_ids_T)
        assert residual_TD is not None, "a later stage needs the states of the one before it"
        x_TD = rms_norm(residual_TD, self._first_norm_D, self._eps)
        if self._native is not None and self._native.can_run(self.passage, step):
            return self._native.run(x_TD, residual_TD, step)
        for layer, next_norm_D in self.passage:
            x_TD = self._group.add_up(layer.attention(x_TD, step))
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, layer.post_norm_D, self._eps)
            x_TD = self._group.add_up(layer.feed_forward(x_TD))
            if next_norm_D is None:
                return residual_TD + x_TD
            x_TD, residual_TD = add_rms_norm(x_TD, residual_TD, next_norm_D, self._eps)
        return x_TD

    def compute_logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32, as `CausalModel` has it."""
        assert self._head is not None, "only the last stage has logits"
        return self._head(hidden_RD)
