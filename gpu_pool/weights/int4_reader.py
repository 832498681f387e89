"""Parameters of four bits a number, handed out as they are stored: a quarter of the bytes of bf16.

For kernels that multiply them so. A parameter stays in four bits where layers only multiply with
it, all its tensors have groups of one size that the kernels read, and no group is cut: not by a
rank's share of columns. Its factors and zeros are parameters of their own, called `…_scales` and
`…_zeros`. All others come from `reader`. Must not know a family. Read next:
`gpu_pool.kernels.int4_groups`, `packing`, `block_reader` (the same for fp8).
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from gpu_pool.models.parameters import ParameterSource, Split, count_parameters
from gpu_pool.models.products import SCALES, ZEROS
from gpu_pool.weights.packing import UnpackedSource
from gpu_pool.weights.reader import JoinParts, ParameterReader

_ENDINGS = (SCALES, ZEROS)


class Int4Kernels(Protocol):
    """What can be multiplied as it is stored."""

    def measure_int4(self, num_outputs: int, num_inputs: int, group_size: int) -> int:
        """Bytes of a packed weight; 0 for groups that are not read."""
        ...


class Int4Reader:
    """Reads parameters of one rank, those of four bits without widening them."""

    def __init__(
        self,
        reader: ParameterReader,
        source: UnpackedSource,
        kept: Mapping[str, ParameterSource],
        *,
        join: JoinParts,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        """`reader` hands out what is not `kept`, which `list_int4` says."""
        self._reader = reader
        self._source = source
        self._kept = kept
        self._join = join
        self._rank = rank
        self._num_ranks = num_ranks
        self._parts: dict[str, list[Tensor]] = {}
        """Factors and zeros that were read with their parameter and not asked for yet."""

    def read(self, name: str) -> Tensor:
        """The parameter `name`, in the model's dtype or, in bytes, two numbers each; or the factors
        or zeros of one of the latter.
        """
        if name in self._parts:
            parts = self._parts.pop(name)
            return self._join(iter(parts), sum(map(len, parts)))
        if name not in self._kept:
            return self._reader.read(name)
        for ending in _ENDINGS:
            self._parts[f"{name}{ending}"] = []
        return self._join(self._read_parts(name), self._reader.count_rows(name))

    def _read_parts(self, name: str) -> Iterator[Tensor]:
        """What the rank holds of each tensor; its factors and zeros are kept for later."""
        kept = self._kept[name]
        for part in kept.parts:
            weight = self._source.read_int4(part.name)
            numbers, group_size = weight.numbers, weight.group_size
            factors = [weight.scales, weight.zeros]
            share = part.find_share(kept.split, self._rank, self._num_ranks)
            if share is not None and kept.split is Split.ROWS:
                inside = slice(share.start, share.stop)
                numbers = numbers[inside].clone()
                factors = [factor[inside].clone() for factor in factors]
            elif share is not None:
                groups = slice(share.start // group_size, share.stop // group_size)
                numbers = numbers[:, share.start // 2 : share.stop // 2].clone()
                factors = [factor[:, groups].clone() for factor in factors]
            for ending, factor in zip(_ENDINGS, factors, strict=True):
                self._parts[f"{name}{ending}"].append(factor)
            yield numbers


def list_int4(
    source: UnpackedSource,
    parameters: Mapping[str, ParameterSource],
    kernels: Int4Kernels,
    num_ranks: int = 1,
) -> dict[str, ParameterSource]:
    """The parameters that stay in four bits."""
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.is_product and _measure(source, parameter, kernels, num_ranks)
    }


def measure_int4(
    source: UnpackedSource,
    parameters: Mapping[str, ParameterSource],
    kernels: Int4Kernels,
    itemsize: int,
    num_ranks: int = 1,
) -> int:
    """Bytes of all parameters, as each of `num_ranks` holds them; others have `itemsize` bytes."""
    kept = list_int4(source, parameters, kernels, num_ranks)
    others = {name: parameters[name] for name in parameters.keys() - kept.keys()}
    return count_parameters(others, num_ranks) * itemsize + sum(
        _measure(source, parameter, kernels, num_ranks) for parameter in kept.values()
    )


def _measure(
    source: UnpackedSource, parameter: ParameterSource, kernels: Int4Kernels, num_ranks: int
) -> int:
    """Bytes of one rank's share in four bits; 0 for a parameter that cannot stay so."""
    sizes = {source.find_group_size(part.name) for part in parameter.parts}
    group_size = sizes.pop()
    if sizes or group_size is None:
        return 0
    num_rows = num_columns = 0
    for part in parameter.parts:
        share = part.find_share(parameter.split, 0, num_ranks)
        is_cut = share is not None and parameter.split is not Split.ROWS
        num_rows += part.shape[0] if share is None or is_cut else len(share)
        num_columns = len(share) if share is not None and is_cut else part.shape[-1]
        if num_columns % group_size:
            return 0
    return kernels.measure_int4(num_rows, num_columns, group_size)
