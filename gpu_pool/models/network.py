"""What the rest of the pool knows of a network: sizes, KV memory, parameters and how to build it.

A family turns a `config.json` into one of these; workers and runners need nothing else of it.
Read next: `registry`, then `decoder`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from gpu_pool.attention.paged import PagedStep
from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import ParameterSource, ReadParameter
from gpu_pool.parallel.place import RankPlace
from gpu_pool.parallel.tensor_group import TensorGroup


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that attend alike and so share a block table: one KV group.

    `num_parts` is 2 for keys and values, 1 where the values are a part of the keys.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    reach: Reach = FULL_REACH
    num_parts: int = 2


class CausalModel(Protocol):
    """A network that predicts the next token, its weights in place."""

    passage: Sequence[Any]
    """What `forward` goes through once, in this order. When it comes to a part, it has used what
    that part leads to, what those before it do and what belongs to no part, and nothing else. Who
    puts another sequence of the same parts in its place is asked for each when its turn has come.
    """

    def forward(
        self,
        token_ids_T: Tensor,
        positions_T: Tensor,
        groups: Sequence[PagedStep],
        states_TD: Tensor | None = None,
    ) -> Tensor:
        """Hidden states `[T, D]`; keys and values of all tokens are in the groups' memory.

        A stage of a pipeline but the first takes the `states_TD` of the one before it, and may
        compute in their memory.
        """
        ...

    def compute_logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32. Where ranks share the vocabulary, on the first of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalNetwork:
    """A network that generates text, described but not loaded. `context_window` in tokens."""

    vocab_size: int
    hidden_size: int
    context_window: int
    kv_groups: tuple[KvLayers, ...]
    layer_groups: tuple[int, ...]
    """Which KV group each layer is in."""
    parameters: Mapping[str, ParameterSource]
    ignored: frozenset[str]
    """Tensors, and with a dot at the end groups of them, that some checkpoints hold and the network
    does not need."""
    create: Callable[[ReadParameter, int], CausalModel]
    """Builds the model for contexts of at most so many tokens."""
    share: "ShareNetwork"


ShareNetwork = Callable[[RankPlace, TensorGroup], CausalNetwork]
"""What one rank holds of a whole network. Raises: `CheckpointError` where it does not divide."""


@runtime_checkable
class Encoder(Protocol):
    """A network that turns whole texts into hidden states, its weights in place.

    Texts lie one behind the other without padding; neighbours of one length share attention calls,
    so a caller with many texts sorts them by length. A text's result does not depend on others.
    """

    def encode(
        self, token_ids_T: Tensor, lengths: Sequence[int], type_ids_T: Tensor | None = None
    ) -> Tensor:
        """The hidden states `[T, D]` of texts of `lengths` tokens; types are 0 unless given."""
        ...

    def classify(self, hidden_TD: Tensor, lengths: Sequence[int]) -> Tensor:
        """Scores `[B, labels]` in fp32, before softmax or sigmoid; only with `num_labels`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderNetwork:
    """A network that encodes texts, described but not loaded. `context_window` in tokens."""

    vocab_size: int
    context_window: int
    hidden_size: int
    num_types: int
    """Kinds of tokens, such as question and passage; ids from 0."""
    num_labels: int
    """0: no head for labels."""
    is_multi_label: bool
    """True when a text may have several labels, or none."""
    parameters: Mapping[str, ParameterSource]
    ignored: frozenset[str]
    """As in `CausalNetwork`."""
    create: Callable[[ReadParameter], Encoder]


Network = CausalNetwork | EncoderNetwork


def require_causal(network: Network) -> CausalNetwork:
    """`network`, which generates text. Raises: `CheckpointError` for an encoder."""
    if not isinstance(network, CausalNetwork):
        raise CheckpointError("The model is an encoder; it does not generate text.")
    return network
