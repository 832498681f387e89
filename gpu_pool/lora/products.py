"""Which of a model's products a file's pairs belong to, and how they lie in them.

A product is what a family fuses: queries, keys and values are one, gate and up another. Each pair
belongs to one part of it. The families' own lists of parameters say which, how ranks divide it and
in what order its rows are computed, so that no family knows of adapters.
Shapes: M outputs and K inputs of a product as this rank computes it, R ranks of all its pairs.
Read next: `loading`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpu_pool.layers.linear import Linear
from gpu_pool.lora.adapter_file import LowRankPair, quote, refuse
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.weights.tensor_search import find_held

_MOST_JOINED: Final = 64
"""Ranks of a product's pairs up to which their Bs are one matrix with zeros between them: for
queries, keys and values of Qwen3-0.6B one product instead of three took 0.4 to 1.0 of the time of
24 and 48 ranks, and 1.5 times that of 192."""
_WEIGHT: Final = ".weight"
_OUTER: Final = "language_model.model."
_OUTER_IN_MEMORY: Final = "model.language_model."
"""How transformers calls the text part of a model that sees, once it is loaded."""
_KINDS: Final[Mapping[str, str]] = {
    "embedding": "the embedding",
    "head": "the head",
    "router": "the router of experts",
    "expert_gate_up": "routed experts",
    "expert_down": "routed experts",
    "kv_up": "a product that latent attention takes into its queries",
}


@dataclass(frozen=True, slots=True)
class PlacedPair:
    """A pair and the part of a product that it changes."""

    pair: LowRankPair
    part: CheckpointTensor
    inputs: range | None
    """Of A's columns, those that this rank multiplies with; None: all."""
    outputs: range | None
    """Of B's rows, those that this rank computes; None: all."""
    rows: range
    """Where they lie in the product."""
    ranks: range
    """Where A's rows lie in that of all pairs."""


@dataclass(frozen=True, slots=True)
class AdaptedProduct:
    """What an adapter changes of one product."""

    linear: Linear
    placed: tuple[PlacedPair, ...]
    num_inputs: int
    num_outputs: int
    pieces: tuple[tuple[range, range], ...]
    """Rows and ranks of the matrices that B consists of; all else of it is zeros."""

    @property
    def num_ranks(self) -> int:
        """R."""
        return self.placed[-1].ranks.stop


class ModelProducts:
    """The products of a model, or of what one rank holds of it, that take adapters."""

    def __init__(
        self,
        model: object,
        whole: Mapping[str, ParameterSource],
        own: Mapping[str, ParameterSource],
        *,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        """Finds them by the names that layers have given them.

        `whole` is the list of all parameters, `own` what this stage has; `rank` is one of
        `num_ranks` that share its layers.
        """
        self._linears = {linear.name: linear for linear in find_held(model, Linear) if linear.name}
        self._own = own
        self._rank = rank
        self._num_ranks = num_ranks
        self._places = {
            part.name: (name, index)
            for name, source in whole.items()
            for index, part in enumerate(source.parts)
        }

    def place(self, pairs: Mapping[str, LowRankPair]) -> list[AdaptedProduct]:
        """What the pairs change of each product that is computed here, which may be nothing.

        Raises: `AdapterUnsupported` for a pair that belongs to nothing, to what takes none, or has
        another shape.
        """
        found: dict[str, dict[int, LowRankPair]] = {}
        for pair in pairs.values():
            name, index = self._find(pair.module)
            if name not in self._own:
                continue  # another stage's, which checks it
            if name not in self._linears:
                kind = _KINDS.get(name.rpartition(".")[2], "no product that takes an adapter")
                raise refuse(f"{quote(pair.module)} is {kind}; these take no adapter")
            _check_shape(pair, self._own[name].parts[index])
            of_product = found.setdefault(name, {})
            if index in of_product:
                raise refuse(f"{quote(pair.module)} is there under two names")
            of_product[index] = pair
        return [self._lay_out(name, found[name]) for name in sorted(found)]

    def _find(self, module: str) -> tuple[str, int]:
        """The parameter and its part. Raises: `AdapterUnsupported`."""
        names = [module + _WEIGHT, module]  # experts of some families are no `.weight`
        if module.startswith(_OUTER_IN_MEMORY):
            names.append(_OUTER + module.removeprefix(_OUTER_IN_MEMORY) + _WEIGHT)
        for name in names:
            if name in self._places:
                return self._places[name]
        raise refuse(f"{quote(module)} is no part of this model")

    def _lay_out(self, name: str, pairs: Mapping[int, LowRankPair]) -> AdaptedProduct:
        """Where the pairs of one product lie in what this rank computes of it."""
        source, linear = self._own[name], self._linears[name]
        placed: list[PlacedPair] = []
        num_outputs, num_joined = 0, 0
        for index, part in enumerate(source.parts):
            share = part.find_share(source.split, self._rank, self._num_ranks)
            outputs = share if source.split is Split.ROWS else None
            inputs = share if source.split is Split.COLUMNS else None
            first = num_outputs
            num_outputs += part.shape[0] if outputs is None else len(outputs)
            pair = pairs.get(index)
            if pair is not None:
                ranks = range(num_joined, num_joined + pair.rank)
                num_joined = ranks.stop
                rows = range(first, num_outputs)
                placed.append(PlacedPair(pair, part, inputs, outputs, rows, ranks))
        last = placed[-1]
        num_inputs = last.part.shape[1] if last.inputs is None else len(last.inputs)
        pieces = _cut_pieces(placed, num_outputs, is_arranged=linear.arrange is not None)
        return AdaptedProduct(linear, tuple(placed), num_inputs, num_outputs, pieces)


def _check_shape(pair: LowRankPair, part: CheckpointTensor) -> None:
    """Raises: `AdapterUnsupported` where a pair's product is of another shape than its matrix."""
    outputs, inputs = pair.b.shape[0], pair.a.shape[1]
    if (outputs, inputs) != part.shape:
        raise refuse(
            f"{quote(pair.module)} is changed by a matrix of shape {[outputs, inputs]}; the "
            f"model's has shape {list(part.shape)}"
        )


def _cut_pieces(
    placed: list[PlacedPair], num_outputs: int, *, is_arranged: bool
) -> tuple[tuple[range, range], ...]:
    """One matrix for all pairs, or one for each. Rows that are yet to be arranged stay together."""
    if is_arranged:
        return ((range(num_outputs), range(placed[-1].ranks.stop)),)
    if placed[-1].ranks.stop > _MOST_JOINED:
        return tuple((one.rows, one.ranks) for one in placed)
    return ((range(placed[0].rows.start, placed[-1].rows.stop), range(placed[-1].ranks.stop)),)
