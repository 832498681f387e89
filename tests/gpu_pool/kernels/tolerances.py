"""How close an op must come to the float64 formula, by dtype."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
_RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Compares with a float64 result, relative to its largest value."""
    assert actual.shape == expected.shape
    bound = _RELATIVE[actual.dtype] * max(1.0, expected.abs().max().item())
    assert (actual.double() - expected).abs().max().item() <= bound
