"""Weights packed number by number, as their formats are described, and the floats they stand for.

Written with loops over lists, so that nothing of what unpacks is used. Source: the descriptions of
GPTQModel 7.7, AutoAWQ 0.2.9 and compressed-tensors 0.20.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP8 = torch.float8_e4m3fn
Rows = list[list[int]]


@dataclass(frozen=True)
class Packed:
    """A module's tensors by the ends of their names, and its weight `[M, K]`."""

    tensors: dict[str, Tensor]
    weight: Tensor


@dataclass(frozen=True)
class Whole:
    """Whole numbers of a matrix: `(numbers - zeros) · scales`, the latter per row and group."""

    numbers: Rows
    zeros: Rows
    scales: Tensor
    groups: list[int]
    """Of each input."""
    weight: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Works out the weight, number by number."""
        scales = self.scales.float().tolist()
        rows = [
            [
                (number - zeros[group]) * factors[group]
                for number, group in zip(row, self.groups, strict=True)
            ]
            for row, zeros, factors in zip(self.numbers, self.zeros, scales, strict=True)
        ]
        object.__setattr__(self, "weight", torch.tensor(rows, dtype=torch.float32))


def round_weight(
    weight: Tensor,
    bits: int,
    group_size: int,
    *,
    symmetric: bool = False,
    groups: list[int] | None = None,
) -> Whole:
    """The numbers nearest to a weight; of a row's inputs those of a group share factor and zero."""
    num_inputs = weight.shape[1]
    groups = groups or [column // group_size for column in range(num_inputs)]
    top = 2**bits - 1
    all_numbers: Rows = []
    all_zeros: Rows = []
    all_scales: list[list[float]] = []
    for row in weight.tolist():
        scales: list[float] = []
        zeros: list[int] = []
        for group in range(num_inputs // group_size):
            values = [value for value, other in zip(row, groups, strict=True) if other == group]
            low, high = min(*values, 0.0), max(*values, 0.0)
            reach = 2 * max(high, -low) if symmetric else high - low
            scale = torch.tensor(reach / top).half().item()
            scales.append(scale)
            zeros.append(2 ** (bits - 1) if symmetric else round(-low / scale))
        all_numbers.append(
            [
                min(max(round(value / scales[group]) + zeros[group], 0), top)
                for value, group in zip(row, groups, strict=True)
            ]
        )
        all_zeros.append(zeros)
        all_scales.append(scales)
    return Whole(all_numbers, all_zeros, torch.tensor(all_scales).half(), groups)


def pack_rows(rows: Rows, bits: int, order: tuple[int, ...] | None = None) -> Rows:
    """Each row in words of 32 bits, the lowest first; `order` says what is first, second, …."""
    per_word = 32 // bits
    order = order or tuple(range(per_word))
    packed: Rows = []
    for row in rows:
        padded = [*row, *[0] * (-len(row) % per_word)]
        words: list[int] = []
        for start in range(0, len(padded), per_word):
            word = 0
            for place, offset in enumerate(order):
                word |= padded[start + offset] << (bits * place)
            words.append(word)
        packed.append(words)
    return packed


def turn(rows: Rows) -> Rows:
    """Columns as rows."""
    return [list(column) for column in zip(*rows, strict=True)]


def to_words(rows: Rows) -> Tensor:
    """Words in the signed integers that files have."""
    signed = [[word - (1 << 32) if word >> 31 else word for word in row] for row in rows]
    return torch.tensor(signed, dtype=torch.int32)


def pack_gptq(whole: Whole, bits: int, *, version: int = 1) -> Packed:
    """`qweight [K / w, M]`, `qzeros [G, M / w]`, `scales [G, M]` and `g_idx [K]`."""
    one = sum(1 << shift for shift in range(0, 32, bits)) if version == 1 else 0
    zeros = [
        [(word - one) % (1 << 32) for word in row] for row in pack_rows(turn(whole.zeros), bits)
    ]
    tensors = {
        "qweight": to_words(turn(pack_rows(whole.numbers, bits))),
        "qzeros": to_words(zeros),
        "scales": whole.scales.T.contiguous(),
        "g_idx": torch.tensor(whole.groups, dtype=torch.int32),
    }
    return Packed(tensors, whole.weight)


def pack_awq(whole: Whole) -> Packed:
    """`qweight [K, M / 8]`, `qzeros [G, M / 8]` and `scales [G, M]`."""
    tensors = {
        "qweight": to_words(pack_rows(turn(whole.numbers), 4, AWQ_ORDER)),
        "qzeros": to_words(pack_rows(turn(whole.zeros), 4, AWQ_ORDER)),
        "scales": whole.scales.T.contiguous(),
    }
    return Packed(tensors, whole.weight)


def pack_compressed(whole: Whole, bits: int, *, symmetric: bool) -> Packed:
    """`weight_packed [M, K / w]`, `weight_scale [M, G]` and `weight_zero_point [M / w, G]`."""
    tensors = {
        "weight_packed": to_words(pack_rows(whole.numbers, bits)),
        "weight_scale": whole.scales,
        "weight_shape": torch.tensor([len(whole.numbers), len(whole.groups)]),
    }
    if not symmetric:
        zeros = turn(pack_rows(turn(whole.zeros), bits))
        tensors["weight_zero_point"] = to_words(zeros)
    return Packed(tensors, whole.weight)


def pack_scaled(weight: Tensor, dtype: torch.dtype, factors: Tensor) -> Packed:
    """`weight` in eight bits and `weight_scale`: one number, or one per row."""
    top = 127 if dtype == torch.int8 else 448
    wide = (weight / factors.float()).clamp(-top, top)
    numbers = (wide.round() if dtype == torch.int8 else wide).to(dtype)
    rows = [[number * 1.0 for number in row] for row in numbers.float().tolist()]
    per_row = factors.float().flatten().tolist()
    per_row = per_row * len(rows) if len(per_row) == 1 else per_row
    expected = [
        [number * factor for number in row] for row, factor in zip(rows, per_row, strict=True)
    ]
    tensors = {"weight": numbers, "weight_scale": factors}
    return Packed(tensors, torch.tensor(expected, dtype=torch.float32))


def describe_compressed(form: str, **weights: Any) -> dict[str, Any]:
    """A `quantization_config` of one group."""
    group = {"weights": {"symmetric": True} | weights, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


PackWeight = Callable[[Tensor], Packed]


def _scale_rows(weight: Tensor, top: float) -> Tensor:
    """A factor per row in bf16, as `llm-compressor` writes them."""
    return (weight.abs().amax(1, keepdim=True) / top).bfloat16()


FORMATS: dict[str, tuple[dict[str, Any], PackWeight]] = {
    "gptq of 4 bits": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
        lambda w: pack_gptq(round_weight(w, 4, 32, symmetric=True), 4),
    ),
    "gptq of 4 bits with zeros, version 2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
        lambda w: pack_gptq(round_weight(w, 4, 32), 4, version=2),
    ),
    "gptq of 4 bits by activation": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        lambda w: pack_gptq(round_weight(w, 4, 32, groups=scatter(w.shape[1], 32)), 4),
    ),
    "gptq of 8 bits": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False},
        lambda w: pack_gptq(round_weight(w, 8, w.shape[1]), 8),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        lambda w: pack_awq(round_weight(w, 4, 32)),
    ),
    "int4 in groups with zeros": (
        describe_compressed(
            "pack-quantized",
            num_bits=4,
            type="int",
            strategy="group",
            group_size=32,
            symmetric=False,
        ),
        lambda w: pack_compressed(round_weight(w, 4, 32), 4, symmetric=False),
    ),
    "int4 per channel": (
        describe_compressed("pack-quantized", num_bits=4, type="int", strategy="channel"),
        lambda w: pack_compressed(
            round_weight(w, 4, w.shape[1], symmetric=True), 4, symmetric=True
        ),
    ),
    "int8 in groups": (
        describe_compressed(
            "pack-quantized", num_bits=8, type="int", strategy="group", group_size=32
        ),
        lambda w: pack_compressed(round_weight(w, 8, 32, symmetric=True), 8, symmetric=True),
    ),
    "int8 per channel": (
        describe_compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
        lambda w: pack_scaled(w, torch.int8, _scale_rows(w, 127)),
    ),
    "fp8 per channel": (
        describe_compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        lambda w: pack_scaled(w, FP8, _scale_rows(w, 448)),
    ),
    "fp8 per tensor": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        lambda w: pack_scaled(w, FP8, w.abs().amax()[None] / 448),
    ),
    "fbgemm_fp8": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        lambda w: pack_scaled(w, FP8, _scale_rows(w, 448).float()),
    ),
}
"""`quantization_config` and what packs a weight so that it fits."""
INT4_FORMATS = {
    "gptq of 4 bits",
    "gptq of 4 bits with zeros, version 2",
    "awq",
    "int4 in groups with zeros",
    "int4 per channel",
}


def scatter(num_inputs: int, group_size: int) -> list[int]:
    """Groups of inputs that are no neighbours."""
    generator = torch.Generator().manual_seed(num_inputs)
    order = torch.randperm(num_inputs, generator=generator).tolist()
    return [place // group_size for place in order]
