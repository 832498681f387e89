"""Whether this process lives, and whether it can serve.

Must not know why: operators read `/operator/v1/nodes` and `/metrics` for that.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.caller import Caller


class Health(msgspec.Struct, frozen=True):
    """The answer to either question."""

    status: Literal["live", "ready", "not ready"]


class HealthPages:
    """Two questions without credentials, for supervisors and load balancers."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        """`is_ready` tells whether requests can be served now."""
        self._is_ready = is_ready

    async def live(self, request: Request, caller: Caller) -> Response:
        """200 while the event loop turns."""
        return _reply("live")

    async def ready(self, request: Request, caller: Caller) -> Response:
        """200 while some node can serve some model and no stop is under way, else 503."""
        if self._is_ready():
            return _reply("ready")
        return _reply("not ready", 503)


def _reply(status: Literal["live", "ready", "not ready"], code: int = 200) -> Response:
    """The answer."""
    body = msgspec.json.encode(Health(status))
    return Response(body, code, media_type="application/json")
