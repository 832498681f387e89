"""Puts together what a gateway knows of its nodes before any of them has spoken.

A part of the composition root. Read next: `gateway.routing.fleet`.
"""

from gateway.routing.fleet import Fleet
from gateway.routing.law_table import LawTable
from gateway.routing.locality import Locality
from gateway.routing.regions import create_catalogue
from gateway.routing.roster import Roster
from gateway.routing.route_plan import RouteBounds
from gateway.routing.sessions import SessionMap
from gateway.settings import GatewaySettings
from gateway.sources import Sources


def create_fleet(settings: GatewaySettings, sources: Sources) -> Fleet:
    """The configured nodes, where the configuration says that they are."""
    routing = settings.routing
    laws = LawTable(create_catalogue(settings.region, routing.regions))
    return Fleet(
        Roster({node.node_id: node.region for node in settings.nodes}, laws),
        RouteBounds(routing.report_ttl_s, routing.max_waiting_per_model),
        Locality(SessionMap(routing.max_sessions, routing.session_idle_s)),
        sources,
    )
