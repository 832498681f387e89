"""MXFP4, as gpt-oss has its experts: `…_blocks` and `…_scales`."""

from typing import Final

from gpu_pool.weights.formats.pieces import (
    BYTES,
    FoundTensors,
    PackedTensor,
    TensorHeaders,
    TensorSource,
)
from gpu_pool.weights.unpacking import unpack_mxfp4

_NUMBERS_PER_BYTE: Final = 2


def find_mxfp4(source: TensorSource) -> FoundTensors:
    """Rows are outputs in the file and columns here."""
    headers, found = TensorHeaders(source), dict[str, PackedTensor]()
    for name, shape in headers.shapes.items():
        stem = name.removesuffix("_blocks")
        if stem != name and len(shape) == 4:
            num_inputs = shape[2] * shape[3] * _NUMBERS_PER_BYTE
            pieces = (name, f"{stem}_scales")
            headers.require(pieces[1], shape[:3], BYTES)
            headers.require(name, shape, BYTES)
            found[stem] = PackedTensor((shape[0], num_inputs, shape[1]), pieces, unpack_mxfp4)
    return FoundTensors(found)
