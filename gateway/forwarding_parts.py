"""Puts together what carries requests to nodes, and what holds those that find no room there.

A part of the composition root. Read next: `gateway.forwarding`, `gateway.attempts`,
`gateway.fair_queue.queue`.
"""

from dataclasses import dataclass

from gateway.attempts import Attempts
from gateway.auth.standing import Standing
from gateway.fair_queue.queue import FairQueue
from gateway.fair_queue.queue_meter import QueueMeter
from gateway.forwarding import Forwarder
from gateway.hand_over import HandOverParts, StreamOpener
from gateway.place_search import PlaceParts
from gateway.routing.fleet import Fleet
from gateway.settings import QueueSettings, RoutingSettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from gateway.upstream.fed_links import FedLinks


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The way to nodes."""

    queue: FairQueue
    forwarder: Forwarder
    attempts: Attempts


def create_forwarding(
    routing: RoutingSettings,
    waiting: QueueSettings,
    fleet: Fleet,
    standing: Standing,
    links: FedLinks,
    telemetry: Telemetry,
    sources: Sources,
) -> Forwarding:
    """What brings requests to the nodes of `fleet`, wherever `standing` allows it by then."""
    queue = FairQueue(fleet, waiting, QueueMeter(telemetry), sources)
    hand_overs = HandOverParts(fleet, links, telemetry, sources, standing.is_current)
    opener = StreamOpener(hand_overs)
    attempts = Attempts(fleet, opener, telemetry, routing, sources)
    parts = PlaceParts(attempts, fleet, queue, standing)
    return Forwarding(queue, Forwarder(fleet, attempts, parts), attempts)
