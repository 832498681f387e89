"""What operators say of the regions that an account is computed in: the law, and the preference.

Owns how the rules combine: each list of what is allowed narrows, and none widens another; what is
preferred never adds to what is allowed. Must not know which regions there are, nor whose law holds
there: every gateway has a table of its own. Read next: `gateway.routing.region_policy`.
"""

import msgspec

from contracts.ids import RegionId


class RegionRules(msgspec.Struct, frozen=True, kw_only=True):
    """One account's."""

    allowed_regions: tuple[RegionId, ...] | None = None
    """None means any, an empty tuple none at all."""
    allowed_jurisdictions: tuple[str, ...] | None = None
    """The same of the jurisdictions that regions lie in; both have to allow a region."""
    preferred_regions: tuple[RegionId, ...] = ()
    """Where there is room is computed in the first of these, then in the next."""
    preferred_jurisdictions: tuple[str, ...] = ()
    """And then in these, before all others."""

    @property
    def is_bound(self) -> bool:
        """True when some region may not compute for the account."""
        return self.allowed_regions is not None or self.allowed_jurisdictions is not None

    @property
    def prefers(self) -> bool:
        """True when regions that are allowed are not equally good."""
        return bool(self.preferred_regions or self.preferred_jurisdictions)


ANY_REGION = RegionRules()


class EntryPlace(msgspec.Struct, frozen=True):
    """Where requests enter, for accounts whose requests may not enter elsewhere."""

    region: RegionId
    jurisdictions: frozenset[str]
    """All that hold there by anybody's word; empty where nobody knows."""
