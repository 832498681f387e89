"""The sizes and switches of a decoder with grouped-query attention, already validated.

Most families are this with other switches. Read next: `decoder`, then `config_json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gpu_pool.attention.reach import Reach
from gpu_pool.layers.decoder_step import LayerPlace
from gpu_pool.layers.rotary_embedding import RotaryForm
from gpu_pool.models.network import KvLayers


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Feed-forward networks of experts. `num_chosen`: experts that compute a token."""

    num_experts: int
    num_chosen: int
    intermediate_size: int
    is_normalised: bool = True
    """Weights of the chosen experts sum to one."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that have an ordinary network instead."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What the mathematics depends on. `context_window` in tokens."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_window: int
    rms_norm_eps: float
    reaches: tuple[Reach, ...]
    """How far each layer looks back."""
    rotary: RotaryForm
    has_tied_embeddings: bool = False
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norm: bool = False
    experts: ExpertSizes | None = None
    held: range | None = None
    """The layers of this stage of a pipeline; None: all."""

    @property
    def held_layers(self) -> range:
        """The layers that are computed here."""
        return range(self.num_layers) if self.held is None else self.held

    @property
    def holds_first(self) -> bool:
        """True where token ids come in."""
        return self.held_layers.start == 0

    @property
    def holds_last(self) -> bool:
        """True where logits go out."""
        return self.held_layers.stop == self.num_layers

    def has_experts(self, layer: int) -> bool:
        """Whether a layer's feed-forward network is one of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return len(self.reaches)

    @cached_property
    def kv_groups(self) -> tuple[KvLayers, ...]:
        """Layers of one reach share memory and block tables."""
        return group_layers(self.reaches, self.held_layers, self.num_kv_heads, self.head_dim)

    def place_layer(self, layer: int, rotation: int | None = 0) -> LayerPlace:
        """Where in the KV groups a layer is, and by which rotation its heads turn."""
        reach = self.reaches[layer]
        group = list(dict.fromkeys(self.reaches)).index(reach)
        index = self.reaches[self.held_layers.start : layer].count(reach)
        return LayerPlace(group, index, rotation)


ConfigT = TypeVar("ConfigT", bound=DecoderConfig)


def group_layers(
    reaches: Sequence[Reach], held: range, num_kv_heads: int, head_dim: int
) -> tuple[KvLayers, ...]:
    """One KV group per reach, in the order in which they first come, with the layers of `held`."""
    own = reaches[held.start : held.stop]
    return tuple(
        KvLayers(own.count(reach), num_kv_heads, head_dim, reach)
        for reach in dict.fromkeys(reaches)
    )
