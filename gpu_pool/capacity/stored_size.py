"""How many bits a checkpoint spends on each weight, from its `quantization_config` alone.

The counterpart of `gpu_pool.weights.packing`, which sees the tensors; here there are only names.
"""

import re
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, Final

import msgspec

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import CheckpointTensor

_PLAIN_BITS: Final = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0}
UNPACKED_BITS: Final = 16.0
"""Of a weight in memory, whatever it has in its file: quantised ones are unpacked as they load."""
_MXFP4_BITS: Final = 4 + 8 / 32
"""Four, and a byte of scale for 32."""
_SCALE_BITS: Final = {"fp8": 32, "int4": 16}
_NEVER_PACKED: Final = ("embed_tokens", "lm_head", "norm", "mlp.gate.", "router", "bias")

StoredBits = Callable[[CheckpointTensor], float]
"""Bits of one weight of a tensor, its share of the scales included."""


class _WeightsJson(msgspec.Struct, frozen=True):
    """How a group of compressed-tensors packs."""

    num_bits: int = 16
    group_size: int | None = None


class _GroupJson(msgspec.Struct, frozen=True):
    """A group of compressed-tensors."""

    weights: _WeightsJson | None = None


class _PackingJson(msgspec.Struct, frozen=True):
    """The fields of `quantization_config` that decide sizes."""

    quant_method: str = ""
    weight_block_size: tuple[int, int] | None = None
    config_groups: dict[str, _GroupJson] | None = None
    ignore: tuple[str, ...] = ()
    modules_to_not_convert: tuple[str, ...] | None = None


def read_stored_bits(dtype: str, quantization_config: Any) -> StoredBits:
    """What tells the bits of a tensor. Raises: `CheckpointError` for an unknown method."""
    if dtype not in _PLAIN_BITS:
        raise CheckpointError(f"dtype `{dtype}` is not supported; only {', '.join(_PLAIN_BITS)}.")
    plain = _PLAIN_BITS[dtype]
    if quantization_config is None:
        return lambda tensor: plain
    try:
        json = msgspec.convert(quantization_config, _PackingJson)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: quantization_config: {error}.") from error
    packed = _count_packed_bits(json)
    left_out = (*json.ignore, *(json.modules_to_not_convert or ()))
    _require_patterns(left_out)

    def count(tensor: CheckpointTensor) -> float:
        module = tensor.name.removesuffix(".weight")
        is_plain = (
            len(tensor.shape) < 2
            or any(part in tensor.name for part in _NEVER_PACKED)
            or any(_matches(pattern, module) for pattern in left_out)
        )
        return plain if is_plain else packed

    return count


def count_stored_bytes(tensor: CheckpointTensor, bits: StoredBits) -> int:
    """What a tensor takes."""
    return round(prod(tensor.shape) * bits(tensor) / 8)


def _count_packed_bits(json: _PackingJson) -> float:
    """Bits of a weight that is packed."""
    match json.quant_method:
        case "mxfp4":
            return _MXFP4_BITS
        case "fp8" if json.weight_block_size and min(json.weight_block_size) > 0:
            return 8 + _SCALE_BITS["fp8"] / prod(json.weight_block_size)
        case "compressed-tensors":
            groups = [g.weights for g in (json.config_groups or {}).values() if g.weights]
            if groups:
                scale = _SCALE_BITS["int4"] / groups[0].group_size if groups[0].group_size else 0
                return groups[0].num_bits + scale
        case _:
            pass
    raise CheckpointError(
        f"quantization_config of method `{json.quant_method}` is not known; known are mxfp4, fp8 "
        "with a weight_block_size, and compressed-tensors."
    )


def _require_patterns(patterns: Iterable[str]) -> None:
    """Raises: `CheckpointError` for an expression behind `re:` that is none."""
    for pattern in patterns:
        if not pattern.startswith("re:"):
            continue
        try:
            re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise CheckpointError(
                f"config.json: quantization_config: `{pattern}` is no pattern: {error}."
            ) from error


def _matches(pattern: str, module: str) -> bool:
    """Whether a name, or an expression behind `re:`, leaves the module out."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern or module.startswith(f"{pattern}.")
