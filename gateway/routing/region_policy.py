"""Where an account's rules lead at this gateway: regions that may compute for it, and their order.

Pure but for the table of laws, which is read. Rules name regions and jurisdictions; routing knows
regions. Read next: `contracts.region_rules`, `gateway.routing.law_table`.
"""

from collections.abc import Collection

from contracts.ids import RegionId
from contracts.region_rules import RegionRules
from gateway.routing.law_table import LawTable
from gateway.routing.route_plan import RouteNeed
from gateway.routing.wishes import Wishes, narrow


def find_allowed(rules: RegionRules, laws: LawTable) -> tuple[RegionId, ...] | None:
    """The regions that may compute for the account; None means any, an empty tuple none at all."""
    if rules.allowed_jurisdictions is None:
        return rules.allowed_regions
    lawful = laws.list_regions(rules.allowed_jurisdictions)
    if rules.allowed_regions is None:
        return tuple(sorted(lawful))
    return tuple(region for region in rules.allowed_regions if region in lawful)


def find_narrowed(
    rules: RegionRules, wishes: Wishes, laws: LawTable
) -> tuple[RegionId, ...] | None:
    """The regions that both the rules and the request allow; None means any."""
    lying_there = laws.list_regions(wishes.jurisdictions) if wishes.jurisdictions else ()
    return narrow(find_allowed(rules, laws), wishes, lying_there)


def find_jurisdictions(rules: RegionRules, wished: frozenset[str] | None) -> frozenset[str] | None:
    """The jurisdictions that both the rules and the request allow; None means any."""
    if rules.allowed_jurisdictions is None:
        return wished
    allowed = frozenset(rules.allowed_jurisdictions)
    return allowed if wished is None else allowed & wished


def find_disputed(
    rules: RegionRules,
    wished: frozenset[str] | None,
    regions: Collection[RegionId] | None,
    laws: LawTable,
) -> frozenset[RegionId]:
    """Regions that rules and request would allow, were it not that some say another law holds
    there; `wished` are the request's jurisdictions, `regions` those that it names, None means any.
    """
    jurisdictions = find_jurisdictions(rules, wished)
    disputed = laws.list_disputed(jurisdictions) if jurisdictions else frozenset[RegionId]()
    if not disputed:
        return disputed
    for named in (rules.allowed_regions, regions):
        disputed = disputed if named is None else disputed.intersection(named)
    return disputed


def list_preferred(rules: RegionRules, laws: LawTable) -> tuple[frozenset[RegionId], ...]:
    """Groups of regions in the order in which a request is to look for room."""
    regions = [frozenset((region,)) for region in rules.preferred_regions]
    lawful = [laws.list_regions((law,)) for law in rules.preferred_jurisdictions]
    return (*regions, *lawful)


def list_spill_over(need: RouteNeed) -> list[frozenset[RegionId]]:
    """Where a request looks for room before it looks wherever it may go: what is preferred of what
    is allowed.
    """
    if not need.preferred or need.allowed_regions is None:
        return list(need.preferred)
    allowed = frozenset(need.allowed_regions)
    return [group & allowed for group in need.preferred]


def find_bounds_beside(need: RouteNeed, region: RegionId) -> Collection[RegionId] | None:
    """Where the prompt of an answer that is given in `region` may be computed: not outside of what
    is preferred, as long as the answer is not. None means anywhere.
    """
    for group in list_spill_over(need):
        if region in group:
            return group
    return need.allowed_regions


def rank_region(need: RouteNeed, region: RegionId) -> int:
    """How many groups of preferred regions come before the one that `region` is in."""
    for rank, group in enumerate(need.preferred):
        if region in group:
            return rank
    return len(need.preferred)
