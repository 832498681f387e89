"""Every page of the console.

Owns nothing but the list. Read next: `gateway.console.page_table`, then any of the pages.
"""

from gateway.api.route_table import Route
from gateway.console.account_table import add_account_pages
from gateway.console.assets import Assets
from gateway.console.audit_page import AuditPage
from gateway.console.entrance import add_missing, create_welcome
from gateway.console.fleet_pages import FleetPages
from gateway.console.overview_page import OverviewPage
from gateway.console.page_table import PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.playground_page import PlaygroundPage
from gateway.console.routing_page import RoutingPage
from gateway.console.sign_in_pages import SignInPages


def create_console_routes(parts: ConsoleParts, assets: Assets) -> tuple[Route, ...]:
    """The routes, to be checked with those of the port."""
    table = PageTable(parts.renderer.refuse)
    assets.add_to(table)
    SignInPages(parts.renderer, parts.authenticators).add_to(table)
    OverviewPage(parts).add_to(table)
    add_account_pages(table, parts)
    FleetPages(parts).add_to(table)
    RoutingPage(parts).add_to(table)
    AuditPage(parts).add_to(table)
    PlaygroundPage(parts).add_to(table)
    add_missing(table)
    return (create_welcome(parts.renderer), *table.routes)
