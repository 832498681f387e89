"""Leave to start, and its return: the place where limits are enforced.

Owns the interface and the object that limits nothing; must not know HTTP. An implementation
reserves on every scope or on none, and a refused request consumes nothing.
"""

from typing import Protocol

from contracts.inference import GenerateRequest, Usage
from tenancy.interfaces import Principal


class Lease(Protocol):
    """The places and amounts that one running request holds."""

    def release(self, usage: Usage | None) -> None:
        """Gives everything back but what was used; None when nothing is known to be."""
        ...


class Admission(Protocol):
    """Decides whether a request may start."""

    async def admit(self, principal: Principal, request: GenerateRequest) -> Lease:
        """What the request holds from now on. Raises: `LimitError` leaves."""
        ...


class NoLimit:
    """Admits everything."""

    async def admit(self, principal: Principal, request: GenerateRequest) -> Lease:
        """A lease on nothing."""
        return self

    def release(self, usage: Usage | None) -> None:
        """Nothing was held."""
