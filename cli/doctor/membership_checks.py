"""Checks of nodes that come and go: who is enrolled, what they have written, and the store between.

Read next: `gateway.membership.desk`.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.doctor.finding import Area, Findings, Level
from contracts.errors import StoreUnavailable
from contracts.ids import NodeId
from contracts.membership import HeartbeatRefused, open_heartbeat

if TYPE_CHECKING:
    from gateway.membership.enrolments import EnrolledNode
    from gateway.settings import GatewaySettings

PATIENCE_S: Final = 2.0


async def check_membership(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether the store of members answers, and what is enrolled can be used."""
    from gateway.admission.probe import probe_store
    from gateway.membership.enrolments import EnrolmentFolder
    from gateway.membership.heartbeat_store import HeartbeatStore
    from gateway.store_client import create_redis

    area, membership = Area.NODES, settings.membership
    if membership is None:
        return
    configured = {node.node_id for node in settings.nodes}
    enrolled = EnrolmentFolder(membership.folder).read()
    if not enrolled and not configured:
        findings.add(
            area,
            Level.PROBLEM,
            f"No node is enrolled in {membership.folder}.",
            "Run `hearth node enrol` here, and `hearth node join` where the node is.",
        )
    _note_folder(membership.folder, set(enrolled), configured, findings)
    advice = (
        "Check `membership.url`; until then the last known members go on, and no new one comes."
    )
    with findings.expecting(area, "The store of members cannot be used", advice, StoreUnavailable):
        probe = await probe_store(membership.url.reveal(), time.time)
        findings.ok(area, f"A call to the store of members takes {probe.took_s * 1000:.1f} ms.")
        store = HeartbeatStore(
            create_redis(membership.url.reveal(), PATIENCE_S), budget_s=PATIENCE_S
        )
        try:
            found = await store.fetch(sorted(enrolled))
        finally:
            await store.close()
        for node_id, node in sorted(enrolled.items()):
            _note_heartbeat(node, found.get(node_id), membership.max_skew_s, findings)


def _note_folder(
    folder: Path, enrolled: set[NodeId], configured: set[NodeId], findings: Findings
) -> None:
    """Takes note of enrolments that have no effect."""
    area = Area.NODES
    named = {NodeId(path.stem) for path in folder.glob("*.toml")}
    for node_id in sorted(named - enrolled):
        findings.add(
            area,
            Level.PROBLEM,
            f"The enrolment of {node_id} in {folder} cannot be used; the gateway's log says why.",
            "Run `hearth node remove` and `hearth node enrol` again, or correct file and key.",
        )
    for node_id in sorted(enrolled & configured):
        findings.add(
            area,
            Level.WARNING,
            f"{node_id} is enrolled and in the settings: the settings hold.",
            "Take one of the two away.",
        )
    if folder.exists() and not os.access(folder, os.W_OK):
        findings.add(
            area,
            Level.WARNING,
            f"This user cannot write {folder}: keys of members cannot be replaced.",
            "Let the gateway's user write there, and nobody else.",
        )


def _note_heartbeat(
    node: "EnrolledNode", sealed: bytes | None, max_skew_s: float, findings: Findings
) -> None:
    """Takes note of what one node has written last."""
    area, node_id = Area.NODES, node.node_id
    if sealed is None:
        findings.add(
            area,
            Level.WARNING,
            f"{node_id} is enrolled and has written nothing lately.",
            "Check that it runs, and `membership` in its settings.",
        )
        return
    try:
        heartbeat = open_heartbeat(sealed, node_id, node.key)
    except HeartbeatRefused as refused:
        findings.add(
            area,
            Level.PROBLEM,
            f"What lies in the store as {node_id} is not believed: {refused.reason}.",
            "If it is that node, bring it this gateway's key (`hearth node join`); if it is not, "
            "somebody else writes to the store.",
        )
        return
    age_s = time.time() - heartbeat.unix_ms / 1000
    if abs(age_s) > max_skew_s:
        findings.add(
            area,
            Level.PROBLEM,
            f"{node_id} has written {age_s:.0f} s ago by its clock.",
            "It is down, or its clock or this one is wrong (NTP).",
        )
    elif node.vouched.contradicts(heartbeat.report):
        findings.add(
            area,
            Level.PROBLEM,
            f"{node_id} says that it is in {heartbeat.report.region}, its enrolment says "
            f"{node.enrolment.region}, or they differ in the jurisdiction.",
            "Correct the one that is wrong; until then the node is not used.",
        )
    else:
        findings.ok(area, f"{node_id} has said {age_s:.1f} s ago that it is there.")
