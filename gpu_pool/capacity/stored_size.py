"""How many bits a checkpoint spends on each weight, from its `quantization_config` alone.

The counterpart of `gpu_pool.weights.packing`, which sees the tensors and says what is supported;
here there are only names.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import msgspec

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import CheckpointTensor
from gpu_pool.weights.formats.compressed_tensors import Scheme, read_schemes
from gpu_pool.weights.formats.name_pattern import read_pattern
from gpu_pool.weights.formats.pieces import convert_config, require_pattern
from gpu_pool.weights.formats.targets import PATTERN, find_group
from gpu_pool.weights.packing import read_packing

_PLAIN_BITS: Final = {"float32": 32.0, "bfloat16": 16.0, "float16": 16.0}
_MXFP4_BITS: Final = 4 + 8 / 32
"""Four, and a byte of scale for 32."""
_SCALE_BITS: Final = 16
_INDEX_BITS: Final = 32
"""Of the group of an input, which GPTQ notes once for all outputs."""
_NEVER_PACKED: Final = ("embed_tokens", "lm_head", "norm", "mlp.gate.", "router", "bias")


CountBits = Callable[[CheckpointTensor], float]
"""Bits of one weight of a matrix that is packed, its share of the scales included."""


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How a checkpoint stores its tensors, told by their names."""

    plain_bits: float
    """Of a weight that is not packed."""
    count_packed: CountBits | None = None
    """None where nothing is packed."""
    find_blocks: Callable[[str], tuple[int, int] | None] = lambda name: None
    """Of a packed matrix in fp8: rows and columns that share a factor."""
    left_out: tuple[str, ...] = ()
    """Names, and expressions behind `re:`, of modules that are not packed."""
    never: tuple[str, ...] = _NEVER_PACKED
    """Parts of names of others that are not."""
    _known: dict[str, bool] = field(default_factory=dict[str, bool])
    """Whether matrices are packed, of those asked for so far: names are matched once."""

    def count_bytes(self, tensor: CheckpointTensor) -> int:
        """What a tensor takes."""
        bits = self.plain_bits
        if self.count_packed is not None and len(tensor.shape) > 1 and self._is_packed(tensor.name):
            bits = self.count_packed(tensor)
        return round(prod(tensor.shape) * bits / 8)

    def has_blocks(self, name: str, block_size: tuple[int, int]) -> bool:
        """True for a matrix in fp8 with a factor per block of that size."""
        return self._is_packed(name) and self.find_blocks(name) == block_size

    def _is_packed(self, name: str) -> bool:
        """Whether a matrix is, as names of modules go."""
        if name not in self._known:
            module = name.removesuffix(".weight")
            is_plain = any(part in name for part in self.never) or any(
                _matches(pattern, module) for pattern in self.left_out
            )
            self._known[name] = not is_plain
        return self._known[name]


class _PackingJson(msgspec.Struct, frozen=True):
    """The fields of `quantization_config` that decide sizes."""

    quant_method: str = ""
    weight_block_size: tuple[int, int] | None = None
    bits: int = 4
    group_size: int = 128
    lm_head: bool | None = None
    dynamic: dict[str, Any] | None = None
    ignore: tuple[str, ...] | None = None
    ignored_layers: tuple[str, ...] | None = None
    modules_to_not_convert: tuple[str, ...] | None = None


def read_stored_form(dtype: str, quantization_config: Any) -> StoredForm:
    """How tensors are stored. Raises: `CheckpointError` for what Hearth does not load."""
    if dtype not in _PLAIN_BITS:
        raise CheckpointError(f"dtype `{dtype}` is not supported; only {', '.join(_PLAIN_BITS)}.")
    plain = _PLAIN_BITS[dtype]
    if quantization_config is None:
        return StoredForm(plain)
    read_packing(quantization_config)
    json = convert_config(quantization_config, _PackingJson)
    left_out = _list_left_out(json)
    for pattern in left_out:
        require_pattern(pattern)
    return StoredForm(
        plain,
        _choose_count(json, quantization_config, plain),
        _choose_blocks(json, quantization_config),
        left_out,
        tuple(part for part in _NEVER_PACKED if not (json.lm_head and part == "lm_head")),
    )


def _choose_blocks(json: _PackingJson, config: Any) -> Callable[[str], tuple[int, int] | None]:
    """What tells the blocks of a matrix in fp8."""
    if json.quant_method == "fp8":
        return lambda name: json.weight_block_size
    if json.quant_method != "compressed-tensors":
        return lambda name: None
    schemes = read_schemes(config)

    def find(name: str) -> tuple[int, int] | None:
        scheme = find_group(name, schemes)
        return None if scheme is None else scheme.block_size

    return find


def _choose_count(json: _PackingJson, config: Any, plain: float) -> CountBits:
    """What counts the bits of a weight that is packed, by a method that is supported."""
    match json.quant_method:
        case "mxfp4":
            return lambda tensor: _MXFP4_BITS
        case "fp8":
            factor = 0 if json.weight_block_size is None else 32 / prod(json.weight_block_size)
            return lambda tensor: 8 + factor
        case "fbgemm_fp8":
            return lambda tensor: 8 + 32 / tensor.shape[-1]
        case "gptq":
            return lambda tensor: (
                _count_grouped(tensor, json.bits, json.group_size, has_zeros=True)
                + _INDEX_BITS / tensor.shape[-2]
            )
        case "awq":
            return lambda tensor: _count_grouped(tensor, 4, json.group_size, has_zeros=True)
        case _:
            schemes = read_schemes(config)
            return lambda tensor: _count_scheme(tensor, find_group(tensor.name, schemes), plain)


def _count_scheme(tensor: CheckpointTensor, scheme: Scheme | None, plain: float) -> float:
    """Bits of a weight of compressed-tensors; what no group is for is left as it is."""
    if scheme is None:
        return plain
    if scheme.block_size is not None:
        return scheme.bits + _SCALE_BITS / prod(scheme.block_size)
    return _count_grouped(tensor, scheme.bits, scheme.group_size, has_zeros=not scheme.symmetric)


def _count_grouped(
    tensor: CheckpointTensor, bits: int, group_size: int | None, *, has_zeros: bool
) -> float:
    """Bits of a weight whose group has a factor, and a zero of as many bits as a number."""
    size = tensor.shape[-1] if group_size in (None, -1) else group_size
    return bits + (_SCALE_BITS + bits * has_zeros) / size


def _list_left_out(json: _PackingJson) -> tuple[str, ...]:
    """Names, and expressions behind `re:`, of modules that are not packed."""
    lists = (json.ignore, json.ignored_layers, json.modules_to_not_convert)
    names = [name for names in lists for name in names or ()]
    return (*names, *[f"{PATTERN}{key.removeprefix('-:')}" for key in json.dynamic or {}])


def _matches(pattern: str, module: str) -> bool:
    """Whether a name, also one part of it, or an expression behind `re:` leaves the module out."""
    if pattern.startswith(PATTERN):
        return read_pattern(pattern.removeprefix(PATTERN)).matches(module)
    return f".{pattern}." in f".{module}."
