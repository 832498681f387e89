"""Hands a model its parameters: checks names and shapes first, then reads, fuses and converts.

Must not know a family: it follows the list of sources the family gives.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.weights.formats.pieces import TensorSource

JoinParts = Callable[[Iterator[Tensor], int], Tensor]
"""Parts whose rows, so many in all, stand below each other: one tensor in its final place."""
_FLOATING = frozenset({"BF16", "F16", "F32"})


class ParameterReader:
    """Reads parameters of one rank by the family's names."""

    def __init__(
        self,
        checkpoint: TensorSource,
        sources: Mapping[str, ParameterSource],
        ignored: frozenset[str],
        *,
        dtype: torch.dtype,
        join: JoinParts,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        """Compares the list with the checkpoint's headers; no data is read yet.

        `join` brings parameters to their device. `rank` is one of `num_ranks` that share layers.

        Raises: `CheckpointError` naming a tensor that is missing, unexpected, of another shape or
        not floating.
        """
        self._checkpoint = checkpoint
        self._sources = sources
        self._dtype = dtype
        self._join = join
        self._rank = rank
        self._num_ranks = num_ranks
        _check_names(checkpoint, sources, ignored)
        _check_parts(checkpoint, sources)

    def expect_all(self) -> None:
        """Lets the files be read ahead in the order of the list: what the rank holds of them, and
        each tensor once.
        """
        expected: set[str] = set()
        for source in self._sources.values():
            for part in source.parts:
                if part.name in expected or (source.split is Split.FIRST and self._rank):
                    continue
                expected.add(part.name)
                share = part.find_share(source.split, self._rank, self._num_ranks)
                if share is not None and source.split is Split.ROWS:
                    self._checkpoint.expect_rows(part.name, share.start, share.stop)
                else:
                    self._checkpoint.expect([part.name])

    def read(self, name: str) -> Tensor:
        """The parameter `name`, or what the rank holds of it."""
        source = self._sources[name]
        parts = (self._read_part(part, source.split) for part in source.parts)
        return self._join(parts, self.count_rows(name))

    def count_rows(self, name: str) -> int:
        """The rows that the rank holds of a parameter."""
        source = self._sources[name]
        shares = [
            part.find_share(source.split, self._rank, self._num_ranks) for part in source.parts
        ]
        return sum(
            part.shape[0] if share is None or source.split is not Split.ROWS else len(share)
            for part, share in zip(source.parts, shares, strict=True)
        )

    def _read_part(self, part: CheckpointTensor, split: Split) -> Tensor:
        """The rank's share in the order and dtype that the model computes with."""
        share = self._read_share(part, split).to(self._dtype)
        return share if part.arrange is None else part.arrange(share).contiguous()

    def _read_share(self, part: CheckpointTensor, split: Split) -> Tensor:
        """The rank's share of a checkpoint tensor. Of rows no other bytes are read; columns lie
        scattered over the file, so they are cut from the whole.
        """
        if split is Split.FIRST and self._rank:
            return torch.zeros(part.shape)
        share = part.find_share(split, self._rank, self._num_ranks)
        if share is None:
            return self._checkpoint.read(part.name)
        if split is Split.ROWS:
            return self._checkpoint.read_rows(part.name, share.start, share.stop)
        return self._checkpoint.read(part.name)[..., share.start : share.stop].clone()


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
