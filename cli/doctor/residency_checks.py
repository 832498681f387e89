"""Checks of where accounts may be computed for against where nodes are, and of those places.

Read next: `tenancy.probe`, `gateway.routing.filters`.
"""

from enum import Enum, auto
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


class _Verdict(Enum):
    """How an account stands."""

    STRANDED = auto()
    """No node may compute for it."""
    UNNAMED = auto()
    """It is bound to a jurisdiction, or prefers one, in which no region is."""
    IDLE = auto()
    """No node is where it prefers to be."""
    UNSURE = auto()
    """That depends on what nodes say of themselves."""
    FINE = auto()


_GOOD: Final = frozenset({_Verdict.FINE, _Verdict.IDLE})
_WARNINGS: Final = {
    _Verdict.STRANDED: (
        ", where no node is: its requests are refused.",
        (
            "Mind the spelling; `hearth accounts change --region` or `--jurisdiction` binds it to "
            "others, and a node there serves it."
        ),
    ),
    _Verdict.UNNAMED: (
        ", in which no region of `[[routing.regions]]` is, and no enrolled node.",
        (
            "Mind the spelling; `hearth accounts change --jurisdiction` or `--prefer-jurisdiction` "
            "names another, `[[routing.regions]]` the regions where that law holds."
        ),
    ),
    _Verdict.IDLE: (
        ", where it has no node: its requests go where it is allowed otherwise.",
        (
            "Mind the spelling; what is preferred has to be allowed, too. `hearth accounts change "
            "--prefer-region` names others."
        ),
    ),
}
"""What is said of whom, and what to do."""


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
    laws, regions = _read_laws(settings), _list_regions(settings)
    known = {law for _, law in laws.catalogue.list_jurisdictions()}
    known |= {place.jurisdiction for place in list_enrolled(settings).values()}
    found: dict[_Verdict, list[str]] = {verdict: [] for verdict in _Verdict}
    for account_id, name, rules in ruled:
        verdict, unnamed = _judge(rules, laws, regions), _list_unnamed(rules, known)
        what = _describe(rules, verdict)
        if unnamed and verdict is not _Verdict.STRANDED and settings.routing.regions:
            verdict, what = _Verdict.UNNAMED, f"names the jurisdiction {', '.join(unnamed)}"
        found[verdict].append(f"{name} ({account_id}) {what}")
    for verdict, (words, advice) in _WARNINGS.items():
        for each in found[verdict][:MAX_NAMED]:
            findings.add(Area.NODES, Level.WARNING, f"{each}{words}", advice)
        num_more = len(found[verdict]) - MAX_NAMED
        if num_more > 0:
            more = f"There are {num_more} more such accounts."
            findings.add(Area.NODES, Level.WARNING, more, "As above.")
    is_sure = not any(found[verdict] for verdict in _Verdict if verdict not in _GOOD)
    if any(rules.is_bound for _, _, rules in ruled) and is_sure:
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


def _judge(rules: "RegionRules", laws: "LawTable", regions: "set[RegionId] | None") -> _Verdict:
    """How an account stands whose nodes are in `regions`; None: nobody knows where all are."""
    if regions is None:
        return _Verdict.UNSURE
    unsaid = {region for region in regions if not laws.describe_entry(region).jurisdictions}
    reachable = _reach(rules, laws, regions)
    if _may_depend_on(unsaid, rules, reachable):
        return _Verdict.UNSURE
    if not reachable:
        return _Verdict.STRANDED
    is_idle = rules.prefers and reachable.isdisjoint(_find_preferred(rules, laws))
    return _Verdict.IDLE if is_idle else _Verdict.FINE


def _list_unnamed(rules: "RegionRules", known: "set[str]") -> list[str]:
    """Jurisdictions in an account's rules that operators give to no region and no node."""
    named = {*(rules.allowed_jurisdictions or ()), *rules.preferred_jurisdictions}
    return sorted(named - known)


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


def _describe(rules: "RegionRules", verdict: _Verdict) -> str:
    """What the account is bound to, or prefers."""
    if verdict is _Verdict.IDLE:
        return f"prefers {', '.join((*rules.preferred_regions, *rules.preferred_jurisdictions))}"
    regions, laws = rules.allowed_regions, rules.allowed_jurisdictions
    parts = [] if regions is None else [", ".join(regions) or "no region"]
    if laws is not None:
        parts.append(f"the law of {', '.join(laws) or 'nobody'}")
    return f"is bound to {' under '.join(parts)}"


def _list_regions(settings: "GatewaySettings") -> "set[RegionId] | None":
    """Where nodes are; None when one of them may say itself."""
    named = set(_list_places(settings).values())
    regions = {region for region in named if region is not None}
    return None if None in named else regions


def _read_laws(settings: "GatewaySettings") -> "LawTable":
    """Whose law holds where, by the operators' words."""
    from gateway.routing.law_table import LawTable
    from gateway.routing.regions import create_catalogue

    laws = LawTable(create_catalogue(settings.region, settings.routing.regions))
    for node_id, place in list_enrolled(settings).items():
        laws.note(node_id, place.region, place.jurisdiction)
    return laws


def _list_places(settings: "GatewaySettings") -> "dict[NodeId, RegionId | None]":
    """Where each node is, by the operators' word; None leaves that to the node."""
    places = {node.node_id: node.region for node in settings.nodes}
    return {name: place.region for name, place in list_enrolled(settings).items()} | places


def list_enrolled(settings: "GatewaySettings") -> "dict[NodeId, NodeEnrolment]":
    """What operators say of nodes that come by themselves."""
    from gateway.membership.enrolments import EnrolmentFolder

    if settings.membership is None:
        return {}
    enrolled = EnrolmentFolder(settings.membership.folder).read()
    return {name: node.enrolment for name, node in enrolled.items()}
