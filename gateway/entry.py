"""Whose requests may enter at this gateway at all, before anything of them is read.

Owns nothing of where they are computed. Read next: `gateway.routing.region_policy`,
`gateway.routing.regions`.
"""

from contracts.errors import NoEndpoint
from contracts.region_rules import EntryPlace
from gateway.routing.fleet import Fleet
from gateway.routing.region_policy import find_allowed
from tenancy.interfaces import Principal


class Entry:
    """One gateway's."""

    def __init__(self, fleet: Fleet, *, is_strict: bool) -> None:
        """`is_strict`: requests may enter only where their account's rules allow it."""
        self._fleet = fleet
        self._is_strict = is_strict

    @property
    def place(self) -> EntryPlace | None:
        """Where this is; None where everybody may enter."""
        fleet = self._fleet
        return fleet.laws.describe_entry(fleet.catalogue.own) if self._is_strict else None

    def require(self, principal: Principal) -> None:
        """Raises: `ResidencyViolation` when the account's requests may not enter here, `NoEndpoint`
        while that depends on what nodes have yet to say.
        """
        if not self._is_strict:
            return
        rules, fleet = principal.region_rules, self._fleet
        if rules.allowed_jurisdictions and self._is_law_awaited():
            fleet.catalogue.require_entry(rules.allowed_regions)
            raise NoEndpoint("Whose law holds here is not known yet, please try again.")
        fleet.catalogue.require_entry(find_allowed(rules, fleet.laws))

    def _is_law_awaited(self) -> bool:
        """True while nobody has said whose law holds here, and a node that is silent may do so."""
        fleet = self._fleet
        if fleet.laws.describe_entry(fleet.catalogue.own).jurisdictions:
            return False
        return any(node.region is None for node in fleet.snapshots)
