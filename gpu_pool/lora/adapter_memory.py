"""The adapters that one model has on its device, and how they come there beside its steps.

Owns the thread that loads; who has room is for others to say (`gpu_pool.engine.adapter_room`), and
they say it in the order of plans. What the thread has loaded is there once it was told of by
`poll`. Read next: `loading`.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog
import torch

from contracts.errors import AdapterUnsupported
from gpu_pool.lora.loading import AdapterLoading, LoadedAdapter
from gpu_pool.plan import AdapterFile, AdapterNews

_LOST: Final = "The node has lost the adapter's file."
MAX_REFUSED: Final = 1024
"""Adapters that are known to be none for the model: looking at one takes time from others' steps,
and is not done for each request that names it."""

_Looked = tuple[bytes, int, int]
"""Digest, bytes and time of an adapter's file."""


class AdapterMemory:
    """Of one model, or one rank's part of it. Used by one thread."""

    def __init__(self, loading: AdapterLoading) -> None:
        """Holds none; the thread starts when it is first needed."""
        self._loading = loading
        self._there: dict[bytes, LoadedAdapter] = {}
        self._done: deque[tuple[int, AdapterNews, LoadedAdapter | None]] = deque()
        """What the thread has come to, each with the life in which it was asked for."""
        self._refused: dict[_Looked, str] = {}
        """Why they were refused, until all are dropped; the oldest first."""
        self._life = 0
        """Grows when all are dropped: what is loaded then is of no use."""
        self._pool: ThreadPoolExecutor | None = None

    def find(self, adapter: AdapterFile) -> LoadedAdapter:
        """An adapter that is there."""
        return self._there[adapter.digest]

    def measure(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Begins to find out what an adapter takes; `poll` tells, and `wake` that it has news."""
        self._start(partial(self._measure, adapter), wake)

    def load(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Begins to load an adapter, as `measure` does."""
        self._start(partial(self._load, adapter), wake)

    def measure_now(self, adapter: AdapterFile) -> AdapterNews:
        """What an adapter takes."""
        return self._measure(adapter)[0]

    def load_now(self, adapter: AdapterFile) -> AdapterNews:
        """Loads an adapter, which is there then unless the news say why not."""
        return self._take_in(*self._load(adapter))

    def poll(self) -> tuple[AdapterNews, ...]:
        """What has been found out and loaded since the last call, in order."""
        news: list[AdapterNews] = []
        while self._done:
            life, told, loaded = self._done.popleft()
            if life == self._life:
                news.append(self._take_in(told, loaded))
        return tuple(news)

    def drop(self, digest: bytes) -> None:
        """Frees an adapter that no later plan computes with."""
        self._there.pop(digest).drop()

    def clear(self) -> None:
        """Frees all, and those that are being loaded."""
        self._life += 1
        self._refused.clear()
        for loaded in self._there.values():
            loaded.drop()
        self._there.clear()

    def close(self) -> None:
        """Ends the thread, and frees all."""
        self.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._done.clear()

    def _start(
        self,
        act: Callable[[], tuple[AdapterNews, LoadedAdapter | None]],
        wake: Callable[[], None],
    ) -> None:
        """Has the thread do something."""
        if self._pool is None:
            # With threads of its own it would take the cores from the step in its middle.
            self._pool = ThreadPoolExecutor(
                1, thread_name_prefix="adapters", initializer=partial(torch.set_num_threads, 1)
            )
        life = self._life

        def run() -> None:
            told, loaded = act()
            self._done.append((life, told, loaded))
            wake()

        self._pool.submit(run)

    def _take_in(self, told: AdapterNews, loaded: LoadedAdapter | None) -> AdapterNews:
        """Has an adapter be there."""
        if loaded is not None:
            self._there[told.digest] = loaded
        return told

    def _measure(self, adapter: AdapterFile) -> tuple[AdapterNews, LoadedAdapter | None]:
        """What an adapter takes, or why it cannot be had."""
        return self._guard(adapter, lambda: (self._loading.measure(adapter), None))

    def _load(self, adapter: AdapterFile) -> tuple[AdapterNews, LoadedAdapter | None]:
        """An adapter, or why it cannot be had."""

        def load() -> tuple[int, LoadedAdapter]:
            loaded = self._loading.load(adapter)
            return loaded.num_bytes, loaded

        return self._guard(adapter, load, is_loaded=True)

    def _guard(
        self,
        adapter: AdapterFile,
        act: Callable[[], tuple[int, LoadedAdapter | None]],
        *,
        is_loaded: bool = False,
    ) -> tuple[AdapterNews, LoadedAdapter | None]:
        """What `act` has come to; whatever goes wrong is that adapter's failure alone."""
        looked = _identify(adapter)
        known = self._refused.get(looked)
        if known is not None:
            return AdapterNews(adapter.digest, refused=known), None
        try:
            num_bytes, loaded = act()
        except AdapterUnsupported as error:
            self._note_refused(looked, error.message)
            return AdapterNews(adapter.digest, refused=error.message), None
        except Exception as error:  # the drive's, the device's memory, a defect of ours
            structlog.get_logger().warning(
                "an adapter cannot be loaded",
                reason=f"{type(error).__name__}: {error}",
                thread=threading.current_thread().name,
            )
            reason = _LOST if isinstance(error, OSError) else "The adapter could not be loaded."
            return AdapterNews(adapter.digest, failed=reason), None
        return AdapterNews(adapter.digest, num_bytes, is_loaded=is_loaded), loaded

    def _note_refused(self, looked: _Looked, reason: str) -> None:
        """Remembers that an adapter is none for the model."""
        self._refused[looked] = reason
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]


def _identify(adapter: AdapterFile) -> _Looked:
    """What is another one when the file has changed on the drive, whatever its digest was to be."""
    try:
        found = os.stat(adapter.path)
    except OSError:
        return adapter.digest, 0, 0
    return adapter.digest, found.st_size, found.st_mtime_ns
