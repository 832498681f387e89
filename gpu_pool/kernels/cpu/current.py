"""Which native kernels the step that is being computed uses for what lies between products.

Products find theirs in their weights and attention in its cache; norms and gates are plain
functions of tensors and ask here. Read next: `elementwise.cpp`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.cpu.library import MAX_LANES, NativeKernels

_CURRENT: Final[ContextVar[NativeKernels | None]] = ContextVar("kernels", default=None)
_WEIGHT_DTYPES: Final = (torch.bfloat16, torch.float32)


@contextmanager
def computing_with(kernels: NativeKernels | None) -> Generator[None]:
    """Inside, `find_current` finds `kernels`; None: nothing, and torch computes alone."""
    token = _CURRENT.set(kernels)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def find_current(*rows: Tensor, weight: Tensor | None = None) -> NativeKernels | None:
    """The step's kernels, where they can read these: bf16 rows whose elements lie together, and a
    whole weight in bf16 or fp32.
    """
    kernels = _CURRENT.get()
    if kernels is None or not all(_lies_in_rows(tensor) for tensor in rows):
        return None
    return None if weight is not None and not reads_weight(weight) else kernels


def reads_weight(weight: Tensor) -> bool:
    """True for the weight of a norm in a form that kernels read."""
    return weight.dtype in _WEIGHT_DTYPES and weight.is_contiguous()


def turns_heads(head_dim: int) -> bool:
    """True where the halves of a head are whole vectors at every level."""
    return head_dim % (2 * MAX_LANES) == 0


def _lies_in_rows(tensor: Tensor) -> bool:
    is_read = tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"
    return is_read and tensor.stride(-1) == 1
