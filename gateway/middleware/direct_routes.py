"""What a port asks of the code behind it: requests served past ASGI, and words for what is none.

Read next: `gateway.api.ports` and `gateway.api.guard`, which do this.
"""

from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

from contracts.errors import ServiceError
from gateway.middleware.exchange import HttpExchange


class DirectRoutes(Protocol):
    """Serves some requests without ASGI."""

    def find(self, path: str) -> Any:
        """What `serve` needs to know of a request to `path`; None leaves it to ASGI."""
        ...

    def serve(self, found: Any, exchange: HttpExchange) -> Coroutine[Any, Any, None]:
        """Answers one request, whatever happens."""
        ...


class NoDirectRoutes:
    """Leaves every request to ASGI."""

    def find(self, path: str) -> Any:
        """None."""
        return None

    def serve(self, found: Any, exchange: HttpExchange) -> Coroutine[Any, Any, None]:
        """Never called."""
        raise NotImplementedError


class Refusal(NamedTuple):
    """An answer to what could not be read as a request."""

    status: int
    headers: bytes
    """Whole lines."""
    body: bytes
    """JSON."""


class Refuser(Protocol):
    """Finds words for those whose request could not be read."""

    def refuse(self, error: ServiceError) -> Refusal:
        """The same that a route would have said, with an id of its own."""
        ...
