"""What every layer of a decoder needs of a step, and where a layer finds its own part of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_pool.attention.paged import PagedStep
from gpu_pool.layers.rotary_embedding import Rotation


@dataclass(frozen=True, slots=True)
class DecoderStep:
    """Made once per step by the model."""

    positions_T: Tensor
    rotations: tuple[Rotation, ...]
    """One per rotary embedding of the model."""
    groups: Sequence[PagedStep]
    """One per KV group."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Which KV group a layer is in, as which layer of it, and by which rotation its heads turn."""

    group: int
    index: int
    rotation: int | None = 0
    """None: the layer knows no positions."""
