"""The threads that fetch: a read for one account, then one for the next.

Owns the order of reads and what of them is still to come; must not know what is read. An account
that fetches much holds up each other one by one read at a time. Accounts are called what
`namespace` calls them. Read next: `tier_store` (the user).
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

from gpu_pool.kv.tiers.fetch_choice import Backlog


class _Read(NamedTuple):
    """One read, and its size."""

    act: Callable[[], None]
    num_bytes: int


class FetchTurns:
    """Some threads that read for all accounts."""

    def __init__(self, num_threads: int) -> None:
        """The threads run from here on."""
        self._reads: dict[str, deque[_Read]] = {}
        """In the order of their turns; none is empty."""
        self._num_bytes: dict[str, int] = {}
        """What has not been read, by whose it is; no account stays that fetches nothing."""
        self._is_closing = False
        self._has_changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"kv-fetch_{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, owner: str, act: Callable[[], None], num_bytes: int = 0) -> None:
        """Has a read done for an account, after all that it has asked for before."""
        with self._has_changed:
            if not self._is_closing:
                self._reads.setdefault(owner, deque()).append(_Read(act, num_bytes))
                self._count(owner, num_bytes)
                self._has_changed.notify()

    def find_backlog(self, owner: str) -> Backlog:
        """What is to be read yet, as one account sees it, in bytes."""
        with self._has_changed:
            others = (n for other, n in self._num_bytes.items() if other != owner)
            return Backlog(self._num_bytes.get(owner, 0), others)

    def stop(self) -> None:
        """Begins no further read."""
        with self._has_changed:
            self._is_closing = True
            self._reads.clear()
            self._has_changed.notify_all()

    def join(self) -> None:
        """Waits for the reads under way."""
        for thread in self._threads:
            thread.join()

    # -- the threads -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Reads until stopped."""
        while (turn := self._take_next()) is not None:
            owner, read = turn
            try:
                read.act()
            except Exception:
                structlog.get_logger().exception("a KV block was not fetched")
            finally:
                with self._has_changed:
                    self._count(owner, -read.num_bytes)

    def _take_next(self) -> tuple[str, _Read] | None:
        """The next read and whose it is, once there is one; None: never again."""
        with self._has_changed:
            self._has_changed.wait_for(lambda: self._reads or self._is_closing)
            if self._is_closing:
                return None
            owner = next(iter(self._reads))
            reads = self._reads.pop(owner)
            read = reads.popleft()
            if reads:
                self._reads[owner] = reads  # behind the others
            return owner, read

    def _count(self, owner: str, num_bytes: int) -> None:
        """Keeps the sums."""
        left = self._num_bytes.get(owner, 0) + num_bytes
        if left:
            self._num_bytes[owner] = left
        else:
            self._num_bytes.pop(owner, None)
