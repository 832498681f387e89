"""What torch and the libraries below it must be told to use no better instructions than a level.

Owns the variables; must not know who sets them: they count only before torch computes anything.
Native kernels keep to `engine.cpu_level` by themselves; beside them torch computes softmax, routers
and what latents are multiplied with, in other bits where it has wider vectors.
Source: oneDNN, "CPU Dispatcher Control"; oneMKL, "Conditional Numerical Reproducibility"; torch,
`aten/src/ATen/native/DispatchStub.cpp`. Read next: `row_invariance`.
"""

from typing import Final

from gpu_pool.compute_choice import CpuLevel
from gpu_pool.kernels.cpu.levels import find_level, list_levels

CPU_BOUNDS: Final[dict[CpuLevel, dict[str, str]]] = {
    CpuLevel.AUTO: {},
    CpuLevel.AMX: {},  # there is nothing better
    CpuLevel.AVX512_BF16: {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "MKL_CBWR": "AVX2,STRICT",
    },
    CpuLevel.AVX512: {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_CBWR": "AVX2,STRICT",
    },
    CpuLevel.AVX2: {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2,STRICT",
    },
    CpuLevel.PLAIN: {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
    },
}


def find_bounds(level: CpuLevel, flags: frozenset[str] | None) -> dict[str, str]:
    """What bounds a CPU with these flags, None: no x86-64 under Linux; by the best level that it
    has where that is lower. Torch takes its variable for a command, and a process that lacks the
    instructions would end at the first of them.
    """
    if level is CpuLevel.AUTO or flags is None:
        return {}
    return CPU_BOUNDS[CpuLevel(list_levels(flags, find_level(level))[0].name)]
