"""Parameters that stay in fp8 blocks: which do, what ranks hold of them, what they take."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_pool.kernels.fp8_blocks import FP8, BlockScaledWeight, widen_blocks_reference
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.weights.block_reader import BlockReader, list_kept, measure_kept
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.packing import UnpackedSource, read_packing
from gpu_pool.weights.reader import ParameterReader
from gpu_pool.worker.model_memory import CpuPlaces

FP8_CONFIG = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SHAPES = {
    "q": (256, 300),
    "k": (128, 300),
    "down": (200, 512),
    "odd": (192, 300),
    "plain": (128, 128),
}


def create_source(
    *parts: str, split: Split = Split.ROWS, is_product: bool = True
) -> ParameterSource:
    """A parameter of these tensors."""
    return ParameterSource(
        tuple([CheckpointTensor(part, SHAPES[part]) for part in parts]), split, is_product
    )


PARAMETERS = {
    "qk": create_source("q", "k"),
    "down": create_source("down", split=Split.COLUMNS),
    "half": create_source("q"),
    "turned": create_source("q", is_product=False),
    "cut": create_source("odd", "k"),
    "plain": create_source("plain"),
}


def open_source(folder: Path) -> UnpackedSource:
    """All tensors in fp8 with factors, but the plain one."""
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    for name, shape in SHAPES.items():
        tensors[name] = torch.randn(shape, generator=generator)
        if name != "plain":
            tensors[name] = tensors[name].to(FP8)
            blocks = (-(-shape[0] // 128), -(-shape[1] // 128))
            tensors[f"{name}_scale_inv"] = torch.rand(blocks, generator=generator) + 0.5
    save_file(tensors, folder / "model.safetensors")
    return UnpackedSource(Checkpoint(folder), read_packing(FP8_CONFIG))


def open_readers(folder: Path, rank: int, num_ranks: int) -> tuple[BlockReader, ParameterReader]:
    """One that keeps blocks, and one that widens all."""
    source, join = open_source(folder), CpuPlaces().join
    widening = ParameterReader(
        source,
        PARAMETERS,
        frozenset(),
        dtype=torch.float32,
        join=join,
        rank=rank,
        num_ranks=num_ranks,
    )
    keeping = BlockReader(widening, source, PARAMETERS, join=join, rank=rank, num_ranks=num_ranks)
    return keeping, widening


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (1, 2)])
def test_what_stays_in_blocks_stands_for_the_same_numbers(
    rank: int, num_ranks: int, tmp_path: Path
) -> None:
    # The second rank's half of the keys would begin inside a block.
    kept = {"qk", "down", "half"} if num_ranks == 1 else {"down", "half"}
    keeping, widening = open_readers(tmp_path, rank, num_ranks)
    for name in PARAMETERS:
        found, expected = keeping.read(name), widening.read(name)
        if name in kept:
            assert found.dtype == FP8
            found = widen_blocks_reference(BlockScaledWeight(found, keeping.read(f"{name}_scales")))
        assert torch.equal(found, expected)


def test_what_is_kept_is_measured_by_its_bytes(tmp_path: Path) -> None:
    source = open_source(tmp_path)
    kept = list_kept(source, PARAMETERS, 1)
    assert kept.keys() == {"qk", "down", "half"}
    in_blocks = 384 * 300 + 9 * 4 + 200 * 512 + 8 * 4 + 256 * 300 + 6 * 4
    widened = 2 * (256 * 300 + 192 * 300 + 128 * 300 + 128 * 128)
    assert measure_kept(source, PARAMETERS, 2, 1) == in_blocks + widened
