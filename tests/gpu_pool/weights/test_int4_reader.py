"""Parameters that stay in four bits: which do, what ranks hold of them, what they take."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_pool.kernels.int4_groups import Int4Weight, widen_int4
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.int4_reader import Int4Reader, list_int4, measure_int4
from gpu_pool.weights.packing import UnpackedSource, read_packing
from gpu_pool.weights.reader import ParameterReader
from gpu_pool.worker.model_memory import CpuPlaces
from tests.gpu_pool.weights.formats.packers import FORMATS

SHAPES = {"q": (96, 128), "k": (32, 128), "down": (40, 192), "wide": (64, 96), "plain": (32, 128)}


class Kernels:
    """Read groups of 32, and say that a number takes half a byte."""

    def measure_int4(self, num_outputs: int, num_inputs: int, group_size: int) -> int:
        return num_outputs * num_inputs // 2 if group_size == 32 else 0


class NoKernels:
    """Read groups of another size."""

    def measure_int4(self, num_outputs: int, num_inputs: int, group_size: int) -> int:
        del num_outputs, num_inputs, group_size
        return 0


def create_source(
    *parts: str, split: Split = Split.ROWS, is_product: bool = True
) -> ParameterSource:
    """A parameter of these tensors."""
    tensors = [CheckpointTensor(f"{part}.weight", SHAPES[part]) for part in parts]
    return ParameterSource(tuple(tensors), split, is_product)


PARAMETERS = {
    "qk": create_source("q", "k"),
    "down": create_source("down", split=Split.COLUMNS),
    "wide": create_source("wide", split=Split.COLUMNS),
    "whole": create_source("q", split=Split.WHOLE),
    "turned": create_source("q", is_product=False),
    "mixed": create_source("q", "plain"),
    "plain": create_source("plain"),
}
KEPT = {"qk", "down", "wide", "whole"}


def open_source(folder: Path) -> UnpackedSource:
    """All tensors in four bits, but the plain one."""
    config, pack = FORMATS["awq"]
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    for name, shape in SHAPES.items():
        weight = torch.randn(shape, generator=generator)
        pieces = {"weight": weight} if name == "plain" else pack(weight).tensors
        tensors |= {f"{name}.{ending}": piece for ending, piece in pieces.items()}
    save_file(tensors, folder / "model.safetensors")
    return UnpackedSource(Checkpoint(folder), read_packing(config))


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (1, 2)])
def test_what_stays_in_four_bits_stands_for_the_same_numbers(
    rank: int, num_ranks: int, tmp_path: Path
) -> None:
    # The second rank's columns of `wide` would begin inside a group.
    kept = KEPT if num_ranks == 1 else KEPT - {"wide"}
    source, join = open_source(tmp_path), CpuPlaces().join
    widening = ParameterReader(
        source,
        PARAMETERS,
        frozenset(),
        dtype=torch.float32,
        join=join,
        rank=rank,
        num_ranks=num_ranks,
    )
    listed = list_int4(source, PARAMETERS, Kernels(), num_ranks)
    assert listed.keys() == kept
    keeping = Int4Reader(widening, source, listed, join=join, rank=rank, num_ranks=num_ranks)
    for name in PARAMETERS:
        found, expected = keeping.read(name), widening.read(name)
        if name in kept:
            assert found.dtype == torch.uint8
            factors = keeping.read(f"{name}_scales"), keeping.read(f"{name}_zeros")
            found = widen_int4(Int4Weight(found, *factors))
        assert torch.equal(found, expected)


def test_what_is_kept_is_measured_as_it_is_packed(tmp_path: Path) -> None:
    source = open_source(tmp_path)
    kept = 128 * 128 + 40 * 192 + 64 * 96 + 96 * 128
    widened = 96 * 128 + 128 * 128 + 32 * 128
    assert measure_int4(source, PARAMETERS, Kernels(), 2) == kept // 2 + 2 * widened
    assert measure_int4(source, PARAMETERS, NoKernels(), 2) == 2 * (kept + widened)
    assert not list_int4(source, PARAMETERS, NoKernels())
