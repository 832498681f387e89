"""Writes checkpoints whose values look like weights, as fast as the drive takes them.

Read next: `shapes`.
"""

import json
import struct
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.gpu.random_network import SPREAD, RandomSource
from benchmarks.gpu.shapes import Shapes, describe_network, write_config

_NOISE_BYTES: Final = 64 << 20
_ITEM_BYTES: Final = torch.bfloat16.itemsize


def write_random_checkpoint(folder: Path, shapes: Shapes, context_window: int) -> int:
    """`config.json` and one safetensors file; returns the bytes of its tensors.

    The same noise again and again: no reader can tell, and making it takes no time.
    """
    write_config(folder, shapes, context_window)
    network = describe_network(shapes, context_window)
    sizes = RandomSource(network, torch.bfloat16, torch.device("cpu")).shapes
    entries: dict[str, Any] = {}
    end = 0
    for name, shape in sizes.items():
        start, end = end, end + count_bytes(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    noise, ones = _draw_noise(), _to_bytes(torch.ones(1 << 16, dtype=torch.bfloat16))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for shape in sizes.values():
            piece = ones if len(shape) == 1 else noise
            left = count_bytes(shape)
            while left:
                left -= file.write(piece[: min(left, len(piece))])
    return end


def count_bytes(shape: tuple[int, ...]) -> int:
    """What a bf16 tensor takes."""
    return torch.Size(shape).numel() * _ITEM_BYTES


def _draw_noise() -> memoryview:
    """Normal numbers in bf16."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.empty(_NOISE_BYTES // _ITEM_BYTES, dtype=torch.bfloat16)
    return _to_bytes(noise.normal_(0, SPREAD, generator=generator))


def _to_bytes(tensor: Tensor) -> memoryview:
    """The memory of a tensor."""
    return tensor.view(torch.uint8).numpy().data
