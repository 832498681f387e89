"""Hands a model its parameters: checks names and shapes first, then reads, fuses and converts.

Must not know a family: it follows the list of sources the family gives.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import ParameterSource, Split
from gpu_pool.weights.packing import TensorSource

PutTensor = Callable[[Tensor], Tensor]
"""The same tensor in its final place."""
_FLOATING = frozenset({"BF16", "F16", "F32"})
_SPLIT_DIMENSIONS = {Split.ROWS: 0, Split.COLUMNS: 1}


class ParameterReader:
    """Reads parameters of one rank by the family's names."""

    def __init__(
        self,
        checkpoint: TensorSource,
        sources: Mapping[str, ParameterSource],
        ignored: frozenset[str],
        *,
        dtype: torch.dtype,
        put: PutTensor,
    ) -> None:
        """Compares the list with the checkpoint's headers; no data is read yet.

        `put` brings parameters to their device.

        Raises: `CheckpointError` naming a tensor that is missing, unexpected, of another shape or
        not floating.
        """
        self._checkpoint = checkpoint
        self._sources = sources
        self._dtype = dtype
        self._put = put
        _check_names(checkpoint, sources, ignored)
        _check_parts(checkpoint, sources)

    def expect_all(self) -> None:
        """Lets the files be read ahead in the order of the list, whole."""
        self._checkpoint.expect(
            part.name for source in self._sources.values() for part in source.parts
        )

    def read(self, name: str, *, rank: int = 0, world_size: int = 1) -> Tensor:
        """The parameter `name`, or what `rank` of `world_size` holds of it."""
        source = self._sources[name]
        parts = [
            self._read_shard(part.name, source.split, rank, world_size) for part in source.parts
        ]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._put(whole.to(self._dtype))

    def _read_shard(self, name: str, split: Split, rank: int, world_size: int) -> Tensor:
        """A rank's even share of a checkpoint tensor; of rows no other bytes are read."""
        if split is Split.WHOLE or world_size == 1:
            return self._checkpoint.read(name)
        dimension = _SPLIT_DIMENSIONS[split]
        size = self._checkpoint.shapes[name][dimension]
        assert size % world_size == 0, "the tensor does not divide among ranks"
        share = size // world_size
        if split is Split.ROWS:
            return self._checkpoint.read_rows(name, rank * share, (rank + 1) * share)
        return self._checkpoint.read(name).narrow(dimension, rank * share, share).clone()


def _check_names(
    checkpoint: TensorSource, sources: Mapping[str, ParameterSource], ignored: frozenset[str]
) -> None:
    """Raises for tensors that are missing or unexpected."""
    needed = {part.name for source in sources.values() for part in source.parts}
    present = checkpoint.shapes.keys()
    if missing := sorted(needed - present):
        raise CheckpointError(f"The checkpoint lacks {_join(missing)}.")
    groups = tuple(name for name in ignored if name.endswith("."))
    others = present - needed - ignored
    if unexpected := sorted(name for name in others if not name.startswith(groups)):
        raise CheckpointError(f"The checkpoint holds unexpected {_join(unexpected)}.")


def _check_parts(checkpoint: TensorSource, sources: Mapping[str, ParameterSource]) -> None:
    """Raises for tensors of another shape or of a dtype that cannot be computed with."""
    shapes, dtypes = checkpoint.shapes, checkpoint.dtypes
    for source in sources.values():
        for part in source.parts:
            if shapes[part.name] != part.shape:
                raise CheckpointError(
                    f"Tensor `{part.name}` has shape {list(shapes[part.name])}; "
                    f"config.json asks for {list(part.shape)}."
                )
            if dtypes[part.name] not in _FLOATING:
                raise CheckpointError(
                    f"Tensor `{part.name}` is {dtypes[part.name]}; only bf16, fp16 and fp32."
                )


def _join(names: list[str]) -> str:
    """The first few names as text."""
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
