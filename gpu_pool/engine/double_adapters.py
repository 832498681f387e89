"""The adapters of the executor double: which are there, and a strict reading of `AdapterLoader`.

An adapter takes as many bytes as its path says: `/7` takes 7, and no number is a file that cannot
be read. Must not know rows. Read next: `executor_double` (its only caller).
"""

from collections.abc import Callable

from gpu_pool.engine.double_memory import require
from gpu_pool.plan import AdapterFile, AdapterNews, ExecutorInfo


class DoubleAdapters:
    """What was asked happens at the next `poll`, or once it `goes_on` again."""

    def __init__(self, info: ExecutorInfo) -> None:
        """None is there."""
        self._info = info
        self.goes_on = True
        self.num_loads = 0
        self._asked: list[AdapterNews] = []
        self._there: dict[bytes, int] = {}
        self._coming: dict[bytes, int] = {}

    @property
    def digests(self) -> frozenset[bytes]:
        """Those that are there."""
        return frozenset(self._there)

    @property
    def asked(self) -> frozenset[bytes]:
        """Those that were asked for, and nothing has been told of them yet."""
        return frozenset(news.digest for news in self._asked)

    def measure(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Notes what it takes. Raises: `InvariantBroken` when it is known."""
        digest = adapter.digest
        require(digest not in self._there | self._coming, "measures an adapter that is there")
        require(digest not in self.asked, "asks twice about an adapter")
        size = adapter.path.removeprefix("/")
        refused = "" if size.isdecimal() else "The adapter cannot be used: it is none."
        num_bytes = int(size) if size.isdecimal() else 0
        self._asked.append(AdapterNews(digest, num_bytes, refused=refused))
        wake()

    def load(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Notes that it is to be there. Raises: `InvariantBroken` when that breaks the bound."""
        digest, num_bytes = adapter.digest, int(adapter.path.removeprefix("/"))
        require(digest not in self._there | self._coming, "loads an adapter twice")
        self._coming[digest] = num_bytes
        held = sum(self._there.values()) + sum(self._coming.values())
        require(held <= self._info.adapter_bytes, "more adapters than there is room for")
        self._asked.append(AdapterNews(digest, num_bytes, is_loaded=True))
        wake()

    def poll(self) -> tuple[AdapterNews, ...]:
        """What has happened since the last call."""
        if not self.goes_on:
            return ()
        news, self._asked = tuple(self._asked), []
        for one in news:
            if one.is_loaded:
                self._there[one.digest] = self._coming.pop(one.digest)
                self.num_loads += 1
        return news

    def drop(self, digest: bytes) -> None:
        """Forgets one. Raises: `InvariantBroken` where it is not there."""
        require(digest in self._there, "drops an adapter that is not there")
        del self._there[digest]

    def clear(self) -> None:
        """Forgets all, and what is under way."""
        self._there.clear()
        self._coming.clear()
        self._asked.clear()
