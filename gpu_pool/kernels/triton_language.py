"""Triton where it is installed, and a clear refusal where it is not (macOS, arm64, bare CPU boxes).

Kernels import `jit` and `tl` from here, so that every file of `kernels` can be imported anywhere
and its reference used. A torch that is built for CPUs alone can launch none: triton is read there
only where somebody has read it before, to interpret kernels or to compile them, for it is a tenth
of what a core reads before it loads its model. Must not know any kernel. Read next: `rms_norm`.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CAN_LAUNCH = torch.version.cuda is not None or torch.version.hip is not None

try:
    if not (_CAN_LAUNCH or "triton" in sys.modules):
        raise ImportError
    import triton
    from triton import language as tl
except ImportError:
    triton = None
    tl = None

HAS_TRITON = triton is not None
__all__ = ["HAS_TRITON", "choose_warps", "jit", "next_power_of_2", "tl", "uses_triton"]


class MissingKernel:
    """Stands where a kernel would be; launching it explains what to install."""

    def __init__(self, name: str) -> None:
        """`name` is the kernel's."""
        self._name = name

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """What a launch gets. Raises: `RuntimeError`."""
        raise RuntimeError(
            f"{self._name} needs triton and a torch that is built for GPUs: "
            "pip install 'hearth[gpu]'."
        )


def jit(function: Callable[..., Any]) -> Any:
    """`function` as a triton kernel, compiled at its first launch."""
    return triton.jit(function) if triton is not None else MissingKernel(function.__name__)


def uses_triton(tensor: Tensor) -> bool:
    """True where the kernel serves `tensor`, False where the reference does."""
    return tensor.is_cuda


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def choose_warps(block: int) -> int:
    """Warps for a program that holds one row of `block` elements."""
    return max(1, min(16, block // 256))
