"""Numbers of the host as tensors, without waiting for the device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(
    values: Sequence[int] | Sequence[float] | Sequence[Sequence[int]] | Sequence[Sequence[float]],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """`values` on `device`; the copy is queued behind what was launched."""
    return send(torch.tensor(values, dtype=dtype), device)


def send(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`; memory that is not pinned would make the copy wait."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)
