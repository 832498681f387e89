"""What the pages of both ports are made from.

Owns nothing: a bundle that the composition root fills once. Read next: `gateway.api.tenant_routes`,
`gateway.api.operator_routes`.
"""

from dataclasses import dataclass

from gateway.routing.fleet import Fleet
from gateway.routing.placement_desk import PlacementDesk
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from tenancy.administration import Administrations
from tenancy.interfaces import UsageBooks


@dataclass(frozen=True, slots=True)
class PageServices:
    """The parts of a gateway that pages read and change."""

    fleet: Fleet
    telemetry: Telemetry
    sources: Sources
    administrations: Administrations
    ledger: UsageBooks
    desk: PlacementDesk
