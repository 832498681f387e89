"""Puts the pages of both ports together: the JSON routes, and the console beside them.

A part of the composition root. Read next: `gateway.api.listeners`, `gateway.console.composition`.
"""

from dataclasses import dataclass

from gateway.api.listeners import Listeners, create_listeners
from gateway.api.services import PageServices
from gateway.auth.composition import Authenticators
from gateway.console.composition import create_console
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
    whole = create_console(settings.gateway_id, authenticators, request_path, services)
    listeners = create_listeners(
        settings, requests, authenticators, request_path, services, whole.console
    )
    return Pages(listeners, whole.history)
