"""KV in eight bits: the elements of a slot as e4m3, behind them a scale for every head and part.

x ≈ e4m3(x / s) · s with s = max |x| / 448 over one head of one token, its keys and its values
apart. Scales lie in the slot, so that a block stays one piece for whoever moves it. Kernels widen
by the GPU's own instruction where it has one (sm_89 and later), else by shifting the bits into
those of fp16, which makes every value 256 times too small: scales take that up.
Shapes: X slots of S bytes (uint8), E elements, G scales, so that a head has E / G elements.
Source: OCP 8-bit floating point (e4m3fn). Read next: `fp8_write`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.triton_language import jit, tl

LARGEST = 448.0
"""Of e4m3."""
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Fp8Slots:
    """How many elements and scales a slot has."""

    num_elements: int
    num_scales: int

    @property
    def scale_offset(self) -> int:
        """Bytes before the first scale, fp32."""
        return _align(self.num_elements)

    @property
    def num_bytes(self) -> int:
        """Bytes of a slot."""
        return self.scale_offset + _align(4 * self.num_scales)

    @property
    def head_dim(self) -> int:
        """Elements that share a scale."""
        return self.num_elements // self.num_scales


def widen_slots(slots_XS: Tensor, form: Fp8Slots, dtype: torch.dtype) -> Tensor:
    """The elements `[X, E]` of slots, in plain torch."""
    values_XGH = slots_XS[:, : form.num_elements].view(torch.float8_e4m3fn)
    values_XGH = values_XGH.view(-1, form.num_scales, form.head_dim)
    scales_XG = slots_XS.view(torch.float32)[:, form.scale_offset // 4 :][:, : form.num_scales]
    return (values_XGH.float() * scales_XG[..., None]).to(dtype).flatten(1)


def read_slots(slots_XE: Tensor, form: Fp8Slots | None, dtype: torch.dtype) -> Tensor:
    """The elements `[X, E]` of slots of either kind, in plain torch."""
    return slots_XE.to(dtype) if form is None else widen_slots(slots_XE, form, dtype)


def read_rows(rows_XE: Tensor, form: Fp8Slots | None, dtype: torch.dtype) -> Tensor:
    """The elements of rows that hold several slots each, a row per slot where they were eight bits.

    Slots without scales are what they were.
    """
    return rows_XE if form is None else widen_slots(rows_XE.view(-1, form.num_bytes), form, dtype)


def check_slots(slots_XE: Tensor, num_elements: int, form: Fp8Slots | None) -> None:
    """Raises: `AssertionError` where slots do not hold so many elements in that form."""
    size = num_elements if form is None else form.num_bytes
    assert slots_XE.shape[1] == size, "slots do not fit heads"
    assert form is None or form.num_elements == num_elements, "slots are of another form"


def narrow_slots(kv_TE: Tensor, form: Fp8Slots) -> Tensor:
    """Elements as slots `[T, S]`, in plain torch."""
    kv_TGH = kv_TE.float().reshape(-1, form.num_scales, form.head_dim)
    scales_TG = kv_TGH.abs().amax(-1) * (1 / LARGEST)
    divisors_TG1 = torch.where(scales_TG > 0, scales_TG, 1.0)[..., None]
    slots_TS = torch.zeros((kv_TE.shape[0], form.num_bytes), dtype=torch.uint8, device=kv_TE.device)
    values_TGH = (kv_TGH / divisors_TG1).to(torch.float8_e4m3fn)
    slots_TS[:, : form.num_elements] = values_TGH.view(torch.uint8).flatten(1)
    scales_TX = slots_TS.view(torch.float32)[:, form.scale_offset // 4 :]
    scales_TX[:, : form.num_scales] = scales_TG
    return slots_TS


def _align(num_bytes: int) -> int:
    """So many bytes and what fills them up to where vectors may be read."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def describe_slots(form: Fp8Slots | None, num_elements: int) -> dict[str, int]:
    """What kernels are told of slots: their stride, and where scales begin (0: there are none)."""
    if form is None:
        return {"SLOT": num_elements, "SCALE_OFFSET": 0}
    return {"SLOT": form.num_bytes, "SCALE_OFFSET": form.scale_offset}


def widens_itself(device: torch.device) -> bool:
    """True for GPUs with an instruction that widens e4m3."""
    return device.type == "cuda" and find_traits(device).capability >= 89


def view_scales(slots_XS: Tensor, form: Fp8Slots | None) -> Tensor:
    """The same memory as fp32; slots without scales as they are."""
    return slots_XS if form is None else slots_XS.view(torch.float32)


@jit
def widen(bits, HAS_FP8: tl.constexpr):
    """Bytes of e4m3 as numbers, fp16; without an instruction for it, a 256th of them."""
    if HAS_FP8:
        numbers = bits.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        word = bits.to(tl.int16)
        numbers = (((word & 0x80) << 8) | ((word & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return numbers


@jit
def load_scales(scales_ptr, slots, is_slot, HAS_FP8: tl.constexpr):
    """Scales at `scales_ptr + slots`, made to fit what `widen` returns."""
    scales = tl.load(scales_ptr + slots, mask=is_slot, other=0.0)
    if not HAS_FP8:
        scales *= 256.0
    return scales


@jit
def narrow(numbers):
    """The bytes of e4m3 nearest to numbers within ±448, half-way ones to the even."""
    bits = numbers.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    # 20 of fp32's 23 bits go; exponents count from 7 instead of 127.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2⁻⁶ numbers lie 2⁻⁹ apart, as do fp32's at 2¹⁴.
    shifted = magnitude.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    return (sign | tl.where(magnitude < (121 << 23), subnormal, normal)).to(tl.uint8)
