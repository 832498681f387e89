"""Every page of the console.

Owns nothing but the list. Read next: `gateway.console.page_table`, then any of the pages.
"""

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import NotFound
from gateway.api.route_table import Route
from gateway.auth.access import PUBLIC
from gateway.auth.caller import Caller
from gateway.console.account_pages import AccountPages
from gateway.console.assets import Assets
from gateway.console.overview_page import OverviewPage
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.sign_in_pages import SignInPages


def create_console_routes(parts: ConsoleParts, assets: Assets) -> tuple[Route, ...]:
    """The routes, to be checked with those of the port."""
    table = PageTable(parts.renderer.refuse)
    assets.add_to(table)
    SignInPages(parts.renderer, parts.authenticators).add_to(table)
    OverviewPage(parts).add_to(table)
    AccountPages(parts).add_to(table)
    table.show("missing", "/{rest:path}", _miss)

    async def welcome(request: Request, caller: Caller) -> Response:
        """From the port's bare address to the console."""
        return parts.renderer.send_on(PREFIX)

    return (Route("console_welcome", "GET", "/", PUBLIC, welcome), *table.routes)


async def _miss(request: Request, caller: Caller) -> Response:
    """Every address below the console's that is none."""
    raise NotFound("There is no page at this address.")
