"""Tensor times pipeline: what each layout puts on each GPU and how many tokens of KV it leaves.

Every layer's parameters split as its family's `sharding` says. KV heads split among the ranks of a
stage, or are kept by several where there are fewer heads than ranks; a latent is kept by all.
Groups with a window or chunks are bounded: they cost each sequence a ring, and further tokens cost
the other groups alone. Stages are cut where the tightest GPU holds most.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpu_pool.capacity.gpus import Gpus
from gpu_pool.kernels.fp8_slots import Fp8Slots
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import CausalNetwork, KvLayers
from gpu_pool.models.parameters import ParameterSource, list_held
from gpu_pool.parallel.place import ParallelShape, RankPlace
from gpu_pool.parallel.tensor_group import ALONE


@dataclass(frozen=True, slots=True)
class KvBytes:
    """What keys and values take in some layers."""

    per_token: int
    """In layers that see everything, for each token."""
    per_sequence: int
    """In layers with a window or chunks: at most so much for a sequence, however long."""

    def __add__(self, other: "KvBytes") -> "KvBytes":
        return KvBytes(self.per_token + other.per_token, self.per_sequence + other.per_sequence)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline, as each of its GPUs sees it."""

    num_layers: int
    weight_bytes: int
    kv: KvBytes
    room_bytes: int
    """For KV, behind weights and overhead; below 0 where they do not fit."""

    def count_tokens(self, num_sequences: int) -> int:
        """Tokens of all sequences together that the stage can keep."""
        room = self.room_bytes - num_sequences * self.kv.per_sequence
        if room < 0:
            return -1
        return room // self.kv.per_token if self.kv.per_token else _ENDLESS


_ENDLESS: Final = 1 << 62
MeasureBytes = Callable[[Mapping[str, ParameterSource], int], int]
"""What parameters take on each of so many ranks."""


@dataclass(frozen=True)
class Layout:
    """`tensor` ranks in each of the stages."""

    tensor: int
    stages: tuple[Stage, ...]
    num_sequences: int

    @cached_property
    def num_tokens(self) -> int:
        """KV tokens of all sequences together; -1 where the weights do not fit."""
        return min(stage.count_tokens(self.num_sequences) for stage in self.stages)

    @property
    def is_endless(self) -> bool:
        """True where every layer has a window or chunks, so that tokens cost nothing beyond the
        sequences' rings."""
        return self.num_tokens == _ENDLESS

    @property
    def tightest(self) -> Stage:
        """The stage that limits the rest."""
        return min(self.stages, key=lambda stage: stage.count_tokens(self.num_sequences))


class ModelSize:
    """A network's sizes, layer by layer."""

    def __init__(
        self, network: CausalNetwork, measure: MeasureBytes, kv_element_bytes: int
    ) -> None:
        """`measure` says whether weights count as they are stored or as they are loaded."""
        self._network = network
        self._measure_bytes = measure
        self._kv_element_bytes = kv_element_bytes

    @property
    def num_layers(self) -> int:
        """Layers in all."""
        return len(self._network.layer_groups)

    @property
    def is_tied(self) -> bool:
        """True where the head is the embedding: stored once, needed at both ends."""
        parameters = self._network.parameters
        return parameters["head"].parts == parameters["embedding"].parts

    @property
    def weight_bytes(self) -> int:
        """All weights once."""
        return self._measure_bytes(list_held(self._network.parameters), 1)

    def measure_kv(self, tensor: int = 1) -> KvBytes:
        """Keys and values of all layers on one of `tensor` ranks."""
        return sum(
            (self.measure_layer_kv(i, tensor) for i in range(self.num_layers)), KvBytes(0, 0)
        )

    def measure_layer_kv(self, layer: int, tensor: int) -> KvBytes:
        """Keys and values of one layer on one rank."""
        group = self._network.kv_groups[self._network.layer_groups[layer]]
        heads = _count_heads(group, tensor) * group.num_parts
        slot_bytes = heads * group.head_dim * self._kv_element_bytes
        if self._kv_element_bytes == 1:
            slot_bytes = Fp8Slots(slot_bytes, heads).num_bytes
        reach = group.reach.num_tokens
        return KvBytes(slot_bytes, 0) if reach is None else KvBytes(0, reach * slot_bytes)

    def measure_layer(self, layer: int, tensor: int) -> int:
        """The weights of one layer on one rank."""
        return self._measure(f"layers.{layer}.", tensor)

    def measure_end(self, tensor: int, *, is_first: bool, is_last: bool) -> int:
        """What stands before and behind the layers, on one rank."""
        total = self._measure("embedding", tensor) if is_first else 0
        if is_last:
            total += self._measure("norm", tensor)
            total += 0 if is_first and self.is_tied else self._measure("head", tensor)
        return total

    def can_split(self, tensor: int, num_stages: int) -> bool:
        """Whether a worker would take its part of the network in that layout."""
        place = RankPlace(ParallelShape(tensor, num_stages))
        try:
            self._network.share(place, ALONE)
        except CheckpointError:
            return False
        return True

    def _measure(self, prefix: str, tensor: int) -> int:
        """The parameters whose names begin so, on one rank."""
        parameters = self._network.parameters
        return self._measure_bytes(
            {name: parameters[name] for name in parameters if name.startswith(prefix)}, tensor
        )


