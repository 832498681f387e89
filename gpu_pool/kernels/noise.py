"""Exponential noise from a stateless counter generator keyed by (seed, position).

The Gumbel-max trick in its race form: argmax(logit − log E) with E exponential picks a token with
its softmax probability. E of a token is a hash of (seed, position, token id), so that a sequence
draws the same noise alone, in a batch, after preemption and on any device.
Two rounds of a 32-bit mixer keyed by 64 bits; int32 products wrap around on every device.
The first half is for tensors, the second for kernels, which compute noise where they use it.
Shapes: R rows, V vocabulary. Source: Steele et al. 2014 (splitmix64); Wellons 2018 (lowbias32).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl

_MASK_64: Final = (1 << 64) - 1
_GOLDEN_32: Final = 0x9E3779B1 - (1 << 32)
_MULTIPLIER_1: Final = 0x7FEB352D
_MULTIPLIER_2: Final = 0x846CA68B - (1 << 32)


def mix_key(seed: int, position: int) -> tuple[int, int]:
    """Two signed 32-bit keys; seeds count modulo 2⁶⁴."""
    state = _splitmix(_splitmix(seed & _MASK_64) ^ (position & _MASK_64))
    return _to_signed(state >> 32), _to_signed(state & 0xFFFF_FFFF)


def draw_log_exponentials(
    keys: Sequence[tuple[int, int]], vocab_size: int, device: torch.device
) -> Tensor:
    """log E for every row and token, `[R, V]` fp32, finite."""
    keys_R2 = torch.tensor(keys, dtype=torch.int32, device=device)
    ids_V = torch.arange(vocab_size, dtype=torch.int32, device=device).mul_(_GOLDEN_32)
    bits_RV = ids_V ^ keys_R2[:, :1]
    bits_RV.bitwise_xor_(_shift_right(bits_RV, 16)).mul_(_MULTIPLIER_1).add_(keys_R2[:, 1:])
    bits_RV.bitwise_xor_(_shift_right(bits_RV, 15)).mul_(_MULTIPLIER_2)
    bits_RV.bitwise_xor_(_shift_right(bits_RV, 16)).bitwise_and_(0x7FFF_FFFF)
    # E = −log(1 − u): the smallest E win the race, and there u keeps its full relative precision.
    # The bound below 1 keeps E finite, so that no kept token ever scores −inf.
    uniform_RV = bits_RV.float().add_(0.5).mul_(2.0**-31).clamp_max_(1 - 2.0**-24)
    return uniform_RV.neg_().log1p_().neg_().log_()


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """A logical shift; torch's own drags the sign along."""
    return bits.bitwise_right_shift(count).bitwise_and_((1 << 32 - count) - 1)


def _splitmix(state: int) -> int:
    """One step of splitmix64."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK_64
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK_64
    return state ^ state >> 31


def _to_signed(word: int) -> int:
    """An unsigned 32-bit word as the signed one of the same bits."""
    return word - (1 << 32) if word >> 31 else word


@jit
def mix_key_in_kernel(seed, position):
    """`mix_key` of two int64, by the wrapping products of int64."""
    state = _splitmix_in_kernel(_splitmix_in_kernel(seed) ^ position)
    return (state >> 32).to(tl.int32), state.to(tl.int32)


@jit
def log_exponential_in_kernel(tokens, key_1, key_2):
    """log E of each of `tokens` (int32)."""
    bits = (tokens * -1640531535) ^ key_1
    bits = (bits ^ _shift_in_kernel(bits, 16, 0xFFFF)) * 2146121005 + key_2
    bits = (bits ^ _shift_in_kernel(bits, 15, 0x1FFFF)) * -2073254261
    bits = (bits ^ _shift_in_kernel(bits, 16, 0xFFFF)) & 2147483647
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 4.656612873077393e-10, 1 - 5.9604645e-8)
    return tl.log(-_log_of_rest(uniform))


@jit
def _splitmix_in_kernel(state):
    """One step of splitmix64 in signed words; the multipliers are those of `_splitmix`."""
    state = state + -7046029254386353131
    state = (state ^ _shift_in_kernel(state, 30, 0x3FFFFFFFF)) * -4658895280553007687
    state = (state ^ _shift_in_kernel(state, 27, 0x1FFFFFFFFF)) * -7723592293110705685
    return state ^ _shift_in_kernel(state, 31, 0x1FFFFFFFF)


@jit
def _shift_in_kernel(bits, COUNT: tl.constexpr, MASK: tl.constexpr):
    """A logical shift; the language's own drags the sign along."""
    return (bits >> COUNT) & MASK


@jit
def _log_of_rest(u):
    """log(1 − u) at full relative precision, for u between 0 and 1."""
    rest = 1.0 - u
    lost = (1.0 - rest) - u  # what rounding took from the difference, exactly
    return tl.where(u < 1e-4, -u - u * u * 0.5, tl.log(rest) + lost / rest)
