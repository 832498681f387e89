"""Parameters in fp8 blocks, handed out as they are stored: half the bytes of widened ones.

For devices that multiply them so. A parameter stays in fp8 where layers only multiply with it and
no block is cut: all its tensors have factors, and what a rank holds of each begins and ends with a
block. Its factors are a parameter of their own, called `…_scales`. All others come from `reader`.
Must not know a family. Read next: `gpu_pool.kernels.fp8_blocks`, `packing`.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from gpu_pool.kernels.fp8_blocks import BLOCK
from gpu_pool.models.parameters import (
    CheckpointTensor,
    ParameterSource,
    Split,
    count_parameters,
)
from gpu_pool.models.products import SCALES
from gpu_pool.weights.packing import UnpackedSource
from gpu_pool.weights.reader import JoinParts, ParameterReader

_SCALE_BYTES = 4


class BlockSource(Protocol):
    """What knows which matrices are stored in fp8 blocks."""

    def has_blocks(self, name: str, block_size: tuple[int, int]) -> bool:
        """True for a matrix in fp8 with a factor per block of that size."""
        ...


class BlockReader:
    """Reads parameters of one rank, those in blocks without unpacking them."""

    def __init__(
        self,
        reader: ParameterReader,
        source: UnpackedSource,
        parameters: Mapping[str, ParameterSource],
        *,
        join: JoinParts,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        """`reader` hands out what does not stay in fp8; the others are its parameters, too."""
        self._reader = reader
        self._source = source
        self._kept = list_kept(source, parameters, num_ranks)
        self._join = join
        self._rank = rank
        self._num_ranks = num_ranks
        self._scales: dict[str, list[Tensor]] = {}
        """Factors that were read with their parameter and not asked for yet."""

    def read(self, name: str) -> Tensor:
        """The parameter `name`, in the model's dtype or in fp8; or the factors of one in fp8."""
        stem = name.removesuffix(SCALES)
        if stem != name and stem in self._scales:
            scales = self._scales.pop(stem)
            return self._join(iter(scales), sum(map(len, scales)))
        if name not in self._kept:
            return self._reader.read(name)
        self._scales[name] = []
        return self._join(self._read_parts(name), self._reader.count_rows(name))

    def _read_parts(self, name: str) -> Iterator[Tensor]:
        """What the rank holds of each tensor; its factors are kept for later."""
        kept = self._kept[name]
        for part in kept.parts:
            weight, scales = self._source.read_blocks(part.name)
            share = part.find_share(kept.split, self._rank, self._num_ranks)
            if share is not None:
                blocks = slice(share.start // BLOCK, -(-share.stop // BLOCK))
                inside = slice(share.start, share.stop)
                if kept.split is Split.ROWS:
                    weight, scales = weight[inside].clone(), scales[blocks].clone()
                else:
                    weight, scales = weight[:, inside].clone(), scales[:, blocks].clone()
            self._scales[name].append(scales.float())
            yield weight


def list_kept(
    source: BlockSource, parameters: Mapping[str, ParameterSource], num_ranks: int
) -> dict[str, ParameterSource]:
    """The parameters that stay in fp8."""
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.is_product
        and all(
            source.has_blocks(part.name, (BLOCK, BLOCK)) and _is_whole(part, parameter, num_ranks)
            for part in parameter.parts
        )
    }


def _is_whole(part: CheckpointTensor, parameter: ParameterSource, num_ranks: int) -> bool:
    """True where no block lies on both sides of a cut, between parts or between ranks."""
    share = part.find_share(parameter.split, 0, num_ranks)
    if share is not None and len(share) % BLOCK:
        return False
    is_alone = len(parameter.parts) == 1
    return is_alone or part.shape[0] % BLOCK == 0


def measure_kept(
    source: BlockSource, parameters: Mapping[str, ParameterSource], itemsize: int, num_ranks: int
) -> int:
    """Bytes of all parameters, as each of `num_ranks` holds them; others have `itemsize` bytes."""
    kept = list_kept(source, parameters, num_ranks)
    others = {name: parameters[name] for name in parameters.keys() - kept.keys()}
    num_bytes = count_parameters(others, num_ranks) * itemsize
    for parameter in kept.values():
        for part in parameter.parts:
            num_rows, num_columns = part.shape
            share = part.find_share(parameter.split, 0, num_ranks)
            if share is not None and parameter.split is Split.ROWS:
                num_rows = len(share)
            elif share is not None:
                num_columns = len(share)
            num_scales = -(-num_rows // BLOCK) * -(-num_columns // BLOCK)
            num_bytes += num_rows * num_columns + num_scales * _SCALE_BYTES
    return num_bytes
