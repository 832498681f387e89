"""A device that is a piece of this machine's memory and keeps the rules of a real one."""

import ctypes
import itertools
import mmap

import torch
from torch import Tensor

from gpu_pool.weights.pages import Span

GARBAGE = 0xAB
"""What new memory holds, and what is left where none is."""


class HostVirtualMemory:
    """Refuses what a driver would refuse, and what would be a silent fault on a real device."""

    granularity = 1 << 16

    def __init__(self, num_bytes: int) -> None:
        """`num_bytes` is what can be mapped at once."""
        self.num_free = num_bytes
        self.mapped: dict[int, tuple[int, int]] = {}
        """By handle: address and length."""
        self.pinned: set[int] = set()
        self.num_copied_out = 0
        self._reserved: dict[int, mmap.mmap] = {}
        self._handles = itertools.count(1)
        self._copies: list[tuple[int, Span]] = []
        """Begun and not carried out: they are when somebody waits, as late as a device may be."""
        self._num_carried_out = 0

    def reserve(self, num_bytes: int) -> int:
        assert num_bytes % self.granularity == 0
        buffer = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._reserved[address] = buffer
        return address

    def free(self, address: int, num_bytes: int) -> None:
        assert len(self._reserved.pop(address)) == num_bytes
        assert not self.mapped, "addresses are given back while memory is behind them"

    def map(self, address: int, num_bytes: int) -> int:
        assert num_bytes % self.granularity == 0
        assert not self._is_mapped(address, 1)
        if num_bytes > self.num_free:
            raise OSError("CUDA_ERROR_OUT_OF_MEMORY")
        self.num_free -= num_bytes
        handle = next(self._handles)
        self.mapped[handle] = (address, num_bytes)
        self._fill(address, num_bytes, GARBAGE)
        return handle

    def unmap(self, address: int, num_bytes: int, handle: int) -> None:
        assert self._num_carried_out == len(self._copies), "memory goes while copies are under way"
        assert self.mapped.pop(handle) == (address, num_bytes)
        self._fill(address, num_bytes, GARBAGE)
        self.num_free += num_bytes

    def copy_in(self, address: int, source: Span) -> None:
        assert self._is_mapped(address, source.num_bytes), "a copy to where nothing is"
        self._copies.append((address, source))

    def mark(self) -> object:
        return len(self._copies)

    def hold(self, moment: object) -> None:
        assert isinstance(moment, int)
        for address, source in self._copies[self._num_carried_out : moment]:
            ctypes.memmove(address, source.address, source.num_bytes)
        self._num_carried_out = max(self._num_carried_out, moment)

    def copy_out(self, address: int, target: Span) -> None:
        assert self._is_mapped(address, target.num_bytes), "a copy from where nothing is"
        ctypes.memmove(target.address, address, target.num_bytes)
        self.num_copied_out += target.num_bytes

    def zero(self, address: int, num_bytes: int) -> None:
        assert self._is_mapped(address, num_bytes)
        self._fill(address, num_bytes, 0)

    def wait(self) -> None:
        self.hold(len(self._copies))

    def pin(self, span: Span) -> None:
        assert span.address not in self.pinned, "pinned twice"
        self.pinned.add(span.address)

    def unpin(self, span: Span) -> None:
        self.pinned.remove(span.address)

    def view(self, address: int, num_bytes: int) -> Tensor:
        assert self._is_mapped(address, num_bytes), "a tensor where nothing is"
        return torch.frombuffer(Span(address, num_bytes).view(), dtype=torch.uint8)

    def _is_mapped(self, address: int, num_bytes: int) -> bool:
        """True when memory is behind all of a range, in one piece or several."""
        pieces = sorted(self.mapped.values())
        for first, size in pieces:
            if first <= address < first + size:
                taken = min(num_bytes, first + size - address)
                address, num_bytes = address + taken, num_bytes - taken
        return num_bytes == 0

    def _fill(self, address: int, num_bytes: int, value: int) -> None:
        ctypes.memset(address, value, num_bytes)
