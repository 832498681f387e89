"""Which products of few rows our kernel serves instead of cuBLAS, by GPU, rows and shape.

The shapes are those of Qwen3-0.6B, -4B and -8B and of Llama-3.1-8B, each as an H200 has shown it;
cuBLAS serves all others. One row is mostly ours, which reads weights in long stretches, the first
of them before the kernel in front has ended.
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

    row_counts: Mapping[Shape, tuple[int, ...]]
    """Powers of two; each stands for all counts above the one before it."""

    def prefers_ours(
        self, traits: GpuTraits, num_rows: int, num_outputs: int, num_inputs: int
    ) -> bool:
        """True for what a GPU has confirmed."""
        known = self.row_counts.get((traits.capability, num_outputs, num_inputs), ())
        return next_power_of_2(num_rows) in known


SMALL_LINEAR: Final = SmallLinearTable(
    MappingProxyType(
        {
            (90, 4096, 1024): (1, 2, 4, 8, 16, 64),
            (90, 1024, 2048): (1, 2, 4, 8, 16, 32, 64),
            (90, 6144, 1024): (1, 2, 16, 64),
            (90, 1024, 3072): (1, 2, 4, 8, 16, 32, 64),
            (90, 151936, 1024): (1,),
            (90, 6144, 2560): (1, 4, 16),
            (90, 2560, 4096): (1,),
            (90, 19456, 2560): (1,),
            (90, 2560, 9728): (1,),
            (90, 151936, 2560): (),
            (90, 6144, 4096): (1,),
            (90, 4096, 4096): (1,),
            (90, 24576, 4096): (1,),
            (90, 4096, 12288): (4, 8),
            (90, 28672, 4096): (1,),
            (90, 4096, 14336): (),
            (90, 128256, 4096): (),
            (90, 151936, 4096): (),
        }
    ),
)
