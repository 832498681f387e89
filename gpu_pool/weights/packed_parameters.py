"""A model's parameters while it is built: noted as they are packed, or from a packed copy.

A copy has the packed forms by what they were packed from: a parameter's name, and which part of its
memory. Parameters that are only ever packed are stood in for by tensors of torch's `meta` device,
which have a shape and no content: who does anything else with one than pack it is found out.
Must not know families or files. Read next: `packed_file`, `gpu_pool.worker.packed_loading`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.models.products import SCALES, ZEROS
from gpu_pool.weights.packed_file import Entry, PackedFile, View, lay_out
from gpu_pool.weights.pages import Span
from gpu_pool.weights.tensor_search import find_tensors


class NotInCopyError(Exception):
    """The model asks for something that its copy does not have."""


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """All that a copy will hold, while the tensors live."""

    entries: tuple[Entry, ...]
    tensors: tuple[Tensor, ...]
    num_bytes: int


class RecordedParameters:
    """Hands parameters on and notes which of them are packed, and into what."""

    def __init__(self, read: ReadParameter, kernels: NativeKernels) -> None:
        """`read` reads the checkpoint."""
        self._read = read
        self._kernels = kernels
        self._names: dict[int, tuple[StorageWeakRef, str]] = {}
        """By memory. A reference keeps a memory's identity, not its content."""
        self._plain: dict[str, Tensor] = {}
        """Parameters that were not packed so far."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._packed: dict[tuple[str, View], Tensor] = {}
        self._group_sizes: dict[str, int] = {}
        """Of parameters of four bits."""

    def read(self, name: str) -> Tensor:
        """The parameter, as it is read."""
        tensor = self._plain[name] = self._read(name)
        reference = StorageWeakRef(tensor.untyped_storage())
        self._names[reference.cdata] = (reference, name)
        self._shapes[name] = tuple(tensor.shape)
        return tensor

    def pack(self, weight_MK: Tensor | Int4Weight) -> Tensor:
        """The weight in the kernels' form; noted where it is a part of a parameter."""
        packed = self._kernels.pack(weight_MK)
        tensor = _find_main(weight_MK)
        found = self._names.get(_identify(tensor))
        if found is not None:
            _, name = found
            self._plain.pop(name, None)
            self._packed[name, _describe(tensor)] = packed
            if isinstance(weight_MK, Int4Weight):
                self._group_sizes[name] = weight_MK.group_size
                for ending in (SCALES, ZEROS):
                    self._plain.pop(f"{name}{ending}", None)
        return packed

    def finish(self, model: object) -> PackedRecord | None:
        """What there is to keep of the model that was built; None where it cannot be kept."""
        for tensor in find_tensors(model):
            found = None if tensor.is_mkldnn else self._names.get(_identify(tensor))
            if found is not None:  # packed and needed as it is, too: an embedding that is the head
                self._plain.setdefault(found[1], tensor)
        whole = dict(self._plain)
        tensors = [*whole.values(), *self._packed.values()]
        if not self._packed or not all(map(_can_keep, tensors)):
            return None
        if any(tensor.dtype != torch.bfloat16 for tensor in whole.values()):
            return None
        if any(tuple(tensor.shape) != self._shapes[name] for name, tensor in whole.items()):
            return None
        names = [(name, None) for name in whole] + [*self._packed]
        entries, num_bytes = lay_out(
            [
                Entry(
                    parameter=name,
                    shape=self._shapes[name],
                    view=view,
                    num_bytes=tensor.nbytes,
                    group_size=self._group_sizes.get(name, 0),
                )
                for (name, view), tensor in zip(names, tensors, strict=True)
            ]
        )
        return PackedRecord(entries, tuple(tensors), num_bytes)


class MappedParameters:
    """Parameters, and what was packed of them, in the memory of a copy."""

    def __init__(self, file: PackedFile, kernels: NativeKernels) -> None:
        """Nothing is looked at before it is asked for."""
        self.file = file
        self._kernels = kernels
        entries = file.contents.entries
        self._plain = {entry.parameter: entry for entry in entries if entry.view is None}
        self._packed = {(entry.parameter, entry.view): entry for entry in entries if entry.view}
        self._forms = _list_forms(entries)
        """Shape and dtype of every parameter, what belongs to one of four bits among them."""
        self._given: dict[int, tuple[Tensor, str]] = {}
        """By memory, which stays as long as this does."""

    @property
    def span(self) -> Span:
        """The memory of the copy."""
        memory = memoryview(self.file.memory)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        return Span(address, len(memory))

    def read(self, name: str) -> Tensor:
        """The parameter, or what stands in for it. Raises: `NotInCopyError`."""
        if name not in self._forms:
            raise NotInCopyError(name)
        shape, dtype = self._forms[name]
        if name in self._plain:
            tensor = self._map(self._plain[name]).view(shape)
        else:
            tensor = torch.empty(shape, dtype=dtype, device="meta")
        self._given[_identify(tensor)] = (tensor, name)
        return tensor

    def pack(self, weight_MK: Tensor | Int4Weight) -> Tensor:
        """What was packed of this weight; what a family has made of several is packed now.

        Raises: `NotInCopyError`.
        """
        tensor = _find_main(weight_MK)
        _, name = self._given.get(_identify(tensor), (None, ""))
        entry = self._packed.get((name, _describe(tensor)))
        if entry is not None:
            return self._map(entry)
        if tensor.is_meta:
            raise NotInCopyError(name or "a matrix that was made of what was only to be packed")
        return self._kernels.pack(weight_MK)

    def finish(self, model: object) -> None:
        """Raises: `NotInCopyError` where the model holds what only stood in for a parameter."""
        if any(tensor.is_meta for tensor in find_tensors(model)):
            raise NotInCopyError("the model computes with what was only to be packed")
        self._given.clear()

    def _map(self, entry: Entry) -> Tensor:
        """An entry's tensor, flat."""
        dtype = torch.uint8 if entry.group_size else torch.bfloat16
        return torch.frombuffer(
            self.file.memory,
            dtype=dtype,
            count=entry.num_bytes // dtype.itemsize,
            offset=entry.start,
        )


def _list_forms(entries: Iterable[Entry]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """By the names that a model asks for."""
    forms: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for entry in entries:
        name, shape = entry.parameter, entry.shape
        forms[name] = (shape, torch.uint8 if entry.group_size else torch.bfloat16)
        if entry.group_size:
            per_group = (*shape[:-1], 2 * shape[-1] // entry.group_size)
            forms[f"{name}{SCALES}"] = (per_group, torch.float32)
            forms[f"{name}{ZEROS}"] = (per_group, torch.uint8)
    return forms


def _find_main(weight_MK: Tensor | Int4Weight) -> Tensor:
    """The tensor by which a weight is known."""
    return weight_MK.numbers if isinstance(weight_MK, Int4Weight) else weight_MK


def _identify(tensor: Tensor) -> int:
    """The same for all views of one memory, which may be none."""
    return StorageWeakRef(tensor.untyped_storage()).cdata


def _describe(tensor: Tensor) -> View:
    """Which part of its memory a tensor is."""
    return View(int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


def _can_keep(tensor: Tensor) -> bool:
    """True for what is written and mapped as one run of bytes."""
    is_right = tensor.dtype in (torch.bfloat16, torch.uint8) and tensor.is_contiguous()
    return is_right and math.prod(tensor.shape) > 0
