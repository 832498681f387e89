"""Who is left out for a moment when items are claimed: there was no room for the last one.

Owns the moments; belongs to one runner. Must not know why.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

NameT = TypeVar("NameT", bound=Hashable)


class ShutOut(Generic[NameT]):
    """Names and until when they are left out. Units: seconds of the monotonic clock."""

    def __init__(self) -> None:
        """Nobody is."""
        self._until_s: dict[NameT, float] = {}

    def add(self, name: NameT, until_s: float) -> None:
        """Leaves `name` out until then, or longer if it is so already."""
        self._until_s[name] = max(until_s, self._until_s.get(name, 0.0))

    def discard(self, name: NameT) -> None:
        """Lets `name` in again."""
        self._until_s.pop(name, None)

    def list_names(self, now_s: float) -> list[NameT]:
        """Who is left out now; the others are forgotten."""
        self._until_s = {name: end_s for name, end_s in self._until_s.items() if end_s > now_s}
        return list(self._until_s)
