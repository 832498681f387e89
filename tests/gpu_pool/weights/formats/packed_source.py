"""One packed module as a checkpoint, and the questions that all formats' tests ask of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_pool.kernels.int4_groups import widen_int4
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.packing import UnpackedSource, read_packing
from tests.gpu_pool.weights.formats.packers import Packed


def open_packed(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> UnpackedSource:
    """A source over a checkpoint in which a module `a` has these tensors."""
    save_file({f"a.{end}": piece for end, piece in tensors.items()}, folder / "model.safetensors")
    return UnpackedSource(Checkpoint(folder), read_packing(config))


def check_weight(source: UnpackedSource, packed: Packed, group_size: int | None) -> None:
    """What is read is what the loops worked out, as floats and, with a group size, as int4."""
    assert source.shapes["a.weight"] == tuple(packed.weight.shape)
    assert torch.equal(source.read("a.weight"), packed.weight)
    assert torch.equal(source.read_rows("a.weight", 2, 5), packed.weight[2:5])
    assert source.has_int4("a.weight") is (group_size is not None)
    assert source.find_group_size("a.weight") == group_size
    assert not source.has_int4("a.bias")
    if group_size is not None:
        weight = source.read_int4("a.weight")
        assert weight.numbers.dtype == weight.zeros.dtype == torch.uint8
        assert weight.scales.dtype == torch.float32
        for part in (weight.numbers, weight.zeros, weight.scales):
            assert part.is_contiguous()
        assert weight.group_size == group_size
        assert torch.equal(widen_int4(weight), packed.weight)


def check_refused(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor | None], reason: str
) -> None:
    """Pieces that do not fit are refused before anything is read; None: it is left out."""
    present = {end: piece for end, piece in tensors.items() if piece is not None}
    with pytest.raises(CheckpointError, match=reason):
        open_packed(folder, config, present)


def create_weight(num_outputs: int = 16, num_inputs: int = 64) -> Tensor:
    """Numbers of both signs, some rows of large ones."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(num_outputs, num_inputs, generator=generator)
    return weight * torch.rand(num_outputs, 1, generator=generator).add(0.1)
