"""All the memory of a loaded model that can leave its device: weights and KV memory.

Owns where tensors come to lie while a model is loaded, by device; must not know files or plans.
Read next: `gpu_pool.weights.device_memory`.
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, Protocol

import structlog
import torch
from torch import Tensor

from gpu_pool.cpu_share import count_own_threads
from gpu_pool.large_pages import create_buffer
from gpu_pool.lull import Lull
from gpu_pool.models.network import CausalModel, Encoder
from gpu_pool.weights.arena import Arena
from gpu_pool.weights.cpu_memory import DroppedMemory, KeptMemory
from gpu_pool.weights.device_memory import DeviceMemory, FixedMemory, LandingMemory
from gpu_pool.weights.landing import Landing
from gpu_pool.weights.packed_writing import NO_COPY, WeightCopy
from gpu_pool.weights.spare_buffers import SpareBuffers
from gpu_pool.weights.tensor_search import find_portions, find_tensors
from gpu_pool.weights.virtual_memory import CudaVirtualMemory, VirtualMemory, has_cuda_bindings

_ROOM_BYTES: Final = 1 << 30
"""Addresses beyond what is needed, for what alignment takes; they cost nothing."""
_MOST_AHEAD_BYTES: Final = 1 << 30
"""Of KV memory that a CPU's model has before it is written; no more than the model's own size."""
_JOINED_BYTES: Final = 128 << 20
"""Used memory that is kept for what is joined next while a model is loaded."""


class ModelMemory:
    """Weights, whose content is kept, and KV memory, whose content is not."""

    def __init__(
        self,
        weights: LandingMemory,
        kv: Sequence[DeviceMemory] = (),
        *,
        shares_cores: bool = False,
        copy: WeightCopy = NO_COPY,
        lull: Lull | None = None,
    ) -> None:
        """All on the device. A `copy` of the weights may be on its way to a file, and memory may be
        taken ahead, in a `lull`.

        With `shares_cores` the cores that compute copy, too: then weights that land under a step
        cost it more than they save, and all land before it.
        """
        self.lull: Final = lull or Lull(time.monotonic)
        """Hears of every step."""
        self._shares_cores = shares_cores
        self.weights_bytes = weights.num_bytes
        self.kv_bytes = sum(part.num_bytes for part in kv)
        self._weights = weights
        self._kv = tuple(kv)
        self._copy = copy

    def leave(self) -> int:
        """Gives all back; returns the bytes. The KV memory goes first: it makes room at once."""
        self._copy.stop()
        return sum([part.leave() for part in (*self._kv, self._weights)])

    def come_back(self) -> int:
        """Takes all again, weights as they were and KV memory as zeros; returns the bytes."""
        return sum([part.come_back() for part in (*self._kv, self._weights)])

    def begin_return(self) -> Landing:
        """The same, while weights are still on their way: in the portions of `list_parts`.

        Raises: `OSError` when the device has no memory left.
        """
        for part in self._kv:
            part.come_back()
        landing = self._weights.begin_return()
        if self._shares_cores:
            landing.finish()
        return landing

    def close(self) -> None:
        """Gives back what is held beside the device's memory."""
        self._copy.close()
        for part in (self._weights, *self._kv):
            part.close()


class Places(Protocol):
    """Where the tensors of one model come to lie."""

    def put(self, tensor: Tensor) -> Tensor:
        """A parameter, which is on a CPU, in its final place."""
        ...

    def join(self, parts: Iterator[Tensor], num_rows: int) -> Tensor:
        """A parameter whose rows, `num_rows` in all, come in parts, in its final place."""
        ...

    def create_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """KV memory."""
        ...

    def finish(
        self,
        model: CausalModel | Encoder,
        kv: Sequence[Tensor] = (),
        copy: WeightCopy = NO_COPY,
    ) -> ModelMemory:
        """The memory of the model that was built from what was put, and its KV memory.

        `copy` is that of a CPU's weights.
        """
        ...


