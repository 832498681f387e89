"""A device's memory that can be taken away from a model and given back under the same addresses.

Owns what is mapped where and the copy on the host; must not know what tensors are for. Weights do
not change, so their copy is made at the first sleep, pinned once and kept: later sleeps only unmap.
Read next: `virtual_memory` (the device), `device_memory` (what this is to others), `landing`.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from gpu_pool.large_pages import create_buffer
from gpu_pool.weights.cpu_memory import locate
from gpu_pool.weights.pages import Span
from gpu_pool.weights.virtual_memory import VirtualMemory

_CHUNK_BYTES: Final = 64 << 20
"""Mapped at once at least: few handles, little left over."""
_ALIGNMENT: Final = 512
"""Of tensors: what kernels' widest loads and copies want."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A range that is mapped as a whole."""

    address: int
    num_bytes: int

    def meets(self, span: Span) -> bool:
        """True when some of the span lies in it."""
        end = self.address + self.num_bytes
        return span.address < end and self.address < span.address + span.num_bytes


class ArenaLanding:
    """A return whose last copies are under way on the device, which waits for them by itself."""

    def __init__(self, memory: VirtualMemory, moments: Sequence[object], num_bytes: int) -> None:
        """`moments` are when each portion is there, with all before it."""
        self._memory = memory
        self._moments = moments
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        """What the device gave."""
        return self._num_bytes

    def wait_for(self, portion: int) -> None:
        """What is launched from now on waits for it."""
        self._memory.hold(self._moments[portion])

    def finish(self) -> None:
        """What is launched from now on waits for all."""
        self._memory.hold(self._moments[-1])

    def abandon(self) -> None:
        """Returns when the copies are over: they cannot be called back."""
        self._memory.wait()


class Arena:
    """Tensors of one model, one behind the other."""

    def __init__(self, memory: VirtualMemory, max_bytes: int, *, keeps: bool) -> None:
        """Takes addresses for `max_bytes` and no memory. Without `keeps`, a sleep leaves zeros."""
        self._memory = memory
        self._keeps = keeps
        self._size = _round_up(max_bytes, max(memory.granularity, _CHUNK_BYTES))
        self._start = memory.reserve(self._size)
        self._num_used = 0
        self._chunks: list[_Chunk] = []
        self._handles: dict[_Chunk, int] = {}
        """One per chunk while the arena is on the device, none while it is not."""
        self._portions: list[list[_Chunk]] = []
        """Chunks in the order in which they come back; empty: as they lie."""
        self._host: mmap.mmap | None = None

    @property
    def num_bytes(self) -> int:
        """What it takes on the device."""
        return sum(chunk.num_bytes for chunk in self._chunks)

    @property
    def host_bytes(self) -> int:
        """What its copy takes on the host."""
        return 0 if self._host is None else len(self._host)

    def create(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new tensor that holds anything. Raises: `OSError` when the device has no memory."""
        num_bytes = prod(shape) * dtype.itemsize
        address = self._start + self._num_used
        end = self._num_used + _round_up(num_bytes, _ALIGNMENT)
        assert end <= self._size, "the arena is smaller than what it was made for"
        while end > self.num_bytes:
            self._grow(end - self.num_bytes)
        self._num_used = end
        return self._memory.view(address, num_bytes).view(dtype).view(*shape)

    def leave(self) -> int:
        """Gives all memory of the device back."""
        assert len(self._handles) == len(self._chunks), "left before"
        self._memory.wait()
        if self._keeps and self._host is None:
            self._copy_out()
        self._unmap_some()
        return self.num_bytes

    def come_back(self) -> int:
        """Takes memory again, chunk by chunk: one is filled while the next is mapped.

        Raises: `OSError` when the device has no memory left; nothing is mapped then.
        """
        self.begin_return()
        self._memory.wait()
        return self.num_bytes

    def begin_return(self) -> "ArenaLanding":
        """The same, while the device is still filling the last chunks. Raises: as `come_back`."""
        assert not self._handles, "did not leave"
        moments: list[object] = []
        try:
            for chunks in self._portions or [self._chunks]:
                for chunk in chunks:
                    self._handles[chunk] = self._memory.map(chunk.address, chunk.num_bytes)
                    self._fill(chunk)
                moments.append(self._memory.mark())
        except OSError:
            self._unmap_some()
            raise
        return ArenaLanding(self._memory, moments, self.num_bytes)

    def set_order(self, portions: Sequence[Sequence[Tensor]]) -> None:
        """Chunks come back in the order in which these portions need them from now on.

        Tensors that lie elsewhere count for nothing.
        """
        left = dict.fromkeys(self._chunks)
        self._portions = []
        for tensors in portions:
            spans = [locate(tensor) for tensor in tensors]
            needed = [chunk for chunk in left if any(chunk.meets(span) for span in spans)]
            for chunk in needed:
                del left[chunk]
            self._portions.append(needed)
        self._portions[-1] += left

    def close(self) -> None:
        """Gives everything back; its tensors are void."""
        self._unmap_some()
        self._memory.free(self._start, self._size)
        self._chunks.clear()
        if self._host is not None:
            self._memory.unpin(_find_span(self._host))
            self._host = None

    def _grow(self, num_bytes: int) -> None:
        """Maps one more chunk, of at least so many bytes."""
        size = _round_up(max(num_bytes, _CHUNK_BYTES), self._memory.granularity)
        size = min(size, self._size - self.num_bytes)
        chunk = _Chunk(self._start + self.num_bytes, size)
        self._handles[chunk] = self._memory.map(chunk.address, chunk.num_bytes)
        self._chunks.append(chunk)

    def _copy_out(self) -> None:
        """Makes the host's copy."""
        self._host = create_buffer(self.num_bytes)
        self._memory.pin(_find_span(self._host))
        for chunk in self._chunks:
            self._memory.copy_out(chunk.address, self._find_copy(chunk))
        self._memory.wait()

    def _fill(self, chunk: _Chunk) -> None:
        """Starts to put a chunk's content in place."""
        if self._keeps:
            self._memory.copy_in(chunk.address, self._find_copy(chunk))
        else:
            self._memory.zero(chunk.address, chunk.num_bytes)

    def _find_copy(self, chunk: _Chunk) -> Span:
        """Where a chunk's content lies on the host."""
        assert self._host is not None, "no copy was made"
        whole = _find_span(self._host)
        return Span(whole.address + chunk.address - self._start, chunk.num_bytes)

    def _unmap_some(self) -> None:
        """Unmaps what is mapped, be it all, a part or nothing."""
        self._memory.wait()
        for chunk, handle in self._handles.items():
            self._memory.unmap(chunk.address, chunk.num_bytes, handle)
        self._handles.clear()


def _find_span(buffer: mmap.mmap) -> Span:
    """Where a buffer lies."""
    return locate(torch.frombuffer(buffer, dtype=torch.uint8))


def _round_up(num_bytes: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-num_bytes // unit) * unit
