"""Whose requests may enter at this gateway at all, before anything of them is read.

Owns nothing of where they are computed. Read next: `gateway.routing.region_policy`,
`gateway.routing.regions`.
"""

from contracts.errors import NoEndpoint
from contracts.region_rules import EntryPlace
from gateway.routing.region_policy import find_allowed
from gateway.routing.roster import Roster
from tenancy.interfaces import Principal


class Entry:
    """One gateway's."""

    def __init__(self, roster: Roster, *, is_strict: bool) -> None:
        """`is_strict`: requests may enter only where their account's rules allow it."""
        self._roster = roster
        self._is_strict = is_strict

    @property
    def place(self) -> EntryPlace | None:
        """Where this is; None where everybody may enter."""
        roster = self._roster
        return roster.laws.describe_entry(roster.catalogue.own) if self._is_strict else None

    def require(self, principal: Principal) -> None:
        """Raises: `ResidencyViolation` when the account's requests may not enter here, `NoEndpoint`
        while that depends on what nodes have yet to say, or on which of them is right.
        """
        if not self._is_strict:
            return
        rules, roster = principal.region_rules, self._roster
        if rules.allowed_jurisdictions and self._is_law_open(rules.allowed_jurisdictions):
            roster.catalogue.require_entry(rules.allowed_regions)
            raise NoEndpoint("It is not settled whose law holds here, please try again.")
        roster.catalogue.require_entry(find_allowed(rules, roster.laws))

    def _is_law_open(self, allowed: tuple[str, ...]) -> bool:
        """True while it may come out that one of `allowed` holds here: different things are said,
        or nothing, and a node that is silent may do so.
        """
        roster = self._roster
        own = roster.catalogue.own
        if roster.laws.describe_entry(own).jurisdictions:
            return own in roster.laws.list_disputed(allowed)
        return any(node.region is None for node in roster.snapshots)
