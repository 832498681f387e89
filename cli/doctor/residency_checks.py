"""Checks of where accounts may be computed for against where nodes are.

Read next: `tenancy.probe`, `gateway.routing.filters`.
"""

from typing import TYPE_CHECKING, Final

from cli.doctor.finding import Area, Findings, Level
from contracts.errors import StoreUnavailable
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from contracts.ids import RegionId
    from gateway.settings import GatewaySettings

MAX_NAMED: Final = 20


async def check_residency(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether each account that is bound to regions has a node in one of them; a database that
    cannot be read is a finding already.
    """
    from migrations.upgrade import SchemaState, read_schema_state
    from tenancy.probe import read_bound_accounts

    url = settings.database.url
    try:
        if await read_schema_state(url) is not SchemaState.CURRENT:
            return
        bound = await read_bound_accounts(url)
    except (SettingsError, StoreUnavailable):
        return
    regions = _list_regions(settings)
    if regions is None:
        return
    stranded = [each for each in bound if regions.isdisjoint(each[2])]
    for account_id, name, allowed in stranded[:MAX_NAMED]:
        findings.add(
            Area.NODES,
            Level.WARNING,
            f"{name} ({account_id}) is bound to {', '.join(allowed) or 'no region'}, where no node "
            "is: its requests are refused.",
            "Mind the spelling; `hearth accounts change --region` binds it to others, and a node "
            "there serves it.",
        )
    if len(stranded) > MAX_NAMED:
        more = f"{len(stranded) - MAX_NAMED} more accounts are bound to regions without a node."
        findings.add(Area.NODES, Level.WARNING, more, "As above.")
    if bound and not stranded:
        findings.ok(Area.NODES, "Every account that is bound to regions has a node in one.")


def _list_regions(settings: "GatewaySettings") -> "set[RegionId] | None":
    """Where nodes are; None when one of them may say itself."""
    from gateway.membership.enrolments import EnrolmentFolder

    named = {node.region for node in settings.nodes}
    if settings.membership is not None:
        enrolled = EnrolmentFolder(settings.membership.folder).read().values()
        named |= {node.enrolment.region for node in enrolled}
    regions = {region for region in named if region is not None}
    return None if None in named else regions