def list_layouts(
    size: ModelSize, gpus: Gpus, overhead_bytes: int, num_sequences: int
) -> list[Layout]:
    """Every layout that uses all GPUs, the one with most KV tokens first."""
    layouts = [
        _cut_stages(size, gpus, tensor, overhead_bytes, num_sequences)
        for tensor in range(1, gpus.count + 1)
        if gpus.count % tensor == 0 and size.can_split(tensor, gpus.count // tensor)
    ]
    return sorted(layouts, key=lambda lay: (-lay.num_tokens, len(lay.stages)))


def _cut_stages(
    size: ModelSize, gpus: Gpus, tensor: int, overhead_bytes: int, num_sequences: int
) -> Layout:
    """The cut into consecutive layers whose tightest stage holds most tokens."""
    num_stages, num_layers = gpus.count // tensor, size.num_layers
    room = gpus.memory_bytes - overhead_bytes
    weights = [0]
    kv = [KvBytes(0, 0)]
    for layer in range(num_layers):
        weights.append(weights[-1] + size.measure_layer(layer, tensor))
        kv.append(kv[-1] + size.measure_layer_kv(layer, tensor))
    first_bytes = size.measure_end(tensor, is_first=True, is_last=num_stages == 1)
    last_bytes = size.measure_end(tensor, is_first=False, is_last=True)

    def describe(stage: int, first: int, end: int) -> Stage:
        held = weights[end] - weights[first]
        if stage == 0:
            held += first_bytes
        elif stage == num_stages - 1:
            held += last_bytes
        between = KvBytes(
            kv[end].per_token - kv[first].per_token,
            kv[end].per_sequence - kv[first].per_sequence,
        )
        return Stage(end - first, held, between, room - held)

    # best[end]: the tightest stage's room, its tokens and the cut, for the stages so far.
    best: dict[int, tuple[tuple[int, int], tuple[Stage, ...]]] = {0: ((_ENDLESS, _ENDLESS), ())}
    for stage in range(num_stages):
        following: dict[int, tuple[tuple[int, int], tuple[Stage, ...]]] = {}
        for first, (worst, stages) in best.items():
            left = num_stages - stage - 1
            ends = range(first + 1, num_layers - left + 1) if left else (num_layers,)
            for end in ends:
                one = describe(stage, first, end)
                tokens = one.count_tokens(num_sequences)
                value = min(worst, (tokens, one.room_bytes))
                if end not in following or value > following[end][0]:
                    following[end] = (value, (*stages, one))
        best = following
    return Layout(tensor, best[num_layers][1], num_sequences)


def _count_heads(group: KvLayers, tensor: int) -> int:
    """KV heads that one rank keeps."""
    return max(1, group.num_kv_heads // tensor)


def explain(best: Layout, others: Sequence[Layout]) -> str:
    """Why `best` is that, in a sentence or two."""
    if best.num_tokens < 0:
        if all(min(s.room_bytes for s in lay.stages) < 0 for lay in others):
            return "No layout fits: weights and overhead alone are more than the GPUs hold."
        return (
            f"No layout fits: the rings of {best.num_sequences} sequences are more than weights "
            "and overhead leave."
        )
    tight = best.tightest
    words = (
        f"tensor {best.tensor} x pipeline {len(best.stages)} keeps most KV: its tightest GPU has "
        f"{tight.num_layers} layers, {_to_gib(tight.weight_bytes)} GiB of weights and "
        f"{_to_gib(tight.room_bytes)} GiB left."
    )
    fitting = [other for other in others if other is not best and other.num_tokens >= 0]
    if not fitting:
        return words
    other = max(fitting, key=lambda lay: lay.tensor)
    copies = sum(s.kv.per_token for s in other.stages) * other.tensor
    own = sum(s.kv.per_token for s in best.stages) * best.tensor
    if copies > own:
        words += (
            f" With tensor {other.tensor} a token takes {copies // own} times the memory, because "
            "its ranks keep copies of the same KV."
        )
    return words


def _to_gib(num_bytes: int) -> str:
    """Gibibytes with one decimal."""
    return f"{num_bytes / (1 << 30):.1f}"
