"""Puts the console together.

A part of the composition root. Read next: `gateway.console.table`.
"""

from dataclasses import dataclass

from contracts.ids import GatewayId
from gateway.api.inference_routes import create_inference_routes
from gateway.api.ports import Console
from gateway.api.services import PageServices
from gateway.auth.composition import Authenticators
from gateway.console.assets import Assets
from gateway.console.parts import ConsoleParts
from gateway.console.playground_requests import PLAYGROUND, PlaygroundRoutes
from gateway.console.rendering import Renderer
from gateway.console.table import create_console_routes
from gateway.console.traffic_history import TrafficHistory
from gateway.request_path import RequestPath


@dataclass(frozen=True, slots=True)
class WholeConsole:
    """What the port gets, and what must run beside it."""

    console: Console
    history: TrafficHistory


def create_console(
    gateway_id: GatewayId,
    authenticators: Authenticators,
    request_path: RequestPath,
    services: PageServices,
) -> WholeConsole:
    """All of it; nothing runs yet."""
    names = {route.name for route in create_inference_routes()} | {PLAYGROUND}
    telemetry = services.telemetry
    history = TrafficHistory(lambda: telemetry.sum_traffic(names), services.sources)
    assets = Assets()
    parts = ConsoleParts(services, authenticators, history, Renderer(assets, gateway_id))
    console = Console(
        create_console_routes(parts, assets),
        PlaygroundRoutes(authenticators.sessions, request_path),
    )
    return WholeConsole(console, history)
