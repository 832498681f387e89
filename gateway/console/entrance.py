"""What lies around the pages: the files that they link to, the door, and what is nowhere.

Read next: `gateway.console.sign_in_pages`, `gateway.console.assets`.
"""

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import NotFound
from gateway.api.route_table import Route
from gateway.auth.access import PUBLIC
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.rendering import Renderer


def create_welcome(renderer: Renderer) -> Route:
    """From the port's bare address to the console."""

    async def welcome(request: Request, caller: Caller) -> Response:
        return renderer.send_on(PREFIX)

    return Route("console_welcome", "GET", "/", PUBLIC, welcome)


def add_missing(table: PageTable) -> None:
    """Every address below the console's that is none; comes after all others."""
    table.show("missing", "/{rest:path}", _miss)


async def _miss(request: Request, caller: Caller) -> Response:
    raise NotFound("There is no page at this address.")
