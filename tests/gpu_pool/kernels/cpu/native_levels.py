"""The native kernels at every level that this machine can run."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from gpu_pool.kernels.cpu.build import get_cache_folder
from gpu_pool.kernels.cpu.levels import LEVELS, list_levels, read_cpu_flags
from gpu_pool.kernels.cpu.library import NativeKernels, load_kernels

NAMES = [level.name for level in list_levels(read_cpu_flags() or frozenset())]
at_every_level = pytest.mark.parametrize("level", NAMES if read_cpu_flags() else [])


@cache
def load_level(name: str) -> NativeKernels:
    """The kernels at the level called `name`, built at the first call on a machine."""
    kernels = load_kernels(get_cache_folder(), next(lv for lv in LEVELS if lv.name == name))
    assert kernels.level.name == name
    return kernels


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take forever where others want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
