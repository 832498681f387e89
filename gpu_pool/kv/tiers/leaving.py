"""A block on its way from staging memory into one or more tiers.

Must not know tiers. Read next: `measured_tier`, which keeps it.
"""

import threading
from collections.abc import Callable

from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace


class LeavingBlock:
    """Content that stays as it is until everybody who was to keep it has done so, or has not."""

    __slots__ = ("_let_go", "_lock", "_num_users", "content", "name", "space")

    def __init__(
        self,
        space: TierNamespace,
        name: BlockName,
        content: memoryview,
        let_go: Callable[[], None],
        num_users: int,
    ) -> None:
        """`let_go` is called once, by any thread, after `num_users` calls of `leave`."""
        self.space = space
        self.name = name
        self.content = content
        self._let_go = let_go
        self._num_users = num_users
        self._lock = threading.Lock()

    def leave(self) -> None:
        """One user less."""
        with self._lock:
            self._num_users -= 1
            is_last = self._num_users == 0
        if is_last:
            self._let_go()
