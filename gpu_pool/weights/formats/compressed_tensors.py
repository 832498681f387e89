"""compressed-tensors: groups of modules, each with its own bits, factors and way of storing them.

Source: the package compressed-tensors 0.20, `quantization/quant_config.py` and `compressors/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.pieces import (
    FLOATS,
    WORD_BITS,
    WORDS,
    FindPacked,
    FoundTensors,
    PackedTensor,
    TensorHeaders,
    TensorSource,
    convert_config,
    refuse,
    require_pattern,
)
from gpu_pool.weights.formats.scaled import describe_blocks, describe_rows, list_calibration
from gpu_pool.weights.formats.targets import EVERY_MODULE, find_group
from gpu_pool.weights.int_words import WordForm, gather_compressed, unpack_compressed

_PACKED, _SCALE = "_packed", "_scale"
_PER_GROUP: Final = {"pack-quantized"}
_FLOAT, _INT = {"float-quantized", "naive-quantized"}, {"int-quantized", "naive-quantized"}


class _WeightsJson(msgspec.Struct, frozen=True):
    """How a group stores its weights."""

    num_bits: int = 0
    type: str = ""
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: tuple[int, int] | str | None = None


class _GroupJson(msgspec.Struct, frozen=True):
    """A group of modules."""

    weights: _WeightsJson | None = None
    targets: tuple[str, ...] = (EVERY_MODULE,)
    format: str | None = None


class _SparsityJson(msgspec.Struct, frozen=True):
    """How zeros are left out."""

    format: str = "dense"


class _PackingJson(msgspec.Struct, frozen=True):
    """The fields of `quantization_config` that change what numbers mean."""

    format: str | None = None
    config_groups: dict[str, _GroupJson] | None = None
    sparsity_config: _SparsityJson | None = None
    transform_config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of some modules are stored."""

    bits: int
    symmetric: bool = True
    group_size: int | None = None
    """Inputs that share a factor; None: all."""
    dtype: str | None = None
    """Of numbers that are not packed into words."""
    block_size: tuple[int, int] | None = None


Schemes = Mapping[str, Scheme]
"""By target: a module's name, an expression behind `re:`, or `Linear` for every module."""


def read_compressed(config: Any) -> FindPacked:
    """What finds weights of method `compressed-tensors`. Raises: `CheckpointError`."""
    return partial(find_compressed, schemes=read_schemes(config))


def read_schemes(config: Any) -> Schemes:
    """How modules are stored. Raises: `CheckpointError` naming the field that is not supported."""
    json = convert_config(config, _PackingJson)
    if json.sparsity_config is not None and json.sparsity_config.format != "dense":
        raise refuse(f"sparsity_config of format {json.sparsity_config.format} is not supported")
    if json.transform_config:
        raise refuse("a transform_config is not supported")
    schemes: dict[str, Scheme] = {}
    for name, group in (json.config_groups or {}).items():
        scheme = _read_scheme(name, group, group.format or json.format or "")
        for target in group.targets:
            require_pattern(target)
            schemes.setdefault(target, scheme)
    if not schemes:
        raise refuse("compressed-tensors without config_groups")
    return schemes


def _read_scheme(name: str, group: _GroupJson, form: str) -> Scheme:
    """How the modules of a group are stored. Raises: `CheckpointError` naming the group."""
    w = group.weights or _WeightsJson()
    size = w.group_size
    strategy = w.strategy or ("tensor" if size is None else "channel" if size == -1 else "group")
    match (w.type, w.num_bits, strategy):
        case ("int", 4 | 8, "group") if form in _PER_GROUP and size is not None and size > 0:
            return Scheme(w.num_bits, w.symmetric, size)
        case ("int", 4 | 8, "channel") if form in _PER_GROUP:
            return Scheme(w.num_bits, w.symmetric)
        case ("int", 8, "channel" | "tensor") if form in _INT and w.symmetric:
            return Scheme(8, dtype="I8")
        case ("float", 8, "channel" | "tensor") if form in _FLOAT and w.symmetric:
            return Scheme(8, dtype="F8_E4M3")
        case ("float", 8, "block") if form in _FLOAT and w.symmetric:
            if isinstance(w.block_structure, tuple) and min(w.block_structure) > 0:
                return Scheme(8, dtype="F8_E4M3", block_size=w.block_structure)
        case _:
            pass
    kind = "symmetric" if w.symmetric else "asymmetric"
    raise refuse(
        f"compressed-tensors' group `{name}` with format `{form}` and {kind} weights of "
        f"{w.num_bits} bits, type `{w.type}`, strategy {strategy}, is not supported"
    )


