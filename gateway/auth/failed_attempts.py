"""Wrong credentials per client address: counted, and refused unread beyond a bound.

Guessing a credential is hopeless; the bound keeps whoever tries from occupying the store. It is
asked only about credentials that are not known already, so that those who share an address with
such a client go on. A bounded table in memory; belongs to one event loop. Must not know
credentials. Read next: `gateway.auth.authenticator`.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from contracts.errors import RateLimited
from gateway.settings import AuthSettings
from gateway.sources import Sources
from tenancy.policies import Address

WINDOW_S: Final = 60.0
MAX_ADDRESSES: Final = 10_000
_IPV6_NETWORK_BITS: Final = 64
"""Whoever has one IPv6 address has this many bits of them."""


@dataclass(slots=True)
class _Window:
    """What an address has got wrong since the window began."""

    ends_s: float
    num_failures: int = 0


class FailedAttempts:
    """The counts of all addresses that have got something wrong lately."""

    def __init__(self, settings: AuthSettings, sources: Sources) -> None:
        """Nobody has."""
        self._max_failures = settings.max_failures_per_address_per_min
        self._sources = sources
        self._windows: dict[str, _Window] = {}

    @property
    def num_addresses(self) -> int:
        """Addresses that are remembered."""
        return len(self._windows)

    def check(self, address: Address | None) -> None:
        """Raises `RateLimited` when `address` has got too much wrong, until its window ends."""
        window = self._windows.get(_to_key(address))
        if window is None or self._max_failures is None:
            return
        left_s = window.ends_s - self._sources.monotonic_s()
        if left_s > 0 and window.num_failures >= self._max_failures:
            raise RateLimited(
                "Too many wrong credentials came from this address.", retry_after_s=left_s
            )

    def count(self, address: Address | None) -> None:
        """`address` has presented a credential that is none."""
        if self._max_failures is None:
            return
        key, now_s = _to_key(address), self._sources.monotonic_s()
        window = self._windows.get(key)
        if window is None or window.ends_s <= now_s:
            self._windows.pop(key, None)  # a new window goes to the end of the table
            window = self._windows[key] = _Window(now_s + WINDOW_S)
            if len(self._windows) > MAX_ADDRESSES:
                del self._windows[next(iter(self._windows))]
        window.num_failures += 1


def _to_key(address: Address | None) -> str:
    """What is counted together: an IPv4 address, a network of IPv6, or all that is unknown."""
    if isinstance(address, IPv6Address):
        return f"{int(address) >> (128 - _IPV6_NETWORK_BITS):x}"
    return str(address)
