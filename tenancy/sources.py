"""Time and chance: the types of the injected sources, and what tenancy makes of them.

Owns no source of its own; composition roots pass `time.time` and `secrets.token_bytes`.
"""

from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]
"""Seconds since 1970, UTC."""
Randomness = Callable[[int], bytes]
"""That many bytes, unpredictable ones wherever a secret is made of them."""

ID_BYTES: Final = 16
_SECRET_BYTES: Final = 32


def create_id(randomness: Randomness) -> str:
    """32 lower-case hexadecimal digits, the shape of every id of tenancy."""
    return randomness(ID_BYTES).hex()


def create_secret(randomness: Randomness) -> bytes:
    """What keys follow from that are to be forgotten one day."""
    return randomness(_SECRET_BYTES)


def read_unix_us(clock: Clock) -> int:
    """Now in microseconds since 1970, fine enough to keep the order of what is created."""
    return int(clock() * 1_000_000)
