"""GPTQ: `qweight`, `qzeros`, `scales` and `g_idx` of a module stand for its `weight`.

Words of 32 bits hold neighbouring inputs, lowest bits first; version 1 of the format has its words
of zeros less one a number. Source: GPTQModel 7.7, `nn_modules/qlinear` and `utils/model.py`.
"""

from functools import partial
from typing import Any, Final

import msgspec

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
    read_group_size,
    refuse,
)
from gpu_pool.weights.int_words import WordForm, gather_gptq, unpack_gptq

_NEGATIVE: Final = "-:"
"""Begins a pattern of `dynamic` that leaves modules as they are."""
_VERSIONS: Final = ("gptq", "gptq_v2")


class _GptqJson(msgspec.Struct, frozen=True):
    """The fields of method `gptq` that change what numbers mean."""

    bits: int = 0
    group_size: int = 128
    desc_act: bool | None = None
    sym: bool | None = None
    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: str | None = None
    is_marlin_format: bool | None = None
    dynamic: dict[str, Any] | None = None
    adapter: Any = None
    rotation: str | None = None


def read_gptq(config: Any) -> FindPacked:
    """What finds weights of method `gptq`. Raises: `CheckpointError`."""
    json = convert_config(config, _GptqJson)
    version = json.checkpoint_format or json.format or _VERSIONS[0]
    pack_dtype = json.pack_dtype or "int32"
    if json.bits not in (4, 8):
        raise refuse(f"gptq of {json.bits} bits is not supported")
    if version not in _VERSIONS or json.is_marlin_format or pack_dtype != "int32":
        what = "marlin" if json.is_marlin_format else f"{version} in {pack_dtype}"
        raise refuse(f"gptq's checkpoint_format {what} is not supported")
    if others := [key for key in json.dynamic or {} if not key.startswith(_NEGATIVE)]:
        raise refuse(f"gptq's `dynamic` changes modules (`{others[0]}`), which is not supported")
    for field, value in (("adapter", json.adapter), ("rotation", json.rotation)):
        if value:
            raise refuse(f"gptq's `{field}` is not supported")
    return partial(
        find_gptq,
        bits=json.bits,
        group_size=read_group_size(json.group_size),
        is_ordered=not json.desc_act,
        is_less_one=version == _VERSIONS[0],
        is_symmetric=bool(json.sym),
    )


def find_gptq(
    source: TensorSource,
    bits: int,
    group_size: int | None,
    *,
    is_ordered: bool,
    is_less_one: bool,
    is_symmetric: bool,
) -> FoundTensors:
    """The weights of modules with a `qweight`; without `is_ordered` inputs of a group lie anywhere,
    and only floats can be made of them.
    """
    headers, found = TensorHeaders(source), dict[str, PackedTensor]()
    per_word = WORD_BITS // bits
    for name, shape in headers.shapes.items():
        module = name.removesuffix(".qweight")
        if module == name or len(shape) != 2:
            continue
        weight, num_inputs, num_outputs = f"{module}.weight", shape[0] * per_word, shape[1]
        size = headers.require_groups(weight, num_inputs, group_size)
        num_groups = num_inputs // size
        pieces = [name, f"{module}.qzeros", f"{module}.scales"]
        headers.require(name, shape, WORDS)
        headers.require(pieces[1], (num_groups, -(-num_outputs // per_word)), WORDS)
        headers.require(pieces[2], (num_groups, num_outputs), FLOATS)
        if f"{module}.g_idx" in headers.shapes or not is_ordered:
            pieces.append(f"{module}.g_idx")
            headers.require(pieces[3], (num_inputs,), WORDS)
        form = WordForm(weight, bits, size, is_less_one=is_less_one, is_symmetric=is_symmetric)
        has_int4 = bits == 4 and (is_ordered or num_groups == 1)
        found[weight] = PackedTensor(
            (num_outputs, num_inputs),
            tuple(pieces),
            partial(unpack_gptq, form=form),
            to_int4=partial(gather_gptq, form=form) if has_int4 else None,
            group_size=size if has_int4 else None,
        )
    biases = {f"{name.removesuffix('.weight')}.bias" for name in found}
    return FoundTensors(found, spare=frozenset(biases & headers.shapes.keys()))
