"""Safetensors folders, well-formed and not."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.checkpoint import Checkpoint

TENSOR: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write_raw(folder: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    """A file with any header and a declared length."""
    declared = struct.pack("<Q", len(header) if length is None else length)
    (folder / "model.safetensors").write_bytes(declared + header + data)


def write_index(folder: Path, weight_map: Any) -> None:
    """An index over shards."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file_is_read(tmp_path: Path) -> None:
    saved = {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16()}
    save_file(saved, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.shapes == {"a": (3, 4), "b": (5,)}
        assert checkpoint.dtypes == {"a": "F32", "b": "BF16"}
        read = {name: checkpoint.read(name) for name in saved}
    for name, tensor in saved.items():
        assert torch.equal(read[name], tensor)


def test_several_files_behind_an_index_are_one_checkpoint(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.shapes == {"a": (2,), "b": (3,)}
        assert checkpoint.read("b").shape == (3,)


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({"b": TENSOR | {"data_offsets": [4, 12]}}, bytes(12)),
        ({"b": TENSOR | {"data_offsets": [16, 24]}}, bytes(24)),
        ({}, bytes(4)),
        ({}, bytes(16)),
        ({"a": TENSOR | {"data_offsets": [8, 0]}}, bytes(8)),
        ({"a": TENSOR | {"shape": [3]}}, bytes(8)),
        ({"a": TENSOR | {"shape": [2**62, 4]}}, bytes(8)),
        ({"a": TENSOR | {"dtype": "F99"}}, bytes(8)),
        ({"a": TENSOR | {"shape": [-2]}}, bytes(8)),
    ],
    ids=[
        "overlap",
        "hole",
        "beyond the end",
        "left over",
        "backwards",
        "wrong size",
        "overflow",
        "unknown dtype",
        "negative",
    ],
)
def test_a_header_that_does_not_fit_its_data_is_refused(
    tmp_path: Path, changes: dict[str, Any], data: bytes
) -> None:
    write_raw(tmp_path, json.dumps({"a": TENSOR} | changes).encode(), data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("header", "length"),
    [(b"[1, 2", None), (b'{"a": 1}', None), (b"{}", 2**40), (b"{}", 100), (b"\xff\xfe", None)],
)
def test_a_header_that_is_none_is_refused(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    write_raw(tmp_path, header, b"", length)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 5])
def test_a_truncated_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


def test_a_folder_of_pickles_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/one.safetensors"])
def test_an_index_cannot_point_outside_the_folder(tmp_path: Path, name: str) -> None:
    write_index(tmp_path, {"a": name})
    with pytest.raises(CheckpointError, match="outside the folder"):
        Checkpoint(tmp_path)


def test_an_index_must_tell_the_truth(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(CheckpointError, match="`b` is not in"):
        Checkpoint(tmp_path)
    write_index(tmp_path, {"a": "missing.safetensors"})
    with pytest.raises(CheckpointError, match="does not exist"):
        Checkpoint(tmp_path)
    write_index(tmp_path, ["a"])
    with pytest.raises(CheckpointError, match="index"):
        Checkpoint(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"a": torch.ones(2), "b": torch.ones(1)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(CheckpointError, match="another file"):
        Checkpoint(tmp_path)
