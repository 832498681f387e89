"""Which products of few rows our kernel serves instead of cuBLAS, by GPU, rows and shape.

Shapes are those of Qwen3-0.6B, -4B and -8B and of Llama-3.1-8B. Entries of generations that are not
in `measured` are reasoned: reading the weight bounds the time, so ours should win with one row or
two, where it reads in long stretches and computes nothing else, and up to sixteen where cuBLAS's
tiles of 128 outputs leave processors idle. They wait for a GPU: until then cuBLAS serves them.
`python -m benchmarks.gpu --only small-linear` prints this table anew from measurements.
Read next: `small_linear`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpu_pool.kernels.gpu_traits import GpuTraits
from gpu_pool.kernels.triton_language import next_power_of_2

Shape = tuple[int, int, int]
"""Generation as in sm_90, outputs, inputs."""


@dataclass(frozen=True, slots=True)
class SmallLinearTable:
    """Where ours is faster."""

    measured: frozenset[int]
    """Generations whose entries were measured."""
    row_counts: Mapping[Shape, tuple[int, ...]]
    """Powers of two; each stands for all counts above the one before it."""

    def prefers_ours(
        self, traits: GpuTraits, num_rows: int, num_outputs: int, num_inputs: int
    ) -> bool:
        """True for what a GPU has confirmed."""
        if traits.capability not in self.measured:
            return False
        known = self.row_counts.get((traits.capability, num_outputs, num_inputs), ())
        return next_power_of_2(num_rows) in known


SMALL_LINEAR: Final = SmallLinearTable(
    measured=frozenset(),
    row_counts=MappingProxyType(
        {
            (90, 4096, 1024): (1, 2, 4, 8, 16),
            (90, 1024, 2048): (1, 2, 4, 8, 16),
            (90, 6144, 1024): (1, 2, 4, 8, 16),
            (90, 1024, 3072): (1, 2, 4, 8, 16),
            (90, 151936, 1024): (1, 2),
            (90, 6144, 2560): (1, 2, 4, 8, 16),
            (90, 2560, 4096): (1, 2, 4, 8, 16),
            (90, 19456, 2560): (1, 2),
            (90, 2560, 9728): (1, 2, 4, 8, 16),
            (90, 151936, 2560): (1, 2),
            (90, 6144, 4096): (1, 2, 4, 8, 16),
            (90, 4096, 4096): (1, 2, 4, 8, 16),
            (90, 24576, 4096): (1, 2),
            (90, 4096, 12288): (1, 2, 4, 8, 16),
            (90, 28672, 4096): (1, 2),
            (90, 4096, 14336): (1, 2, 4, 8, 16),
            (90, 128256, 4096): (1, 2),
            (90, 151936, 4096): (1, 2),
        }
    ),
)
