"""Role by page, made from the console's own table: who gets in, in the console as over JSON.

A page that is added to the table is tried here without being named.
"""

from typing import Any

from gateway.api.route_table import Route
from gateway.auth.access import OperatorSession, Public
from gateway.console.assets import Assets
from gateway.console.parts import ConsoleParts
from gateway.console.posted_form import PostedFormReader
from gateway.console.rendering import Renderer
from gateway.console.table import create_console_routes
from tenancy.permissions import Permission
from tests.gateway.console.browser_double import BrowserDouble
from tests.gateway.running_gateway import RunningGateway

OPEN = {"console_welcome", "console_asset", "console_sign_in", "console_sign_in_post"}
"""All that can be reached without a session."""


class NoServices:
    """Are never asked: the table only tells which routes there are."""

    ledger = None


def list_routes() -> list[Route]:
    """Every route of the console."""
    nothing: Any = None
    services: Any = NoServices()
    assets = Assets()
    parts = ConsoleParts(services, nothing, nothing, Renderer(assets, "gateway-1"))
    return list(create_console_routes(parts, assets))


def format_path(route: Route, account_id: str) -> str:
    """The route's path with ids that could be real."""
    path = route.path.replace("{account_id}", account_id).replace("{token_id}", "f" * 32)
    return path.replace("{rest:path}", "nowhere").replace("{name}", "console.css")


async def test_each_page_is_for_operators_who_have_signed_in(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    routes = list_routes()
    assert len(routes) > 30
    assert {route.name for route in routes if isinstance(route.access, Public)} == OPEN
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    nobody = BrowserDouble(gateway)
    with_token = {"authorization": f"Bearer {tenant.api_token}"}
    as_cookie = BrowserDouble(gateway, {"hearth_console": tenant.api_token})
    for route in routes:
        if route.name in OPEN or route.name == "console_sign_out":
            continue
        assert isinstance(route.access, OperatorSession)
        path = format_path(route, tenant.account_id)
        if route.method == "POST":
            assert isinstance(route.form, PostedFormReader)
            answers = [await nobody.post(path, {}), await as_cookie.post(path, {})]
            forged = await browser.post(path, {"form_token": "0" * 64})
            assert forged.status == 403, route.name
        else:
            answers = [
                await nobody.get(path),
                await nobody.get(path, with_token),
                await as_cookie.get(path),
            ]
            assert (await browser.get(path)).status in (200, 400, 404), route.name
        for answer in answers:
            assert (answer.status, answer.location[:16]) == (303, "/console/sign-in"), route.name


async def test_the_tenants_port_has_no_console(gateway: RunningGateway) -> None:
    for path in ("/", "/console", "/console/sign-in", "/console/assets/console.css"):
        assert (await gateway.send("GET", path, api_token=None)).status == 404
    own = await gateway.send("GET", "/console/sign-in", api_token=None, origin=gateway.admin)
    assert own.status == 200  # the control
