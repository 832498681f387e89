"""AWQ in its version gemm: `qweight`, `qzeros` and `scales` of a module stand for its `weight`.

Words hold eight neighbouring outputs of one input, first the even ones. Source: AutoAWQ 0.2.9,
`utils/packing_utils.py` and `modules/linear/gemm.py`.
"""

from functools import partial
from typing import Any, Final

import msgspec

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.pieces import (
    FLOATS,
    WORD_BITS,
    WORDS,
    FindPacked,
    FoundTensors,
    PackedTensor,
    TensorHeaders,
    TensorSource,
    convert_config,
    read_group_size,
    refuse,
)
from gpu_pool.weights.int_words import gather_awq, unpack_awq

_PER_WORD: Final = WORD_BITS // 4


class _AwqJson(msgspec.Struct, frozen=True):
    """The fields of method `awq` that change what numbers mean."""

    bits: int = 4
    group_size: int = 128
    zero_point: bool = True
    version: str | None = None
    format: str | None = None
    backend: str | None = None


def read_awq(config: Any) -> FindPacked:
    """What finds weights of method `awq`. Raises: `CheckpointError`."""
    json = convert_config(config, _AwqJson)
    version = (json.version or json.format or "gemm").lower()
    if json.backend == "llm-awq":
        version = json.backend
    if version != "gemm":
        raise refuse(f"awq's version {version} is not supported, only gemm")
    if json.bits != 4 or not json.zero_point:
        zeros = "with" if json.zero_point else "without"
        raise refuse(f"awq of {json.bits} bits {zeros} zero points is not supported")
    return partial(find_awq, group_size=read_group_size(json.group_size))


def find_awq(source: TensorSource, group_size: int | None) -> FoundTensors:
    """The weights of modules with a `qweight`."""
    headers, found = TensorHeaders(source), dict[str, PackedTensor]()
    for name, shape in headers.shapes.items():
        module = name.removesuffix(".qweight")
        if module == name or len(shape) != 2:
            continue
        weight, num_inputs, num_outputs = f"{module}.weight", shape[0], shape[1] * _PER_WORD
        size = headers.require_groups(weight, num_inputs, group_size)
        num_groups = num_inputs // size
        if num_inputs % 2:
            raise CheckpointError(f"The inputs of `{weight}` are {num_inputs}, no even number.")
        pieces = (name, f"{module}.qzeros", f"{module}.scales")
        headers.require(name, shape, WORDS)
        headers.require(pieces[1], (num_groups, shape[1]), WORDS)
        headers.require(pieces[2], (num_groups, num_outputs), FLOATS)
        found[weight] = PackedTensor(
            (num_outputs, num_inputs), pieces, unpack_awq, to_int4=gather_awq, group_size=size
        )
    return FoundTensors(found)
