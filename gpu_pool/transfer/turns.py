"""A thread that makes or checks tags: some megabytes for one account, then for the next.

Owns the order of work; must not know what it is. An account with much of it holds up each other one
for a turn. Read next: `exporter` and `puller`, whose work this is.
"""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

from contracts.ids import AccountId

TURN_BYTES: Final = 4 << 20
"""What is hashed for one account before it is the next one's turn: some milliseconds' work."""

Work = Iterator[int]
"""Does a part at each step and says how many bytes it was; it looks itself before each whether
anybody still wants it."""


class Turns:
    """The work of one thread, by whose it is."""

    def __init__(self, name: str) -> None:
        """The thread, called `name`, runs from here on."""
        self._works: dict[AccountId, deque[Work]] = {}
        """In the order of their turns; none is empty."""
        self._is_closing = False
        self._has_changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, account_id: AccountId, work: Work) -> None:
        """Has something done for an account, after all that it has asked for before."""
        with self._has_changed:
            self._works.setdefault(account_id, deque()).append(work)
            self._has_changed.notify()

    def close(self) -> None:
        """Ends the thread once all is done."""
        with self._has_changed:
            self._is_closing = True
            self._has_changed.notify()
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Works until closed."""
        while (account_id := self._find_next()) is not None:
            works, num_bytes = self._works[account_id], 0
            while works and num_bytes < TURN_BYTES:
                step_bytes = next(works[0], None)
                if step_bytes is None:
                    works.popleft()
                num_bytes += step_bytes or 0
            with self._has_changed:
                del self._works[account_id]
                if works:
                    self._works[account_id] = works  # behind the others

    def _find_next(self) -> AccountId | None:
        """Whose turn it is, once there is something to do; None: nobody's ever again."""
        with self._has_changed:
            self._has_changed.wait_for(lambda: self._works or self._is_closing)
            return next(iter(self._works), None)
