"""What is taken over from a node's report, and which reports are not believed.

Read next: `gateway.routing.roster` (what becomes of it), `contracts.fleet`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from contracts.fleet import ModelLoad, NodeReport
from contracts.ids import NodeId, RegionId, is_node_id
from contracts.placement import MemoryUse
from contracts.short_text import shorten
from gateway.routing.regions import RegionCatalogue
from gateway.routing.route_plan import NodeSnapshot

log = structlog.get_logger(__name__)
_SHOWN: Final = 64
"""Characters of what a node says that a line of the log repeats."""


@dataclass(frozen=True, slots=True)
class Vouched:
    """Where operators say that a node is; None leaves that to the node."""

    region: RegionId | None = None
    jurisdiction: str | None = None

    def contradicts(self, report: NodeReport) -> bool:
        """True when the node says otherwise."""
        return self.region not in (None, report.region) or self.jurisdiction not in (
            None,
            report.jurisdiction,
        )

    def describe_contradiction(self, report: NodeReport) -> str:
        """What the node says, and what operators do."""
        if self.region not in (None, report.region):
            return f"it says it is in {_show(report.region)}, operators that it is in {self.region}"
        return _name_laws(report.jurisdiction, "operators", self.jurisdiction or "")


def create_unknown(node_id: NodeId, num_reports: int = 0) -> NodeSnapshot:
    """A node that nothing was heard of, but for reports of an earlier time that are void."""
    return NodeSnapshot(
        node_id=node_id,
        is_connected=False,
        boot_id=None,
        region=None,
        jurisdiction="",
        is_draining=False,
        reported_s=float("-inf"),
        num_reports=num_reports,
        cards={},
        loads={},
        failed={},
        placements={},
        memory=MemoryUse(),
    )


class ReportReader:
    """Decides what is believed, and says once what is not: nodes repeat themselves."""

    def __init__(self, catalogue: RegionCatalogue) -> None:
        """Nobody has been disbelieved yet."""
        self._catalogue = catalogue
        self._disbelieved: dict[NodeId, Mapping[str, str | None]] = {}
        """What the log says of each node's last report that was refused, until one is believed."""
        self._words: dict[NodeId, str] = {}
        """The same for operators who ask."""

    def find_refusal(self, node_id: NodeId) -> str | None:
        """Why the node's last report is not believed; None: it is, or there was none."""
        return self._words.get(node_id)

    def forget(self, node_id: NodeId) -> None:
        """The node says nothing any more."""
        self._disbelieved.pop(node_id, None)
        self._words.pop(node_id, None)

    def read(
        self, report: NodeReport, before: NodeSnapshot, vouched: Vouched, now_s: float
    ) -> NodeSnapshot | None:
        """The node as it is from now on; None when the report is refused.

        A region that is not a plain name is refused with the report: it travels in headers. So is
        one whose jurisdiction contradicts the catalogue: that would be the law's own table. And so
        is a region or jurisdiction other than `vouched`, the ones that operators vouch for.
        """
        found = self._find_contradiction(report, vouched)
        if found is None:
            if self._disbelieved:
                self.forget(report.node_id)
            return _create_snapshot(report, before, now_s)
        if self._disbelieved.get(report.node_id) != found:
            self._disbelieved[report.node_id] = found
            self._words[report.node_id] = self._describe(report, vouched)
            log.error(node_id=report.node_id, **found)
        return None

    def _find_contradiction(
        self, report: NodeReport, vouched: Vouched
    ) -> Mapping[str, str | None] | None:
        """What the log is to say of a report that is not believed."""
        said, said_law = report.region[:_SHOWN], report.jurisdiction[:_SHOWN]
        if vouched.contradicts(report):
            return {
                "event": "report_of_another_region",
                "said": said,
                "said_jurisdiction": said_law,
                "configured": vouched.region,
            }
        law = self._catalogue.find_jurisdiction(report.region)
        if law not in (None, report.jurisdiction):
            return {
                "event": "report_of_another_jurisdiction",
                "said": said_law,
                "configured": law,
            }
        return None if is_node_id(report.region) else {"event": "report_malformed"}

    def _describe(self, report: NodeReport, vouched: Vouched) -> str:
        """What is wrong with a report that is not believed."""
        if vouched.contradicts(report):
            return vouched.describe_contradiction(report)
        law = self._catalogue.find_jurisdiction(report.region)
        if law not in (None, report.jurisdiction):
            return _name_laws(report.jurisdiction, "`[[routing.regions]]`", law)
        return f"no region is called `{_show(report.region)}`"


def _name_laws(said: str, who: str, known: str | None) -> str:
    """Whose law holds, as a node says and as somebody else does."""
    return (
        f"it says it is under the law of {_show(said) or 'nobody'}, {who} under that of "
        f"{known or 'nobody'}"
    )


def _show(text: str) -> str:
    """A node's word as a terminal may show it."""
    shown = text[:_SHOWN]
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


def _create_snapshot(report: NodeReport, before: NodeSnapshot, now_s: float) -> NodeSnapshot:
    """The node as the report has it."""
    number = before.num_reports + 1
    return NodeSnapshot(
        node_id=report.node_id,
        is_connected=True,
        boot_id=report.boot_id,
        region=report.region,
        jurisdiction=report.jurisdiction,
        is_draining=report.is_draining,
        reported_s=now_s,
        num_reports=number,
        cards={card.name: card for card in report.models},
        loads={load.name: load for load in report.loads},
        worked={
            load.name: number if _has_work(load) else before.worked.get(load.name, 0)
            for load in report.loads
        },
        failed={model.name: shorten(model.reason) for model in report.failed},
        placements={placement.name: placement for placement in report.placements},
        memory=report.memory,
        is_drained=before.is_drained,
        role=report.role,
        roles=report.roles,
        suggested_role=report.suggested_role,
        kv_endpoints={endpoint.model: endpoint for endpoint in report.kv_endpoints},
    )


def _has_work(load: ModelLoad) -> bool:
    """True where some request of the model is at the node, as it says."""
    return bool(load.num_running or load.num_waiting or load.num_coming)
