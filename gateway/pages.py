"""Puts the pages of both ports together: the JSON routes, and the console beside them.

A part of the composition root. Read next: `gateway.api.listeners`, `gateway.console.table`.
"""

from dataclasses import dataclass

from gateway.api.inference_routes import create_inference_routes
from gateway.api.listeners import Listeners, create_listeners
from gateway.api.services import PageServices
from gateway.auth.authenticator import Authenticators
from gateway.console.assets import Assets
from gateway.console.parts import ConsoleParts
from gateway.console.rendering import Renderer
from gateway.console.table import create_console_routes
from gateway.console.traffic_history import TrafficHistory
from gateway.request_context import OpenRequests
from gateway.request_path import RequestPath
from gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Pages:
    """Both ports, and what must run beside them."""

    listeners: Listeners
    history: TrafficHistory


def create_pages(
    settings: GatewaySettings,
    requests: OpenRequests,
    authenticators: Authenticators,
    request_path: RequestPath,
    services: PageServices,
) -> Pages:
    """Ports not yet bound. Raises: `InvariantBroken` for a route that demands nothing."""
    names = frozenset(route.name for route in create_inference_routes())
    telemetry = services.telemetry
    history = TrafficHistory(lambda: telemetry.sum_traffic(names), services.sources)
    assets = Assets()
    renderer = Renderer(assets, settings.gateway_id)
    parts = ConsoleParts(services, authenticators, history, renderer)
    console = create_console_routes(parts, assets)
    listeners = create_listeners(
        settings, requests, authenticators, request_path, services, console
    )
    return Pages(listeners, history)
