"""What the console's pages are made from.

Owns nothing: a bundle that the composition root fills once. Read next: `gateway.console.table`.
"""

from dataclasses import dataclass

from gateway.api.services import PageServices
from gateway.auth.caller import Caller
from gateway.auth.composition import Authenticators
from gateway.console.rendering import Renderer
from gateway.console.traffic_history import TrafficHistory
from gateway.routing.fleet import Fleet
from gateway.sources import Sources
from tenancy.administration import Administration
from tenancy.interfaces import UsageBooks


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """The JSON routes' own services, and what makes pages of them."""

    services: PageServices
    authenticators: Authenticators
    history: TrafficHistory
    renderer: Renderer

    @property
    def fleet(self) -> Fleet:
        """What is known of the nodes."""
        return self.services.fleet

    @property
    def ledger(self) -> UsageBooks:
        """What was used, and what may be."""
        return self.services.ledger

    @property
    def sources(self) -> Sources:
        """Time and chance."""
        return self.services.sources

    @property
    def today(self) -> int:
        """Days since 1970, UTC."""
        return int(self.sources.unix_s() // 86_400)

    def act(self, caller: Caller) -> Administration:
        """What the operator may read and change: the same as over the JSON routes."""
        return self.services.administrations.act_as(caller.to_actor())
