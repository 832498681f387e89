"""What launch settings depend on: a GPU's generation, its processors, their shared memory.

Read next: any kernel's `choose_…_launch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

_SHARED_KIB = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 120: 99, 121: 99}
_NEWEST = 90


@dataclass(frozen=True, slots=True)
class GpuTraits:
    """`capability` as in sm_90; `shared_bytes` is what one program may take."""

    capability: int
    num_processors: int
    shared_bytes: int


def get_traits(capability: int, num_processors: int) -> GpuTraits:
    """The traits of a generation; of one that is not known, those of the newest that is."""
    return GpuTraits(
        capability, num_processors, _SHARED_KIB.get(capability, _SHARED_KIB[_NEWEST]) << 10
    )


@cache
def find_traits(device: torch.device) -> GpuTraits:
    """The traits of `device`; a CPU's, which interprets kernels, are of a small newest GPU."""
    if device.type != "cuda":
        return get_traits(_NEWEST, 2)
    properties = torch.cuda.get_device_properties(device)
    return get_traits(properties.major * 10 + properties.minor, properties.multi_processor_count)
