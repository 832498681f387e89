"""Muon, in the type of numbers whose products are fast where it runs; that of torch is always bf16.

Owns the step of matrices. Read next: `train.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_MOMENTUM, _WEIGHT_DECAY = 0.95, 0.01
_TURNS, _COEFFICIENTS = 5, (3.4445, -4.775, 2.0315)  # of the iteration of Newton and Schulz
_UPDATE_SIZE = 0.2  # root mean square of an update of AdamW


def fast_dtype(device: torch.device) -> torch.dtype:
    """Returns bf16 where products of it are fast: not on CPUs that have to emulate them."""
    if device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    return torch.float32


class Muon(torch.optim.Optimizer):
    """Steps of like size in every direction of a matrix, as large as AdamW's."""

    def __init__(self, matrices: Iterable[Tensor], dtype: torch.dtype) -> None:
        super().__init__(matrices, {"lr": 1e-3})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Moves every matrix and returns nothing, for `closure` is not called."""
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, _MOMENTUM).to(self._dtype))
                size = _UPDATE_SIZE * math.sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * _WEIGHT_DECAY)
                matrix.add_(update, alpha=-group["lr"] * size)


def orthogonal(matrix: Tensor) -> Tensor:
    """Returns about the nearest matrix all of whose singular values are one."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_TURNS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if is_tall else found
