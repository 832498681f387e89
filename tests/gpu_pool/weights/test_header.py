"""Headers: whatever the format's own library refuses is refused, and nothing else breaks."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.header import ITEM_BYTES, read_header

NUMBERS = st.integers(-2, 40) | st.sampled_from([2**31, 2**63, 2**64, 2**65])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*ITEM_BYTES, "F4", "bf16", ""]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2),
    }
)
JUNK = st.recursive(st.none() | NUMBERS | st.text(max_size=3), st.lists)
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__"]), ENTRIES | JUNK)


def write(path: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    declared = struct.pack("<Q", len(header) if length is None else length)
    path.write_bytes(declared + header + data)


def is_taken_by_the_library(path: Path) -> bool:
    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError):
        return False


def is_taken(path: Path) -> bool:
    try:
        header = read_header(path)
    except CheckpointError:
        return False
    ends = [entry.offset + entry.num_bytes for entry in header.tensors.values()]
    assert not ends or max(ends) == header.num_bytes
    return True


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(header=HEADERS, num_bytes=st.integers(0, 40))
def test_what_the_library_refuses_is_refused(
    tmp_path: Path, header: dict[str, Any], num_bytes: int
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, json.dumps(header).encode(), bytes(num_bytes))
    if is_taken(path):
        assert is_taken_by_the_library(path)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=60), length=st.integers(0, 2**64 - 1) | st.integers(0, 60))
def test_bytes_without_sense_are_refused_in_one_sentence(
    tmp_path: Path, content: bytes, length: int
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, content, b"", length)
    if is_taken(path):
        assert is_taken_by_the_library(path)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tensors=st.lists(
        st.tuples(
            st.sampled_from(["F32", "BF16", "U8", "I64"]), st.lists(st.integers(0, 3), max_size=8)
        ),
        max_size=5,
    )
)
def test_every_sound_header_is_taken(tmp_path: Path, tensors: list[tuple[str, list[int]]]) -> None:
    path, header, offset = tmp_path / "model.safetensors", dict[str, Any](), 0
    for number, (dtype, shape) in enumerate(tensors):
        size = ITEM_BYTES[dtype]
        for dimension in shape:
            size *= dimension
        offsets = [offset, offset + size]
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        offset += size
    write(path, json.dumps(header).encode(), bytes(offset))
    assert {name: list(entry.shape) for name, entry in read_header(path).tensors.items()} == {
        name: item["shape"] for name, item in header.items()
    }


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_a_header_of_nested_lists_is_refused(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "model.safetensors"
    write(path, b'{"a":' + b"[" * depth + b"]" * depth + b"}", b"")
    assert not is_taken(path)
