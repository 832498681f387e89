"""Matrices of eight bits a number with factors beside them: fp8 in its three kinds, and int8.

A factor is for the whole tensor, for a row (channel) or for a block; activations' factors are for
who computes in eight bits, and are left unread. Source: checkpoints of DeepSeek-V3 (blocks), of
FBGEMM (rows) and of AutoFP8 (whole tensors).
"""

from collections.abc import Collection
from functools import partial
from typing import Any, Final

import msgspec

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.pieces import (
    FLOATS,
    FP8,
    FindPacked,
    FoundTensors,
    PackedTensor,
    TensorHeaders,
    TensorSource,
    convert_config,
    refuse,
)
from gpu_pool.weights.unpacking import unpack_block_fp8, unpack_rows

CALIBRATION: Final = frozenset(
    {
        "input_scale",
        "input_scale_ub",
        "input_zero_point",
        "output_scale",
        "output_zero_point",
        "q_scale",
        "q_zero_point",
        "k_scale",
        "k_zero_point",
        "v_scale",
        "v_zero_point",
    }
)
"""Factors of activations and of KV memory: the last parts of their names."""


class _Fp8Json(msgspec.Struct, frozen=True):
    """The fields of methods `fp8` and `fbgemm_fp8` that matter."""

    weight_block_size: tuple[int, int] | None = None


def read_fp8(config: Any) -> FindPacked:
    """What finds weights of method `fp8`. Raises: `CheckpointError`."""
    block_size = convert_config(config, _Fp8Json).weight_block_size
    if block_size is None:
        return find_scaled
    if min(block_size) < 1:
        raise refuse(f"weight_block_size {list(block_size)} is none")
    return partial(find_block_fp8, block_size=block_size)


def find_block_fp8(source: TensorSource, block_size: tuple[int, int]) -> FoundTensors:
    """Matrices with a `…_scale_inv` beside them, which has a factor per block."""
    headers, found = TensorHeaders(source), dict[str, PackedTensor]()
    for name, shape in headers.shapes.items():
        scales = f"{name}_scale_inv"
        if scales in headers.shapes and len(shape) == 2:
            found[name] = describe_blocks(headers, name, scales, block_size)
    return FoundTensors(found, list_calibration(headers))


def find_scaled(source: TensorSource) -> FoundTensors:
    """Matrices with a `…_scale` beside them, which is one number or one for each row."""
    headers = TensorHeaders(source)
    found = {
        name: describe_rows(headers, name, FP8)
        for name, shape in headers.shapes.items()
        if f"{name}_scale" in headers.shapes and len(shape) == 2
    }
    return FoundTensors(found, list_calibration(headers))


def list_calibration(headers: TensorHeaders) -> frozenset[str]:
    """The tensors that only who computes in eight bits needs."""
    return frozenset(name for name in headers.shapes if name.rpartition(".")[2] in CALIBRATION)


def describe_blocks(
    headers: TensorHeaders, name: str, scales: str, block_size: tuple[int, int]
) -> PackedTensor:
    """A matrix in fp8 with a factor per block. Raises: `CheckpointError`."""
    shape = headers.shapes[name]
    counts = (-(-shape[0] // block_size[0]), -(-shape[1] // block_size[1]))
    headers.require(scales, counts, FLOATS)
    headers.require(name, shape, FP8)
    unpack = partial(unpack_block_fp8, block_size=block_size)
    return PackedTensor(shape, (name, scales), unpack, block_size)


def describe_rows(headers: TensorHeaders, name: str, dtypes: Collection[str]) -> PackedTensor:
    """A matrix with a factor for all of it, or for each row. Raises: `CheckpointError`."""
    shape, scales = headers.shapes[name], f"{name}_scale"
    fitting = ((), (1,), (1, 1), (shape[0],), (shape[0], 1))
    if headers.shapes[scales] not in fitting:
        raise CheckpointError(
            f"The checkpoint lacks `{scales}` with a factor for `{name}`, of shape {list(shape)}, "
            "or for each of its rows."
        )
    headers.require(scales, headers.shapes[scales], FLOATS)
    headers.require(name, shape, dtypes)
    return PackedTensor(shape, (name, scales), unpack_rows)
