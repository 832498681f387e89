"""Pages of private memory are there before anybody writes them.

A system gives a page at the first write to it, and what a virtual machine gives so may have to come
from its host first: 0.4 GB a second were measured, which made the first prompts after a start a
fifth slower. Nor are they taken beside a step, which would wait for memory, too. A control group
that has no more kills who takes a page, so a part of what is free is left alone. Must not know what
the memory is for. Read next: `cpu_memory`, which asks for it, and `gpu_pool.lull`.
"""

import os
import sys
import threading
from collections.abc import Sequence
from threading import Event, Thread
from typing import Final

from gpu_pool.lull import Lull
from gpu_pool.memory_room import read_free_bytes
from gpu_pool.weights.pages import Span, populate_pages

_PIECE_BYTES: Final = 2 << 20
"""A large page: who ends this waits for no more."""
_NICENESS: Final = 10
"""A prompt that comes meanwhile, or after much patience, is computed first."""
_MOST_SHARE: Final = 1 / 4
"""Of what is free as it begins: whoever computes takes memory, too."""


class PagesAhead:
    """Takes the first pages of some memory, in a thread of its own."""

    def __init__(self, spans: Sequence[Span], most_bytes: int, owner: object, lull: Lull) -> None:
        """Goes on in each `lull`, with the same share of each span: at most `most_bytes` together.
        Whoever owns the memory lives until this has ended.
        """
        self._lull = lull
        total = sum(span.num_bytes for span in spans)
        share = min(1.0, most_bytes / max(1, total))
        self._spans = [Span(span.address, int(span.num_bytes * share)) for span in spans]
        self._is_ended = False
        self._is_awaited = Event()
        self._thread = Thread(target=self._run, args=(owner,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Takes no more; returns when the last page is there."""
        self._is_ended = True
        self.wait()

    def wait(self) -> None:
        """Returns when all are there that are to be: they are taken at once."""
        self._is_awaited.set()
        self._thread.join()

    def _run(self, _owner: object) -> None:
        if sys.platform == "linux":  # where threads have a priority of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        num_taken = 0
        for span in self._spans:
            for start in range(0, span.num_bytes, _PIECE_BYTES):
                self._lull.wait(self._is_awaited)
                if self._is_ended:
                    return
                piece = Span(span.address + start, min(_PIECE_BYTES, span.num_bytes - start))
                num_taken += piece.num_bytes
                leaves_enough = num_taken <= _MOST_SHARE * (read_free_bytes() + num_taken)
                if not leaves_enough or not populate_pages(piece):
                    return
