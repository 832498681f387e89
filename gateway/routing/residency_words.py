"""What a client is told whose request may go to no region that serves its model.

Owns the sentences: which header left no region, and where the account may be served at all. Names
only regions that are known here and that the account itself is allowed, and says nothing of nodes.
Pure but for the table of laws.
Read next: `gateway.routing.wishes`, `gateway.routing.region_policy`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from contracts.ids import RegionId, is_jurisdiction
from contracts.region_rules import RegionRules
from contracts.short_text import shorten
from gateway.routing.law_table import LawTable
from gateway.routing.region_policy import find_allowed
from gateway.routing.wishes import JURISDICTIONS_HEADER, REGIONS_HEADER, Wishes

_MOST_NAMED: Final = 16
"""Regions of one sentence."""
_VALUE_CHARS: Final = 120
"""Of what a header asks for."""


def describe_residency(rules: RegionRules, wishes: Wishes, laws: LawTable) -> str:
    """Why the request may go nowhere that its model is, and where it might."""
    allowed = find_allowed(rules, laws)
    usable = {region for region in laws.list_known() if allowed is None or region in allowed}
    blamed = _find_blamed(usable, wishes, laws)
    if blamed:
        verb = "leaves" if len(blamed) == 1 else "leave"
        why = f"{' and '.join(blamed)} {verb} no region to this request."
    elif wishes.is_narrowing and (usable or not rules.is_bound):
        headers = " and ".join(_list_headers(wishes))
        why = f"No region that is left by {headers} serves this model."
    else:
        why = "The account's data-residency rules allow no region that serves this model."
    return f"{why} The account may use {_name_regions(sorted(usable), laws)}."


def _find_blamed(usable: set[RegionId], wishes: Wishes, laws: LawTable) -> list[str]:
    """The headers that leave none of the regions, each by itself or else together; as clients write
    them. Empty where some region is left, or was none before.
    """
    if not usable or not wishes.is_narrowing:
        return []
    lawful = laws.list_regions(wishes.jurisdictions) if wishes.jurisdictions is not None else usable
    named = wishes.regions if wishes.regions is not None else usable
    if usable & named & lawful:
        return []
    alone = Wishes(
        regions=None if usable & named else wishes.regions,
        jurisdictions=None if usable & lawful else wishes.jurisdictions,
    )
    return _list_headers(alone if alone.is_narrowing else wishes)


def _list_headers(wishes: Wishes) -> list[str]:
    """The headers that narrow, as clients write them."""
    return [
        _quote(header, names)
        for header, names in (
            (REGIONS_HEADER, wishes.regions),
            (JURISDICTIONS_HEADER, wishes.jurisdictions),
        )
        if names is not None
    ]


def _quote(header: bytes, names: Iterable[str]) -> str:
    """The header as a client would write it."""
    return f"`{header.decode()}: {shorten(','.join(sorted(names)), _VALUE_CHARS)}`"


def _name_regions(regions: Sequence[RegionId], laws: LawTable) -> str:
    """Some of the regions, each with whose law holds there."""
    if not regions:
        return "no region that is known here"
    named = [_name_region(region, laws) for region in regions[:_MOST_NAMED]]
    num_more = len(regions) - len(named)
    return ", ".join(named) + (f" and {num_more} more" if num_more else "")


def _name_region(region: RegionId, laws: LawTable) -> str:
    """The region, with what is said of its law."""
    said = sorted(filter(is_jurisdiction, laws.describe_entry(region).jurisdictions))
    return f"{region} ({' or '.join(said)})" if said else region
