"""A layer of a pre-normed decoder, and the way through all of them.

Shapes: D hidden size. Read next: `decoder`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.experts import FeedForward

Attention = Callable[[Tensor, DecoderStep], Tensor]


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """The parts of a layer, in the order in which they compute."""

    input_norm_D: Tensor
    attention: Attention
    post_norm_D: Tensor
    feed_forward: FeedForward


Passage = Sequence[tuple[PreNormLayer, Tensor | None]]
"""The layers, each with the norm behind it; None where another stage has that."""