class CpuPlaces:
    """Tensors lie where they were made: what packing makes of them is found in the end."""

    def __init__(self, own_kv_bytes: int | None = None) -> None:
        """What parts were joined in serves again once the whole has been packed. `own_kv_bytes` of
        the KV memory are always there, the rest comes and goes; None: all are.
        """
        most = _MOST_AHEAD_BYTES
        self._most_ahead_bytes = most if own_kv_bytes is None else min(most, own_kv_bytes)
        self._buffers = SpareBuffers(_JOINED_BYTES)

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def join(self, parts: Iterator[Tensor], num_rows: int) -> Tensor:
        """The only part itself, or all one below the other."""
        first = next(parts)
        if len(first) == num_rows:
            return first
        parts = chain(iter((first,)), parts)
        del first  # what has handed it on holds it no longer: no two parts are there at once
        return fill_rows(self._create, parts, num_rows)

    def _create(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that holds anything, in used memory where there is some of its size."""
        num_bytes = math.prod(shape) * dtype.itemsize
        view = self._buffers.lend(self._buffers.take(num_bytes), 0, num_bytes)
        return torch.frombuffer(view, dtype=dtype).view(*shape)

    def create_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros, of which the system gives pages at the first write: `torch.zeros` would write."""
        buffer = create_buffer(math.prod(shape) * dtype.itemsize)
        return torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape)).view(*shape)

    def finish(
        self,
        model: CausalModel | Encoder,
        kv: Sequence[Tensor] = (),
        copy: WeightCopy = NO_COPY,
    ) -> ModelMemory:
        """All tensors that the model leads to."""
        self._buffers.close()
        portions = find_portions(model, list_parts(model))
        weights = KeptMemory(portions, count_own_threads(), mapped=copy.span)
        bytes_ahead = min(weights.num_bytes, self._most_ahead_bytes)
        lull = Lull(time.monotonic)
        dropped = [DroppedMemory(kv, bytes_ahead, lull)] if kv else ()
        copy.begin(lull)
        return ModelMemory(weights, dropped, shares_cores=True, copy=copy, lull=lull)


class GpuPlaces:
    """Tensors lie in two arenas. What a model derives from its parameters is small and stays."""

    def __init__(self, memory: VirtualMemory, weights_bytes: int, kv_bytes: int) -> None:
        """Takes addresses for at most so many bytes, and alignment."""
        self._weights = Arena(memory, 2 * weights_bytes + _ROOM_BYTES, keeps=True)
        self._kv = Arena(memory, kv_bytes + _ROOM_BYTES, keeps=False)

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor's content on the device."""
        return self._weights.create(tensor.shape, tensor.dtype).copy_(tensor)

    def join(self, parts: Iterator[Tensor], num_rows: int) -> Tensor:
        """The parts' content on the device; each goes to where it belongs as soon as it is read."""
        return fill_rows(self._weights.create, parts, num_rows)

    def create_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros on the device."""
        return self._kv.create(shape, dtype).zero_()

    def finish(
        self,
        model: CausalModel | Encoder,
        kv: Sequence[Tensor] = (),
        copy: WeightCopy = NO_COPY,
    ) -> ModelMemory:
        """The two arenas."""
        del kv, copy
        self._weights.set_order(find_portions(model, list_parts(model)))
        return ModelMemory(self._weights, [self._kv])


class PlainPlaces:
    """Tensors lie where torch puts them, and cannot leave."""

    def __init__(self, device: torch.device) -> None:
        """Any device."""
        self._device = device

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor on the device."""
        return tensor.to(self._device)

    def join(self, parts: Iterator[Tensor], num_rows: int) -> Tensor:
        """The parts on the device; each goes to where it belongs as soon as it is read."""
        return fill_rows(partial(torch.empty, device=self._device), parts, num_rows)

    def create_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros on the device."""
        return torch.zeros(tuple(shape), dtype=dtype, device=self._device)

    def finish(
        self,
        model: CausalModel | Encoder,
        kv: Sequence[Tensor] = (),
        copy: WeightCopy = NO_COPY,
    ) -> ModelMemory:
        """What there is, which stays."""
        del copy
        weights = sum(tensor.nbytes for tensor in find_tensors(model))
        return ModelMemory(FixedMemory(weights), [FixedMemory(sum(part.nbytes for part in kv))])


def list_parts(model: CausalModel | Encoder) -> Sequence[object]:
    """What a step comes to one after the other; nothing of an encoder, which is woken whole."""
    return () if isinstance(model, Encoder) else model.passage


class CreateTensor(Protocol):
    """Makes a tensor that holds anything."""

    def __call__(self, shape: Sequence[int], /, *, dtype: torch.dtype) -> Tensor:
        """Of that shape."""
        ...


def fill_rows(create: CreateTensor, parts: Iterator[Tensor], num_rows: int) -> Tensor:
    """A new tensor that holds the rows of all parts; no two parts are there at once."""
    first = next(parts)
    whole = create((num_rows, *first.shape[1:]), dtype=first.dtype)
    end = len(first)
    whole[:end].copy_(first)
    del first
    for part in parts:
        start, end = end, end + len(part)
        whole[start:end].copy_(part)
        del part
    assert end == num_rows, "the parts have other rows than were announced"
    return whole


def create_places(
    device: torch.device, weights_bytes: int, kv_bytes: int = 0, own_kv_bytes: int | None = None
) -> Places:
    """The places for a model that takes at most so many bytes, as `CpuPlaces` has the last."""
    if device.type == "cpu":
        return CpuPlaces(own_kv_bytes)
    if device.type == "cuda" and has_cuda_bindings():
        return GpuPlaces(CudaVirtualMemory(device), weights_bytes, kv_bytes)
    structlog.get_logger().warning(
        "models keep their memory while they sleep: cuda-bindings is missing; "
        "pip install 'hearth[gpu]'"
    )
    return PlainPlaces(device)
