"""Where the bytes of an adapter's file come from, as those see it who send them to nodes.

Owns the protocol alone; must not know stores. Read next: `gateway.upstream.adapter_feed` (who
reads).
"""

from typing import Protocol

from contracts.adapters import AdapterRef


class AdapterReader(Protocol):
    """What holds adapters' files."""

    async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
        """Exactly those bytes of the file. Raises: `ServiceError` when it is gone."""
        ...
