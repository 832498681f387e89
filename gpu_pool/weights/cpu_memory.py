"""Weights and KV memory of a model on a CPU: their pages leave, their addresses stay.

On a CPU the device is a budget of the machine's memory and the host tier a second place in it: a
file in memory that this process does not map, so that what the process holds really falls. Content
moves piece by piece and each piece is given back before the next is taken: at no time are there two
copies of more than a piece per thread. Read next: `device_memory`, `landing`, `tensor_search`.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import torch
from torch import Tensor

from gpu_pool.lull import Lull
from gpu_pool.weights.landing import ThreadedLanding
from gpu_pool.weights.pages import Span, bring_pages, discard_pages, punch_hole
from gpu_pool.weights.pages_ahead import PagesAhead

_PIECE_BYTES: Final = 8 << 20
_NOTHING: Final = Span(0, 0)
_MAX_THREADS: Final = 4
"""More do not copy faster: memory is the bound."""


ReadInto = Callable[[int, Sequence[memoryview], int], int]
"""Reads bytes of a file, from an offset on, to where they belong; returns how many."""


class KeptMemory:
    """Tensors that read the same after a stay on the host."""

    def __init__(
        self,
        portions: Sequence[Iterable[Tensor]],
        num_threads: int,
        read_into: ReadInto = os.preadv,
        mapped: Span = _NOTHING,
    ) -> None:
        """Holds the tensors: while it lives, nobody else gets their memory. They come back in the
        order of their portions.

        What is smaller than a page, and the ends of others, stays where it is. What lies in
        `mapped` is a file's, mapped and unchanged: it leaves and comes back without being copied.
        """
        self._mapped = mapped
        self._tensors = [tuple(tensors) for tensors in portions]
        spans = [[locate(tensor) for tensor in tensors] for tensors in self._tensors]
        self._pieces = _cut([[span.trim() for span in portion] for portion in spans])
        self._num_bytes = sum(span.num_bytes for portion in spans for span in portion)
        self._num_threads = min(num_threads, _MAX_THREADS)
        self._read_into = read_into
        self._file: int | None = None
        self._landing: ThreadedLanding | None = None

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return self._num_bytes

    def leave(self) -> int:
        """Moves the content to the host. Raises: `OSError` when there is no room."""
        assert self._file is None, "left before"
        self._file = os.memfd_create("hearth-weights")
        pieces = [piece for portion in self._pieces for piece in portion]
        with ThreadPoolExecutor(self._num_threads) as pool:
            return sum(pool.map(self._put_away, pieces))

    def come_back(self) -> int:
        """Moves the content back; nothing of it remains on the host. Raises: `OSError`."""
        landing = self.begin_return()
        landing.finish()
        return landing.num_bytes

    def begin_return(self) -> ThreadedLanding:
        """Moves the content back beside whoever goes on; as it comes, it goes on the host."""
        assert self._file is not None, "did not leave"
        coming = [[partial(self._bring_back, piece) for piece in part] for part in self._pieces]
        self._landing = ThreadedLanding(coming, self._num_threads, self._forget)
        return self._landing

    def close(self) -> None:
        """Forgets what is on the host."""
        if self._landing is not None:
            self._landing.abandon()
        self._forget()

    def _forget(self) -> None:
        """Gives back what is left of the host's memory; nobody may be reading it."""
        self._landing = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _put_away(self, piece: tuple[int, Span]) -> int:
        """Writes a piece to the host, then gives its pages back."""
        assert self._file is not None
        offset, span = piece
        if self._mapped.holds(span):
            return discard_pages(span)
        view, num_done = span.view(), 0
        while num_done < span.num_bytes:
            num_done += os.pwrite(self._file, view[num_done:], offset + num_done)
        return discard_pages(span)

    def _bring_back(self, piece: tuple[int, Span]) -> int:
        """Reads a piece from the host, which is given back there. Raises: `OSError`."""
        assert self._file is not None
        offset, span = piece
        if self._mapped.holds(span):
            bring_pages(span)
            return span.num_bytes
        view, num_done = span.view(), 0
        while num_done < span.num_bytes:
            num_read = self._read_into(self._file, [view[num_done:]], offset + num_done)
            if num_read <= 0:
                raise OSError(errno.EIO, "weights have vanished from the host's memory")
            num_done += num_read
        punch_hole(self._file, offset, span.num_bytes)
        return span.num_bytes


class DroppedMemory:
    """Tensors that read as zeros after a sleep, and take memory again as they are written."""

    def __init__(
        self, tensors: Iterable[Tensor], bytes_ahead: int = 0, lull: Lull | None = None
    ) -> None:
        """Holds the tensors, as `KeptMemory` does. So many bytes of them take memory ahead, as soon
        as there is a `lull`; without one, now.
        """
        self._tensors = tuple(tensors)
        self._spans = [locate(tensor) for tensor in self._tensors]
        self._ahead = PagesAhead(
            self._spans, bytes_ahead, self._tensors, lull or Lull(time.monotonic, quiet_s=0.0)
        )

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(span.num_bytes for span in self._spans)

    def leave(self) -> int:
        """Drops the content, the ends of tensors included."""
        self._ahead.end()
        for tensor, span in zip(self._tensors, self._spans, strict=True):
            if span.trim().num_bytes < span.num_bytes:
                _zero_ends(tensor, span)
        return sum(discard_pages(span) for span in self._spans)

    def come_back(self) -> int:
        """Nothing moves: the system hands out zeros."""
        return sum(span.trim().num_bytes for span in self._spans)

    def close(self) -> None:
        """Nothing is held elsewhere."""
        self._ahead.end()


def locate(tensor: Tensor) -> Span:
    """The memory behind a CPU's tensor, whatever its layout: oneDNN's own tensors included."""
    if tensor.is_mkldnn:
        address: int = torch.ops.mkldnn.data_ptr(tensor)
        return Span(address, torch.ops.mkldnn._nbytes(tensor))
    storage = tensor.untyped_storage()
    return Span(storage.data_ptr(), storage.nbytes())


def _cut(portions: Sequence[Sequence[Span]]) -> list[list[tuple[int, Span]]]:
    """All spans in pieces, each with its place in the file."""
    cut: list[list[tuple[int, Span]]] = []
    offset = 0
    for spans in portions:
        pieces: list[tuple[int, Span]] = []
        for span in spans:
            for start in range(0, span.num_bytes, _PIECE_BYTES):
                num_bytes = min(_PIECE_BYTES, span.num_bytes - start)
                pieces.append((offset, Span(span.address + start, num_bytes)))
                offset += num_bytes
        cut.append(pieces)
    return cut


def _zero_ends(tensor: Tensor, span: Span) -> None:
    """Zeroes what no page of its own holds."""
    pages, view = span.trim(), span.view()
    assert tensor.untyped_storage().data_ptr() == span.address
    first = pages.address - span.address if pages.num_bytes else span.num_bytes
    last = first + pages.num_bytes
    view[:first] = bytes(first)
    view[last:] = bytes(span.num_bytes - last)
