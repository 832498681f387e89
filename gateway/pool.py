"""The gateway's side of the pool: what it knows of nodes, how it reaches them, how it uses them.

Owns only the putting together; `gateway.app` holds the result. Read next:
`gateway.routing.fleet`, `gateway.upstream.links`, `gateway.forwarding`.
"""

from dataclasses import dataclass

from gateway.forwarding_parts import Forwarding, create_forwarding
from gateway.membership.composition import Membership, create_membership
from gateway.pool_surroundings import PoolSurroundings
from gateway.routing.drain_desk import DrainDesk
from gateway.routing.fleet import Fleet
from gateway.routing.fleet_creation import create_fleet
from gateway.routing.placement_desk import PlacementDesk
from gateway.settings import GatewaySettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from gateway.upstream.fed_links import FedLinks
from gateway.upstream.links import NodeLinks, create_node_links


@dataclass(frozen=True, slots=True)
class Pool:
    """The parts that deal with nodes."""

    fleet: Fleet
    links: NodeLinks
    forwarding: Forwarding
    desk: PlacementDesk
    drains: DrainDesk
    membership: Membership

    def end_requests(self) -> None:
        """Ends every request, and every one to come, with the news that this process stops."""
        self.forwarding.queue.end()
        self.links.end_streams()


def create_pool(
    settings: GatewaySettings,
    around: PoolSurroundings,
    telemetry: Telemetry,
    sources: Sources,
) -> Pool:
    """The configured nodes, not connected yet, and whoever brings others.

    Raises: `SettingsError` for a bad key file.
    """
    routing = settings.routing
    fleet = create_fleet(settings, sources)
    links = create_node_links(
        settings.nodes, settings.gateway_id, settings.limits, routing.silence_s, fleet, sources
    )
    watch_nodes(telemetry, fleet, links, sources)
    telemetry.watch_gauge(
        "hearth_gateway_streams_open", "Streams open at nodes.", lambda: links.num_streams
    )
    fed_links = FedLinks(links, around.adapters, sources)
    forwarding = create_forwarding(
        routing, settings.queue, fleet, around.standing, fed_links, telemetry, sources
    )
    desk = PlacementDesk(fleet, settings.gateway_id, links.place, sources)
    telemetry.watch_gauge(
        "hearth_gateway_standby_silent_seconds",
        "Since hot standby last read here, by its own credential; 0 where it never has.",
        lambda: desk.standby_silent_s,
    )
    drains = DrainDesk(fleet, around.directory, links.move_streams, sources)
    membership = create_membership(settings.membership, fleet, links, telemetry, sources)
    return Pool(fleet, links, forwarding, desk, drains, membership)


def watch_nodes(telemetry: Telemetry, fleet: Fleet, links: NodeLinks, sources: Sources) -> None:
    """Adds what metrics say of each node."""

    def read_troubled() -> dict[str, float]:
        troubled = fleet.list_troubled()
        return {node_id: float(node_id in troubled) for node_id in links.up}

    telemetry.watch_each("hearth_gateway_link_up", "1 while connected.", "node", lambda: links.up)
    telemetry.watch_each(
        "hearth_gateway_report_age_seconds",
        "Since the node's last report.",
        "node",
        lambda: {
            node.node_id: sources.monotonic_s() - node.reported_s
            for node in fleet.roster.snapshots
            if node.num_reports
        },
    )
    telemetry.watch_each(
        "hearth_gateway_node_troubled",
        "1 while its breaker is open or it is on probation, for everybody or for an account.",
        "node",
        read_troubled,
    )
    telemetry.watch_gauge(
        "hearth_gateway_clock_doubted",
        "1 while most nodes take what this gateway grants for passed.",
        lambda: float(fleet.is_clock_doubted()),
    )
    telemetry.watch_each(
        "hearth_gateway_role_suggested",
        "1 while hot standby thinks another role better for the node, where it may have one.",
        "node",
        lambda: {
            node.node_id: float(node.suggested_role is not None) for node in fleet.roster.snapshots
        },
    )