def find_compressed(source: TensorSource, schemes: Schemes) -> FoundTensors:
    """Matrices held as `…_packed` or as they are, with a `…_scale`.

    Raises: `CheckpointError` naming one whose pieces do not fit, or that no group describes.
    """
    headers, found = TensorHeaders(source), dict[str, PackedTensor]()
    for name, shape in headers.shapes.items():
        stem = name.removesuffix(_PACKED)
        is_packed = stem != name
        if len(shape) != 2 or not (is_packed or f"{name}{_SCALE}" in headers.shapes):
            continue
        scheme = find_group(stem, schemes)
        if scheme is None:
            raise CheckpointError(f"No group of quantization_config is for `{stem}`.")
        found[stem] = (_describe_words if is_packed else _describe_scaled)(headers, stem, scheme)
    return FoundTensors(found, list_calibration(headers))


def _describe_words(headers: TensorHeaders, stem: str, scheme: Scheme) -> PackedTensor:
    """A matrix in words. Raises: `CheckpointError` naming what does not fit."""
    if scheme.dtype is not None:
        raise CheckpointError(f"Tensor `{stem}{_PACKED}` is packed; its group is {scheme.dtype}.")
    num_rows, num_words = headers.shapes[f"{stem}{_PACKED}"]
    per_word = WORD_BITS // scheme.bits
    num_inputs = num_words * per_word
    size = scheme.group_size or num_inputs
    num_groups = num_inputs // max(size, 1)
    scales = f"{stem}{_SCALE}"
    if not num_inputs or num_inputs % size or headers.shapes.get(scales) != (num_rows, num_groups):
        raise CheckpointError(
            f"The checkpoint lacks `{scales}` with a factor for every {size} numbers of a row of "
            f"`{stem}`, of shape {[num_rows, num_inputs]}."
        )
    pieces = [f"{stem}{_PACKED}", scales, f"{stem}_shape"]
    headers.require(scales, (num_rows, num_groups), FLOATS)
    headers.require(pieces[0], (num_rows, num_words), WORDS)
    headers.require(pieces[2], (2,), {"I64", "I32"})
    zeros, order = f"{stem}_zero_point", f"{stem}_g_idx"
    if not scheme.symmetric:
        headers.require(zeros, (-(-num_rows // per_word), num_groups), WORDS)
        pieces.append(zeros)
    if order in headers.shapes:
        headers.require(order, (num_inputs,), WORDS)
        pieces.append(order)
    form = WordForm(stem, scheme.bits, size, not scheme.symmetric, order in headers.shapes)
    has_int4 = scheme.bits == 4 and not form.has_order
    return PackedTensor(
        (num_rows, num_inputs),
        tuple(pieces),
        partial(unpack_compressed, form=form),
        to_int4=partial(gather_compressed, form=form) if has_int4 else None,
        group_size=size if has_int4 else None,
    )


def _describe_scaled(headers: TensorHeaders, name: str, scheme: Scheme) -> PackedTensor:
    """A matrix of eight bits a number. Raises: `CheckpointError` naming what does not fit."""
    if scheme.dtype is None:
        raise CheckpointError(f"The checkpoint lacks `{name}{_PACKED}`, and has `{name}{_SCALE}`.")
    if scheme.block_size is not None:
        return describe_blocks(headers, name, f"{name}{_SCALE}", scheme.block_size)
    return describe_rows(headers, name, {scheme.dtype})
