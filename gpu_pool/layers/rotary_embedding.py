"""Cosines and sines by position, with the frequency scaling a checkpoint asks for.

Shapes: T tokens, H head dim. Tables are computed in fp32 and rounded once to the model's dtype.
Source: Su et al. 2021; Llama 3.1 for the scaling of low frequencies.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretches wavelengths beyond the original context. Lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


def compute_frequencies(head_dim: int, theta: float, scaling: Llama3Scaling | None) -> Tensor:
    """Radians per position of each pair, `[H / 2]`, fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    return frequencies if scaling is None else _scale_low_frequencies(frequencies, scaling)


def _scale_low_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """High frequencies stay, low ones are divided by the factor, those between are blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


class RotaryEmbedding:
    """The tables up to a context length, in the form `kernels.rotary` takes."""

    __slots__ = ("_table_P2H",)

    def __init__(
        self, frequencies: Tensor, num_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Computes all positions at once."""
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        table = torch.cat((cos, cos, -sin, sin), dim=-1).to(device=device, dtype=dtype)
        self._table_P2H = table.view(num_positions, 2, -1)

    def __call__(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the positions, each `[T, H]`."""
        cos_sin_T2H = self._table_P2H.index_select(0, positions_T)
        return cos_sin_T2H[:, 0], cos_sin_T2H[:, 1]
