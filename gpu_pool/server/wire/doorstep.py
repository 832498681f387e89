"""Connections that have yet to prove themselves: how many there may be, and for how long.

A stranger who knows a gateway's name can open connections and say no more. So places are few, those
of one address fewer, and when they are taken the connection that has waited longest makes room for
the next: a gateway needs a few milliseconds, and gets in beside any number of such strangers. Must
not know proofs.
Read next: `handshake`, `gpu_pool.server.http_app`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from contracts.errors import Unauthenticated

MAX_PLACES: Final = 32
MAX_PLACES_PER_ADDRESS: Final = 4


class Doorstep:
    """The connections that wait, in the order in which they came."""

    def __init__(
        self,
        timeout_s: float,
        max_places: int = MAX_PLACES,
        max_per_address: int = MAX_PLACES_PER_ADDRESS,
    ) -> None:
        """Nobody waits."""
        self._timeout_s = timeout_s
        self._max_places = max_places
        self._max_per_address = max_per_address
        self._waiting: dict[asyncio.Timeout, str] = {}

    @property
    def num_waiting(self) -> int:
        """Connections that have a place."""
        return len(self._waiting)

    @asynccontextmanager
    async def wait(self, address: str) -> AsyncGenerator[None]:
        """A place for the length of the block, for a connection from `address`.

        Raises: `Unauthenticated` when the block takes too long, or another needs the place.
        """
        self._make_room(address)
        try:
            async with asyncio.timeout(self._timeout_s) as place:
                self._waiting[place] = address
                try:
                    yield
                finally:
                    self._waiting.pop(place, None)
        except TimeoutError as error:
            raise Unauthenticated("The gateway did not prove itself in time.") from error

    def _make_room(self, address: str) -> None:
        """Sends the oldest away, of `address` if it has its share, else of all if all is taken."""
        same = [place for place, other in self._waiting.items() if other == address]
        if len(same) >= self._max_per_address:
            oldest = same[0]
        elif len(self._waiting) >= self._max_places:
            oldest = next(iter(self._waiting))
        else:
            return
        del self._waiting[oldest]
        oldest.reschedule(asyncio.get_running_loop().time())
