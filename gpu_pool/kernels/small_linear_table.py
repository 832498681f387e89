"""Which products of few rows our kernel serves instead of cuBLAS, by GPU, rows and shape.

One row and two: ours, whatever the shape, on generations where a GPU has shown it; it reads weights
in long stretches and the first of them before the kernel in front has ended. More rows: the shapes
of Qwen3-0.6B, -4B and -8B and of Llama-3.1-8B for which a GPU has shown it.
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

    always_rows: Mapping[int, int]
    """By generation: up to so many rows ours is faster, whatever the shape."""
    row_counts: Mapping[Shape, tuple[int, ...]]
    """Powers of two; each stands for all counts above the one before it."""

    def prefers_ours(
        self, traits: GpuTraits, num_rows: int, num_outputs: int, num_inputs: int
    ) -> bool:
        """True for what a GPU has confirmed."""
        if num_rows <= self.always_rows.get(traits.capability, 0):
            return True
        known = self.row_counts.get((traits.capability, num_outputs, num_inputs), ())
        return next_power_of_2(num_rows) in known


SMALL_LINEAR: Final = SmallLinearTable(
    always_rows=MappingProxyType({90: 2}),
    row_counts=MappingProxyType(
        {
            (90, 4096, 1024): (),
            (90, 1024, 2048): (),
            (90, 6144, 1024): (),
            (90, 1024, 3072): (),
            (90, 151936, 1024): (),
            (90, 6144, 2560): (),
            (90, 2560, 4096): (),
            (90, 19456, 2560): (),
            (90, 2560, 9728): (),
            (90, 151936, 2560): (),
            (90, 6144, 4096): (),
            (90, 4096, 4096): (),
            (90, 24576, 4096): (),
            (90, 4096, 12288): (),
            (90, 28672, 4096): (),
            (90, 4096, 14336): (),
            (90, 128256, 4096): (),
            (90, 151936, 4096): (),
        }
    ),
)
