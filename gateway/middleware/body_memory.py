"""How many bytes of request bodies all connections hold together, and the bound on that.

A bound per body alone would let a thousand clients hold ten gigabytes. Must not know what bodies
mean. Read next: `gateway.middleware.exchange`.
"""


class BodyMemory:
    """The bytes in use; belongs to one event loop."""

    __slots__ = ("max_bytes", "num_bytes")

    def __init__(self, max_bytes: int) -> None:
        """Nothing is held yet."""
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """True when so many more fit, and are counted from now on."""
        if self.num_bytes + num_bytes > self.max_bytes:
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """So many are no longer held."""
        self.num_bytes -= num_bytes
