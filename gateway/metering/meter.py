"""Where a request's consumption is reported, once, when it is over.

Owns the interface and the object that forgets; must not know prices or stores.
"""

from typing import Protocol

from gateway.request_context import RequestContext


class Meter(Protocol):
    """Takes note of finished requests."""

    async def settle(self, context: RequestContext) -> None:
        """Records `context.usage`; None means that no node reported any. Idempotent by id."""
        ...


class NullMeter:
    """Keeps no books."""

    async def settle(self, context: RequestContext) -> None:
        """Forgets."""
