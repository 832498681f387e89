"""Keys of blocks that running sequences are computing: who needs one of them may wait for it.

Must not know sequences. Read next: `kv_memory`.
"""

from collections import Counter
from collections.abc import Iterable


class AnnouncedKeys:
    """Each with the priorities of those who compute it."""

    def __init__(self) -> None:
        """Nothing is being computed."""
        self._makers: dict[bytes, list[int]] = {}

    def add(self, key: bytes, priority: int) -> None:
        """One more sequence computes it."""
        self._makers.setdefault(key, []).append(priority)

    def withdraw(self, key: bytes, priority: int) -> None:
        """Takes one announcement back."""
        makers = self._makers[key]
        makers.remove(priority)
        if not makers:
            del self._makers[key]

    def is_made_for(self, key: bytes, priority: int) -> bool:
        """True where somebody computes it who is served no later than `priority`."""
        return any(maker >= priority for maker in self._makers.get(key, ()))

    def check(self, expected: Iterable[tuple[bytes, int]]) -> None:
        """Asserts that these, and no others, are announced."""
        known = ((key, one) for key, makers in self._makers.items() for one in makers)
        assert Counter(expected) == Counter(known), "announcements of nobody"
