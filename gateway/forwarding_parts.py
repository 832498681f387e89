"""Puts together what carries requests to nodes.

A part of the composition root. Read next: `gateway.forwarding`, `gateway.attempts`.
"""

from gateway.attempts import Attempts
from gateway.forwarding import Forwarder
from gateway.hand_over import HandOverParts, StreamOpener
from gateway.routing.fleet import Fleet
from gateway.settings import RoutingSettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from gateway.upstream.links import NodeLinks


def create_forwarder(
    routing: RoutingSettings,
    fleet: Fleet,
    links: NodeLinks,
    telemetry: Telemetry,
    sources: Sources,
) -> Forwarder:
    """What brings requests to the nodes of `fleet`."""
    opener = StreamOpener(HandOverParts(fleet, links, telemetry, sources))
    return Forwarder(fleet, Attempts(fleet, opener, telemetry, routing, sources))
