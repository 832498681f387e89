"""Whole numbers of 4 and 8 bits in words of 32: GPTQ's, AWQ's and compressed-tensors'.

Each comes out as fp32 or, where it is of four bits and its groups are of neighbouring inputs, as an
`Int4Weight`, which stands for the same numbers. Shapes: M outputs, K inputs, G groups, w numbers a
word. Words are as they lie in memory, the lowest byte first.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gpu_pool.kernels.int4_groups import Int4Weight, widen_int4
from gpu_pool.models.errors import CheckpointError

_MIDDLES: Final = {4: 8, 8: 128}
"""What stands for zero where nothing else is stored."""
_ONES: Final = {4: 0x11111111, 8: 0x01010101}
"""Words of ones."""
_AWQ_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word each of eight outputs is, counted from the lowest bits."""


@dataclass(frozen=True, slots=True)
class WordForm:
    """What is to be known of words besides their shapes."""

    name: str
    """Of the weight."""
    bits: int
    group_size: int
    has_zeros: bool = True
    has_order: bool = False
    """A tensor says each input's group."""
    is_less_one: bool = False
    """Words of zeros are short of one a number."""
    is_symmetric: bool = False
    """All zeros are the middle."""


def gather_compressed(
    packed: Tensor, scales: Tensor, shape: Tensor, *rest: Tensor, form: WordForm
) -> Int4Weight:
    """compressed-tensors' `[M, K / w]`, with zeros `[M / w, G]` behind the shape.

    Raises: `CheckpointError` when `shape` is another than the words hold.
    """
    _require_shape(packed, shape, form)
    zeros = _split_compressed_zeros(scales, rest, form)
    return Int4Weight(packed.view(torch.uint8), scales.float(), zeros)


def unpack_compressed(
    packed: Tensor, scales: Tensor, shape: Tensor, *rest: Tensor, form: WordForm
) -> Tensor:
    """The same in fp32 `[M, K]`, with 8 bits too, and with inputs' groups behind all.

    Raises: `CheckpointError` naming the weight whose pieces contradict each other.
    """
    if form.bits == 4 and not form.has_order:
        return widen_int4(gather_compressed(packed, scales, shape, *rest, form=form))
    _require_shape(packed, shape, form)
    zeros = _split_compressed_zeros(scales, rest, form)
    groups = _read_order(rest[-1] if form.has_order else None, packed, scales.shape[1], form)
    return _widen(_split_bytes(packed, form.bits), scales.float(), zeros, groups, form.group_size)


def gather_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, *order: Tensor, form: WordForm
) -> Int4Weight:
    """GPTQ's words `[K / w, M]`, zeros `[G, M / w]` and scales `[G, M]`.

    Groups may lie in another order than their factors. Raises: `CheckpointError` naming the weight
    when groups are not of neighbours.
    """
    words = qweight.T.contiguous()
    groups = _read_order(order[0] if order else None, words, scales.shape[0], form)
    firsts = _find_firsts(groups, form.group_size)
    if firsts is None:
        raise CheckpointError(
            f"The g_idx of `{form.name}` spreads groups over its inputs (desc_act), though "
            "config.json does not say so."
        )
    zeros = _split_gptq_zeros(qzeros, scales, form)
    return Int4Weight(
        words.view(torch.uint8), scales.float().T[:, firsts].contiguous(), zeros[:, firsts]
    )


def unpack_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, *order: Tensor, form: WordForm
) -> Tensor:
    """The same in fp32 `[M, K]`, with 8 bits too, and wherever inputs of a group lie.

    Raises: `CheckpointError` naming the weight whose groups are not there.
    """
    words = qweight.T.contiguous()
    groups = _read_order(order[0] if order else None, words, scales.shape[0], form)
    zeros = _split_gptq_zeros(qzeros, scales, form)
    return _widen(_split_bytes(words, form.bits), scales.float().T, zeros, groups, form.group_size)


