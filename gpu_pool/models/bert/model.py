"""BERT: token ids of whole texts in, hidden states out, and scores of labels where it has a head.

Every token sees every token of its text; nothing is cached. Texts lie one behind the other without
padding. Mathematics only: must not know files or requests.
Shapes: T tokens of all texts, B texts, D hidden size, F intermediate size, N heads, H head dim.
Read next: `gpu_pool.kernels.encoder_attention`, then `names`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.encoder_attention import encoder_attention
from gpu_pool.kernels.layer_norm import add_layer_norm
from gpu_pool.models.decoder_parts import read_linear
from gpu_pool.models.parameters import ReadParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """What the mathematics depends on, already validated."""

    vocab_size: int
    num_positions: int
    """Rows of the position table."""
    first_position: int
    """The row of a text's first token."""
    num_types: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    layer_norm_eps: float
    activation: Callable[[Tensor], Tensor]
    num_labels: int
    """0: no head."""


class BertLayer:
    """Attention, then the feed-forward network, each added back and normed."""

    def __init__(self, config: BertConfig, layer: int, read: ReadParameter) -> None:
        """Reads the layer's parameters."""
        prefix = f"layers.{layer}."
        self._num_heads = config.num_heads
        self._eps = config.layer_norm_eps
        self._activation = config.activation
        self._qkv = read_linear(read, f"{prefix}qkv", has_bias=True)
        self._o = read_linear(read, f"{prefix}o", has_bias=True)
        self._attention_norm = _read_norm(read, f"{prefix}attention_norm")
        self._up = read_linear(read, f"{prefix}up", has_bias=True)
        self._down = read_linear(read, f"{prefix}down", has_bias=True)
        self._output_norm = _read_norm(read, f"{prefix}output_norm")

    def __call__(self, x_TD: Tensor, lengths: Sequence[int]) -> Tensor:
        """The next layer's states `[T, D]`."""
        num_tokens = x_TD.shape[0]
        qkv_T3NH = self._qkv(x_TD).view(num_tokens, 3, self._num_heads, -1)
        mixed_TD = encoder_attention(qkv_T3NH, lengths).view(num_tokens, -1)
        x_TD = add_layer_norm(self._o(mixed_TD), x_TD, *self._attention_norm, self._eps)
        inner_TF = self._activation(self._up(x_TD))
        return add_layer_norm(self._down(inner_TF), x_TD, *self._output_norm, self._eps)


class BertEncoder:
    """The whole network: an `Encoder`."""

    def __init__(self, config: BertConfig, read: ReadParameter) -> None:
        """Reads all parameters, layer by layer, and packs them."""
        self._eps = config.layer_norm_eps
        self._first_position = config.first_position
        self._words_VD = read("words")
        self._positions_PD = read("positions")
        self._types_YD = read("types")
        self._norm = _read_norm(read, "norm")
        self._layers = [BertLayer(config, layer, read) for layer in range(config.num_layers)]
        self._head = read_linear(read, "head", has_bias=True) if config.num_labels else None
        self._labels = read_linear(read, "labels", has_bias=True) if config.num_labels else None

    def encode(
        self, token_ids_T: Tensor, lengths: Sequence[int], type_ids_T: Tensor | None = None
    ) -> Tensor:
        """The hidden states `[T, D]` of texts of `lengths` tokens; types are 0 unless given."""
        device = token_ids_T.device
        rows = [torch.arange(length, device=device) for length in lengths]
        positions_T = torch.cat(rows) + self._first_position
        words_TD = self._words_VD.index_select(0, token_ids_T)
        if type_ids_T is None:
            words_TD = words_TD + self._types_YD[0]
        else:
            words_TD = words_TD + self._types_YD.index_select(0, type_ids_T)
        positions_TD = self._positions_PD.index_select(0, positions_T)
        x_TD = add_layer_norm(words_TD, positions_TD, *self._norm, self._eps)
        for layer in self._layers:
            x_TD = layer(x_TD, lengths)
        return x_TD

    def classify(self, hidden_TD: Tensor, lengths: Sequence[int]) -> Tensor:
        """The labels' scores `[B, labels]` in fp32, before any softmax or sigmoid."""
        assert self._head is not None, "the network has no head"
        assert self._labels is not None, "the network has no head"
        ends = torch.tensor(lengths, device=hidden_TD.device).cumsum(0)
        firsts_BD = hidden_TD[torch.cat((ends.new_zeros(1), ends[:-1]))]
        return self._labels(torch.tanh(self._head(firsts_BD))).float()


def _read_norm(read: ReadParameter, name: str) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer norm."""
    return read(name), read(f"{name}_bias")
