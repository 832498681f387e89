"""Who goes when a port has as many connections as it can hold.

To open a connection takes no token: without this, one client that opens them and asks nothing, or
something that is refused, and stays, would leave no place to others. Only those without a request
under way go. Whose network has most of them gives up first, those that have waited longest; some at
a time, since to find them takes a look at all.
Read next: `gateway.fair_share`, `gateway.middleware.patient_connection`, `doorway` (before TLS).
"""

import socket
from collections.abc import Collection, Iterable
from typing import Final, Protocol, TypeVar

from gateway.fair_share import find_part

_FEW: Final = 64
_NETWORK_BYTES: Final = 8
"""Of an IPv6 address: whoever has one has all that begin alike."""


class Guest(Protocol):
    """A connection."""

    @property
    def host(self) -> str:
        """The client's address; empty where there is none."""
        ...

    @property
    def unused_since_s(self) -> float | None:
        """Since when it has had no request under way; None while it has one."""
        ...


class OpenGuest(Guest, Protocol):
    """One that can be asked to go."""

    def give_way(self) -> None:
        """Ends the connection for another one, and is none of those that are open."""
        ...


AnyGuest = TypeVar("AnyGuest", bound=Guest)


def make_room(guests: Collection[OpenGuest], newcomer: OpenGuest, max_guests: int) -> bool:
    """Has others than the newcomer give way while there are more than may be; False where none can.

    `guests` are all that are open, the newcomer among them.
    """
    num_too_many = len(guests) - max_guests
    if num_too_many <= 0:
        return True
    leavers = choose_leavers([guest for guest in guests if guest is not newcomer], num_too_many)
    for leaver in leavers:
        leaver.give_way()
    return len(leavers) >= num_too_many


def choose_leavers(guests: Iterable[AnyGuest], num_too_many: int) -> list[AnyGuest]:
    """Those that go, so that there are at least `num_too_many` less, or as few more as can go."""
    by_network: dict[bytes, list[tuple[float, AnyGuest]]] = {}
    for guest in guests:
        since_s = guest.unused_since_s
        if since_s is not None:
            by_network.setdefault(_find_network(guest.host), []).append((since_s, guest))
    num_unused = sum(map(len, by_network.values()))
    num_leavers = max(num_too_many, num_unused // _FEW)
    part = find_part(map(len, by_network.values()), max(num_unused - num_leavers, 0))
    leavers: list[AnyGuest] = []
    last: list[tuple[float, AnyGuest]] = []
    for waiting in by_network.values():
        waiting.sort(key=_get_since, reverse=True)
        leavers += [guest for _, guest in waiting[part + 1 :]]
        last += waiting[part : part + 1]
    last.sort(key=_get_since)
    return leavers + [guest for _, guest in last[: num_leavers - len(leavers)]]


def _get_since(waiting: tuple[float, object]) -> float:
    """Since when."""
    return waiting[0]


def _find_network(host: str) -> bytes:
    """What stands for everybody who may be the same client."""
    if ":" not in host:
        return host.encode()
    try:
        return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:_NETWORK_BYTES]
    except OSError:
        return host.encode()
