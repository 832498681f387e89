"""What a checkpoint will take once it is loaded, told by its headers and `config.json` alone.

No torch, so that the server's process can ask before a core has loaded anything. Counts numbers by
what holds them, whichever layer they are of; `ModelLoader.measure_bytes` knows the network and is
exact. Read next: `header`, `formats`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal

import msgspec

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.targets import EVERY_MODULE, find_group
from gpu_pool.weights.header import TensorEntry

_BESIDE: Final = (
    *(".qzeros", ".scales", ".g_idx"),
    *("_scale", "_scales", "_scale_inv", "_scale_ub", "_shape", "_zero_point", "_g_idx"),
)
"""Ends of names of what says how numbers are meant: it goes when they are unpacked."""
_WORD_BITS: Final = 32
_MXFP4_PER_BYTE: Final = 2
_BLOCK: Final = 128
"""Rows and columns of fp8 blocks that a GPU multiplies as they are."""
_BLOCK_SCALE_BYTES: Final = 4
_INT4_MULTIPLE: Final = 32
"""Of inputs in a group that a CPU's kernels read."""
_INT4_GROUP_BYTES: Final = 6
"""A factor in fp32 and a zero in bf16."""


@dataclass(frozen=True, slots=True)
class LoadedForm:
    """What numbers become."""

    itemsize: int
    """Bytes of what is computed in."""
    keeps_int4: bool = False
    """Four bits stay so, as on a CPU with native kernels."""
    keeps_blocks: bool = False
    """fp8 blocks stay so, as on a GPU."""


class _WeightsJson(msgspec.Struct, frozen=True):
    """How a group of compressed-tensors stores its weights."""

    num_bits: Literal[4, 8] = 8


class _GroupJson(msgspec.Struct, frozen=True):
    """A group of its modules."""

    weights: _WeightsJson | None = None
    targets: tuple[str, ...] = (EVERY_MODULE,)


class _PackingJson(msgspec.Struct, frozen=True):
    """The fields of `quantization_config` that names and shapes do not tell."""

    bits: Literal[4, 8] = 4
    desc_act: bool | None = None
    config_groups: dict[str, _GroupJson] | None = None


def measure_loaded(
    tensors: Mapping[str, TensorEntry], quantization_config: Any, form: LoadedForm
) -> int:
    """Bytes of all tensors, unpacked but for what stays as it is.

    Raises: `CheckpointError` for a `quantization_config` that says nothing of them.
    """
    if quantization_config is None:
        return form.itemsize * sum(prod(entry.shape) for entry in tensors.values())
    try:
        packing = msgspec.convert(quantization_config, _PackingJson)
        pieces = _Pieces(tensors, packing, form)
        return sum(
            pieces.measure(entry) for name, entry in tensors.items() if not name.endswith(_BESIDE)
        )
    except (msgspec.ValidationError, re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(f"config.json: quantization_config: {error}.") from error


class _Pieces:
    """The tensors of a packed checkpoint."""

    def __init__(
        self, tensors: Mapping[str, TensorEntry], packing: _PackingJson, form: LoadedForm
    ) -> None:
        """Takes what `measure_loaded` does."""
        self._tensors = tensors
        self._desc_act = bool(packing.desc_act)
        self._bits = packing.bits
        self._form = form
        self._group_bits: dict[str, int] = {}
        for group in (packing.config_groups or {}).values():
            for target in group.targets:
                self._group_bits.setdefault(target, (group.weights or _WeightsJson()).num_bits)

    def measure(self, entry: TensorEntry) -> int:
        """Bytes of what a tensor becomes."""
        num_stored = prod(entry.shape)
        match entry.dtype:
            case "I32":
                return self._measure_words(entry)
            case "U8":
                return num_stored * _MXFP4_PER_BYTE * self._form.itemsize
            case "F8_E4M3" if self._form.keeps_blocks and self._has_blocks(entry):
                num_blocks = prod(-(-size // _BLOCK) for size in entry.shape)
                return num_stored + num_blocks * _BLOCK_SCALE_BYTES
            case _:
                return num_stored * self._form.itemsize

    def _has_blocks(self, entry: TensorEntry) -> bool:
        """True for a matrix with a factor per block."""
        counts = tuple(-(-size // _BLOCK) for size in entry.shape)
        scales = [self._tensors.get(entry.name + ending) for ending in ("_scale_inv", "_scale")]
        return any(found is not None and found.shape == counts for found in scales)

    def _measure_words(self, entry: TensorEntry) -> int:
        """Bytes of what stands in words. Raises: `CheckpointError` where no group is for it."""
        stem = entry.name.removesuffix("_packed")
        is_compressed = stem != entry.name
        bits = find_group(stem, self._group_bits) if is_compressed else self._bits
        if bits is None:
            raise CheckpointError(f"No group of quantization_config is for `{stem}`.")
        num_numbers = prod(entry.shape) * (_WORD_BITS // bits)
        scales = f"{stem}_scale" if is_compressed else f"{stem.removesuffix('qweight')}scales"
        num_groups = prod(self._tensors[scales].shape) if scales in self._tensors else 0
        if bits == 4 and self._form.keeps_int4 and num_groups:
            is_scattered = (
                f"{stem}_g_idx" in self._tensors
                if is_compressed
                else self._desc_act and self._tensors[scales].shape[0] > 1
            )
            if not is_scattered and num_numbers // num_groups % _INT4_MULTIPLE == 0:
                return num_numbers // 2 + num_groups * _INT4_GROUP_BYTES
        return num_numbers * self._form.itemsize
