"""What the pages of both ports are made from.

Owns nothing: a bundle that the composition root fills once. Read next: `gateway.api.tenant_routes`,
`gateway.api.operator_routes`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from contracts.ids import NodeId
from gateway.finetunes.composition import Finetunes
from gateway.membership.composition import Membership, NoMembership
from gateway.routing.drain_desk import DrainDesk
from gateway.routing.fleet import Fleet
from gateway.routing.placement_desk import PlacementDesk
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from tenancy.administration import Administrations
from tenancy.interfaces import UsageBooks

RenewKey = Callable[[NodeId], Awaitable[str]]
"""Has a node and this gateway share another key, whose name it gives. Raises: `NodeUnreachable`,
`Conflict`."""


@dataclass(frozen=True, slots=True)
class PageServices:
    """The parts of a gateway that pages read and change."""

    fleet: Fleet
    telemetry: Telemetry
    sources: Sources
    administrations: Administrations
    ledger: UsageBooks
    desk: PlacementDesk
    drains: DrainDesk
    renew_key: RenewKey
    finetunes: Finetunes
    membership: Membership = field(default_factory=NoMembership)
