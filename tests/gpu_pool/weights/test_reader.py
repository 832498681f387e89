"""Parameters: names, shapes, fusing and shards."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.reader import ParameterReader
from gpu_pool.worker.model_memory import CpuPlaces

SOURCES = {
    "fused": ParameterSource(
        (CheckpointTensor("up", (4, 6)), CheckpointTensor("gate", (2, 6))), Split.ROWS
    ),
    "down": ParameterSource((CheckpointTensor("down", (6, 4)),), Split.COLUMNS),
    "norm": ParameterSource((CheckpointTensor("norm", (6,)),), Split.WHOLE),
    "bias": ParameterSource((CheckpointTensor("bias", (6,)),), Split.FIRST),
    "keys": ParameterSource((CheckpointTensor("keys", (2, 6), num_heads=1),), Split.ROWS),
}
SAVED = {
    "up": torch.arange(24.0).view(4, 6),
    "gate": -torch.arange(12.0).view(2, 6),
    "down": torch.arange(24.0).view(6, 4),
    "norm": torch.ones(6),
    "bias": torch.arange(6.0),
    "keys": torch.arange(12.0).view(2, 6),
}


def open_reader(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
    *,
    rank: int = 0,
    num_ranks: int = 1,
) -> ParameterReader:
    """A reader over these tensors."""
    save_file(tensors, folder / "model.safetensors")
    return ParameterReader(
        Checkpoint(folder),
        SOURCES,
        frozenset({"unused"}),
        dtype=dtype,
        join=CpuPlaces().join,
        rank=rank,
        num_ranks=num_ranks,
    )


def test_parts_are_stacked_in_order(tmp_path: Path) -> None:
    fused = open_reader(tmp_path, SAVED).read("fused")
    assert torch.equal(fused, torch.cat((SAVED["up"], SAVED["gate"])))


def test_parameters_come_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in SAVED.items()}
    assert open_reader(tmp_path, halves, torch.bfloat16).read("down").dtype == torch.bfloat16


def test_parameters_outlive_the_file(tmp_path: Path) -> None:
    norm = open_reader(tmp_path, SAVED).read("norm")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert norm.sum() == 6


def test_shards_divide_each_part_and_together_are_the_whole(tmp_path: Path) -> None:
    readers = [open_reader(tmp_path, SAVED, rank=rank, num_ranks=2) for rank in (0, 1)]
    for reader in readers:
        reader.expect_all()
    rows = [reader.read("fused") for reader in readers]
    assert torch.equal(rows[0], torch.cat((SAVED["up"][:2], SAVED["gate"][:1])))
    assert torch.equal(rows[1], torch.cat((SAVED["up"][2:], SAVED["gate"][1:])))
    columns = [reader.read("down") for reader in readers]
    assert torch.equal(torch.cat(columns, 1), SAVED["down"])
    assert readers[1].read("norm").shape == (6,)
    assert torch.equal(readers[0].read("bias"), SAVED["bias"])
    assert torch.equal(readers[1].read("bias"), torch.zeros(6))


def test_more_ranks_than_heads_have_copies(tmp_path: Path) -> None:
    readers = [open_reader(tmp_path, SAVED, rank=rank, num_ranks=2) for rank in (0, 1)]
    keys = [reader.read("keys") for reader in readers]
    assert torch.equal(keys[0], SAVED["keys"])
    assert torch.equal(keys[1], SAVED["keys"])


def test_a_rank_reads_no_rows_but_its_own(tmp_path: Path) -> None:
    asked: list[tuple[str, int, int]] = []

    class Watched(Checkpoint):
        """Notes what is read of a file."""

        def read(self, name: str) -> torch.Tensor:
            asked.append((name, 0, self.shapes[name][0]))
            return super().read(name)

        def read_rows(self, name: str, first: int, end: int) -> torch.Tensor:
            asked.append((name, first, end))
            return super().read_rows(name, first, end)

    save_file(SAVED, tmp_path / "model.safetensors")
    reader = ParameterReader(
        Watched(tmp_path),
        SOURCES,
        frozenset(),
        dtype=torch.float32,
        join=CpuPlaces().join,
        rank=1,
        num_ranks=2,
    )
    for name in ("fused", "bias"):
        reader.read(name)
    assert asked == [("up", 2, 4), ("gate", 1, 2)]  # and nothing of the bias


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="lacks `gate`"):
        open_reader(tmp_path, {name: SAVED[name] for name in SAVED.keys() - {"gate"}})


def test_an_unexpected_tensor_is_named_unless_it_is_known_to_be_useless(tmp_path: Path) -> None:
    open_reader(tmp_path, SAVED | {"unused": torch.ones(1)})
    with pytest.raises(CheckpointError, match="unexpected `stray`"):
        open_reader(tmp_path, SAVED | {"stray": torch.ones(1)})


def test_many_names_are_cut_short(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="and 3 more"):
        open_reader(tmp_path, {"unused": torch.ones(1)})


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"`norm` has shape \[7\].*\[6\]"):
        open_reader(tmp_path, SAVED | {"norm": torch.ones(7)})


def test_a_quantised_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="`norm` is I8"):
        open_reader(tmp_path, SAVED | {"norm": torch.ones(6, dtype=torch.int8)})