def gather_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4Weight:
    """AWQ's words `[K, M / 8]`, zeros `[G, M / 8]` and scales `[G, M]`."""
    halves = qweight.view(torch.uint8)
    first, second = halves[0::2], halves[1::2]
    pairs = torch.stack((first & 0x0F | second << 4, first >> 4 | second & 0xF0), -1)
    zeros = _order_awq(_split_bytes(qzeros, 4))
    return Int4Weight(_order_awq(pairs.flatten(1)), scales.float().T.contiguous(), zeros)


def unpack_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
    """The same in fp32 `[M, K]`."""
    return widen_int4(gather_awq(qweight, qzeros, scales))


def _order_awq(stored: Tensor) -> Tensor:
    """Columns in the order of outputs, and as rows."""
    places = torch.tensor(_AWQ_PLACES)
    return stored.unflatten(1, (-1, 8))[..., places].flatten(1).T.contiguous()


def _split_bytes(words: Tensor, bits: int) -> Tensor:
    """The numbers of rows of words, a byte each."""
    whole = words.view(torch.uint8)
    return whole if bits == 8 else torch.stack((whole & 0x0F, whole >> 4), -1).flatten(1)


def _split_compressed_zeros(scales: Tensor, rest: tuple[Tensor, ...], form: WordForm) -> Tensor:
    """What stands for zero, `[M, G]`."""
    if not form.has_zeros:
        return torch.full(scales.shape, _MIDDLES[form.bits], dtype=torch.uint8)
    words = rest[0].T.contiguous()
    return _split_bytes(words, form.bits)[:, : scales.shape[0]].T.contiguous()


def _split_gptq_zeros(qzeros: Tensor, scales: Tensor, form: WordForm) -> Tensor:
    """What stands for zero, `[M, G]`. Whole words are added, as whole words were taken away.

    Some writers note version 1 and take nothing away: middles that are stored where all zeros are
    middles stay what they are.
    """
    num_rows = scales.shape[1]
    stored = _split_bytes(qzeros, form.bits)[:, :num_rows]
    is_stored = form.is_symmetric and bool((stored == _MIDDLES[form.bits]).all())
    if form.is_less_one and not is_stored:
        stored = _split_bytes(qzeros + _ONES[form.bits], form.bits)[:, :num_rows]
    return stored.T.contiguous()


def _read_order(order: Tensor | None, words: Tensor, num_groups: int, form: WordForm) -> Tensor:
    """Each input's group, `[K]`; neighbours' without an order. Raises: `CheckpointError`."""
    if order is None:
        num_inputs = words.shape[1] * 32 // form.bits
        return torch.arange(num_inputs) // form.group_size
    if order.min() < 0 or order.max() >= num_groups:
        raise CheckpointError(
            f"The g_idx of `{form.name}` names groups from {order.min()} to {order.max()}; there "
            f"are {num_groups}."
        )
    return order.long()


def _find_firsts(groups: Tensor, group_size: int) -> Tensor | None:
    """The groups one after the other; None where their inputs are no neighbours."""
    firsts = groups[::group_size]
    return firsts if torch.equal(groups, firsts.repeat_interleave(group_size)) else None


def _widen(numbers: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor, size: int) -> Tensor:
    """Numbers less the zero of their group, times its factor."""
    firsts = _find_firsts(groups, size)
    if firsts is None:
        return numbers.float().sub_(zeros.float()[:, groups]).mul_(scales[:, groups])
    wide = numbers.float().unflatten(1, (-1, size))
    wide.sub_(zeros.float()[:, firsts, None]).mul_(scales[:, firsts, None])
    return wide.flatten(1)


def _require_shape(packed: Tensor, shape: Tensor, form: WordForm) -> None:
    """Raises when a weight has another shape than its words hold."""
    if shape.tolist() != [packed.shape[0], packed.shape[1] * 32 // form.bits]:
        raise CheckpointError(
            f"Packed weights of shape {shape.tolist()} are not supported (`{form.name}`)."
        )
