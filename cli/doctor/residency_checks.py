"""Checks of where accounts may be computed for against where nodes are, and of those places.

Read next: `tenancy.probe`, `gateway.routing.filters`.
"""

from typing import TYPE_CHECKING, Final

from cli.doctor.finding import Area, Findings, Level
from contracts.errors import StoreUnavailable
from contracts.ids import RegionId
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from contracts.ids import NodeId
    from contracts.region_rules import RegionRules
    from gateway.membership.enrolments import NodeEnrolment
    from gateway.routing.law_table import LawTable
    from gateway.settings import GatewaySettings

MAX_NAMED: Final = 20


async def check_residency(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether each account with rules on regions has a node where it may be computed, and where it
    prefers to be; a database that cannot be read is a finding already.
    """
    from migrations.upgrade import SchemaState, read_schema_state
    from tenancy.probe import read_region_rules

    url = settings.database.url
    try:
        if await read_schema_state(url) is not SchemaState.CURRENT:
            return
        ruled = await read_region_rules(url)
    except (SettingsError, StoreUnavailable):
        return
    regions = _list_regions(settings)
    if regions is None:
        return
    laws = _read_laws(settings)
    unsaid = {region for region in regions if not laws.describe_entry(region).jurisdictions}
    stranded: list[str] = []
    idle: list[str] = []
    num_unsure = 0
    for account_id, name, rules in ruled:
        reachable = _reach(rules, laws, regions)
        if _may_depend_on(unsaid, rules, reachable):
            num_unsure += 1
        elif not reachable:
            stranded.append(f"{name} ({account_id}) is bound to {_describe(rules)}")
        elif rules.prefers and reachable.isdisjoint(_find_preferred(rules, laws)):
            named = *rules.preferred_regions, *rules.preferred_jurisdictions
            idle.append(f"{name} ({account_id}) prefers {', '.join(named)}")
    for each in stranded[:MAX_NAMED]:
        findings.add(
            Area.NODES,
            Level.WARNING,
            f"{each}, where no node is: its requests are refused.",
            "Mind the spelling; `hearth accounts change --region` or `--jurisdiction` binds it to "
            "others, and a node there serves it.",
        )
    if len(stranded) > MAX_NAMED:
        more = f"{len(stranded) - MAX_NAMED} more accounts are bound to regions without a node."
        findings.add(Area.NODES, Level.WARNING, more, "As above.")
    for each in idle[:MAX_NAMED]:
        findings.add(
            Area.NODES,
            Level.WARNING,
            f"{each}, where it has no node: its requests go where it is allowed otherwise.",
            "Mind the spelling; what is preferred has to be allowed, too. `hearth accounts change "
            "--prefer-region` names others.",
        )
    if any(rules.is_bound for _, _, rules in ruled) and not stranded and not num_unsure:
        findings.ok(Area.NODES, "Every account that is bound to regions has a node in one.")


def check_regions(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether nodes are in regions that the settings know, where those name any."""
    known = {region.name for region in settings.routing.regions} | {settings.region}
    if not settings.routing.regions:
        return
    for node_id, region in sorted(_list_places(settings).items()):
        if region is not None and region not in known:
            findings.add(
                Area.NODES,
                Level.WARNING,
                f"{node_id} is in {region}, which `[[routing.regions]]` does not name: it counts "
                "as far away, and is in no jurisdiction but its own word's.",
                "Mind the spelling, or add the region.",
            )


def _reach(rules: "RegionRules", laws: "LawTable", regions: "set[RegionId]") -> "set[RegionId]":
    """Where there are nodes and the account may be computed."""
    from gateway.routing.region_policy import find_allowed

    allowed = find_allowed(rules, laws)
    return regions if allowed is None else regions.intersection(allowed)


def _may_depend_on(
    unsaid: "set[RegionId]", rules: "RegionRules", reachable: "set[RegionId]"
) -> bool:
    """True where the law of regions matters that only nodes themselves tell of."""
    named = rules.allowed_regions
    may_be_lawful = unsaid if named is None else unsaid.intersection(named)
    laws = rules.preferred_jurisdictions if reachable else rules.allowed_jurisdictions
    return bool(laws and may_be_lawful)


def _find_preferred(rules: "RegionRules", laws: "LawTable") -> "frozenset[RegionId]":
    """All regions that the account prefers."""
    from gateway.routing.region_policy import list_preferred

    return frozenset[RegionId]().union(*list_preferred(rules, laws))


def _describe(rules: "RegionRules") -> str:
    """What the account is bound to."""
    regions, laws = rules.allowed_regions, rules.allowed_jurisdictions
    parts = [] if regions is None else [", ".join(regions) or "no region"]
    if laws is not None:
        parts.append(f"the law of {', '.join(laws) or 'nobody'}")
    return " under ".join(parts)


def _read_laws(settings: "GatewaySettings") -> "LawTable":
    """Whose law holds where, by the operators' words."""
    from gateway.routing.law_table import LawTable
    from gateway.routing.regions import create_catalogue

    laws = LawTable(create_catalogue(settings.region, settings.routing.regions))
    for node_id, place in _list_enrolled(settings).items():
        laws.note(node_id, place.region, place.jurisdiction)
    return laws


def _list_regions(settings: "GatewaySettings") -> "set[RegionId] | None":
    """Where nodes are; None when one of them may say itself."""
    named = set(_list_places(settings).values())
    regions = {region for region in named if region is not None}
    return None if None in named else regions


def _list_places(settings: "GatewaySettings") -> "dict[NodeId, RegionId | None]":
    """Where each node is, by the operators' word; None leaves that to the node."""
    places = {node.node_id: node.region for node in settings.nodes}
    return {name: place.region for name, place in _list_enrolled(settings).items()} | places


def _list_enrolled(settings: "GatewaySettings") -> "dict[NodeId, NodeEnrolment]":
    """What operators say of nodes that come by themselves."""
    from gateway.membership.enrolments import EnrolmentFolder

    if settings.membership is None:
        return {}
    enrolled = EnrolmentFolder(settings.membership.folder).read()
    return {name: node.enrolment for name, node in enrolled.items()}
