"""What torch is told of a level: none that the CPU lacks, which it would use all the same."""

import pytest

from gpu_pool.compute_choice import CpuLevel
from gpu_pool.cpu_bounds import CPU_BOUNDS, find_bounds
from gpu_pool.kernels.cpu.levels import LEVELS

ALL = frozenset[str]().union(*(level.flags for level in LEVELS))


def test_every_level_has_its_bounds_where_a_cpu_has_all() -> None:
    assert CPU_BOUNDS.keys() == set(CpuLevel)
    for level, bounds in CPU_BOUNDS.items():
        assert find_bounds(level, ALL) == bounds


@pytest.mark.parametrize(
    ("flags", "best"), [({"avx2", "fma"}, CpuLevel.AVX2), ({"sse2"}, CpuLevel.PLAIN)]
)
def test_a_level_that_a_cpu_lacks_is_the_best_that_it_has(flags: set[str], best: CpuLevel) -> None:
    for level in (CpuLevel.AMX, CpuLevel.AVX512_BF16, CpuLevel.AVX512, best):
        assert find_bounds(level, frozenset(flags)) == CPU_BOUNDS[best]
    assert find_bounds(CpuLevel.PLAIN, frozenset(flags)) == CPU_BOUNDS[CpuLevel.PLAIN]
    assert find_bounds(CpuLevel.AUTO, frozenset(flags)) == {}


def test_other_machines_than_x86_64_are_told_nothing() -> None:
    assert not any(find_bounds(level, None) for level in CpuLevel)
