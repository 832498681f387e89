"""Cosines and sines by position, with the frequency scaling a checkpoint asks for.

Shapes: T tokens, H head dim. Tables are computed in fp32 and rounded once to the model's dtype.
Source: Su et al. 2021; Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); Llama 3.1 for its own.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and signed sines of a step's tokens, each `[T, H]`: what `kernels.rotary` takes."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by the factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretches wavelengths beyond the original context. Lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Stretches what turns less than `beta_slow` times in the original context, in tokens.

    What turns more often than `beta_fast` stays, what lies between is blended pair by pair.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    rounds_range: bool
    """True where the pairs between which to blend are whole numbers."""
    amplitude: float
    """Cosines and sines are multiplied by it."""


RotaryScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RotaryForm:
    """How positions turn a head."""

    theta: float
    scaling: RotaryScaling | None = None


def compute_frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None) -> Tensor:
    """Radians per position of each pair, `[H / 2]`, fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    match scaling:
        case None:
            return frequencies
        case LinearScaling():
            return frequencies / scaling.factor
        case Llama3Scaling():
            return _scale_low_frequencies(frequencies, scaling)
        case YarnScaling():
            return _scale_rare_turns(frequencies, theta, scaling)


def _scale_low_frequencies(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """High frequencies stay, low ones are divided by the factor, those between are blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def _scale_rare_turns(frequencies: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """YaRN's blend, by the number of the pair."""
    num_pairs = frequencies.shape[0]

    def find_pair(num_turns: float) -> float:
        ratio = scaling.original_context / (num_turns * 2 * math.pi)
        return num_pairs * math.log(ratio) / math.log(theta)

    first, last = find_pair(scaling.beta_fast), find_pair(scaling.beta_slow)
    if scaling.rounds_range:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    span = last - first or 0.001
    stretched = ((torch.arange(num_pairs, dtype=torch.float32) - first) / span).clamp(0.0, 1.0)
    return frequencies * (1.0 - stretched) + frequencies / scaling.factor * stretched


class RotaryEmbedding:
    """The tables up to a context length, in the form `kernels.rotary` takes."""

    __slots__ = ("_table_P2H",)

    def __init__(
        self,
        frequencies: Tensor,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        amplitude: float = 1.0,
    ) -> None:
        """Computes all positions at once."""
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
        table = torch.cat((cos, cos, -sin, sin), dim=-1).to(device=device, dtype=dtype)
        self._table_P2H = table.view(num_positions, 2, -1)

    def __call__(self, positions_T: Tensor) -> Rotation:
        """Cosines and signed sines of the positions, each `[T, H]`."""
        cos_sin_T2H = self._table_P2H.index_select(0, positions_T)
        return cos_sin_T2H[:, 0], cos_sin_T2H[:, 1]


def create_rotary_embedding(
    form: RotaryForm, head_dim: int, num_positions: int, like: Tensor
) -> RotaryEmbedding:
    """The tables of `form`, in the dtype and on the device of `like`."""
    amplitude = form.scaling.amplitude if isinstance(form.scaling, YarnScaling) else 1.0
    frequencies = compute_frequencies(head_dim, form.theta, form.scaling)
    return RotaryEmbedding(frequencies, num_positions, like.dtype, like.device, amplitude)


def to_halves(weight_MK: Tensor, head_dim: int) -> Tensor:
    """Rows of a projection into heads whose rotary pairs are neighbours, reordered to halves.

    Scores do not change when queries and keys are reordered alike, so a checkpoint that pairs
    elements 0 and 1 runs on the kernel that pairs 0 and H / 2.
    """
    pairs = weight_MK.view(-1, head_dim // 2, 2, *weight_MK.shape[1:])
    return pairs.transpose(1, 2).reshape(weight_MK.shape)
