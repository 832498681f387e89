"""How many bytes of request bodies all connections hold together, and the bounds on that.

A bound per body alone would let a thousand clients hold ten gigabytes, and one of all bodies alone
would let one client have it all. Must not know what bodies mean, nor who their owners are.
Read next: `gateway.fair_share`, `gateway.middleware.exchange`.
"""

from gateway.fair_share import is_fair


class BodyMemory:
    """The bytes in use; belongs to one event loop."""

    __slots__ = ("_of_owner", "max_bytes", "num_bytes")

    def __init__(self, max_bytes: int) -> None:
        """Nothing is held yet."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._of_owner: dict[str, int] = {}
        """Of bodies whose owner is known; none has 0."""

    def take(self, num_bytes: int, owner: str | None = None) -> bool:
        """True when so many more fit, and are counted from now on."""
        num_free = self.max_bytes - self.num_bytes
        if num_bytes > num_free:
            return False
        if owner is not None:
            num_own = self._of_owner.get(owner, 0) + num_bytes
            if not is_fair(num_own, num_free):
                return False
            self._of_owner[owner] = num_own
        self.num_bytes += num_bytes
        return True

    def assign(self, num_bytes: int, owner: str) -> bool:
        """So many that are taken are `owner`'s; False when that is more than one may have."""
        self.num_bytes -= num_bytes
        return self.take(num_bytes, owner)

    def give_back(self, num_bytes: int, owner: str | None = None) -> None:
        """So many are no longer held."""
        self.num_bytes -= num_bytes
        if owner is not None:
            self._of_owner[owner] -= num_bytes
            if not self._of_owner[owner]:
                del self._of_owner[owner]
