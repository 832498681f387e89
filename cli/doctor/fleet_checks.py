"""Checks of the nodes that a gateway is configured for, over the wire that it would use.

Read next: `gateway.upstream.probe`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.doctor.finding import Area, Findings, Level
from cli.doctor.residency_checks import list_enrolled
from cli.doctor.store_checks import note_skew
from contracts.ids import RegionId
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings, NodeSettings
    from gateway.upstream.probe import NodeProbe


async def check_nodes(settings: "GatewaySettings", findings: Findings) -> set[str]:
    """The models that they offer, once each is asked whether it is itself and can serve them."""
    probes = await asyncio.gather(*(_probe(settings, node) for node in settings.nodes))
    for node, probe in zip(settings.nodes, probes, strict=True):
        if probe is None:
            continue  # its key is a finding already
        _note(node, probe, findings)
        _note_place(settings, node, probe, findings)
    _note_disputes(settings, probes, findings)
    return {model for probe in probes if probe is not None for model in probe.models}


async def _probe(settings: "GatewaySettings", node: "NodeSettings") -> "NodeProbe | None":
    """What one node is like; None when we have no key to try it with."""
    from gateway.upstream.node_address import NodeAddress
    from gateway.upstream.pair_key_file import load_pair_key
    from gateway.upstream.probe import probe_node

    try:
        key = load_pair_key(node.key_file)
    except SettingsError:
        return None
    address = NodeAddress(node.node_id, node.url, key, node.ca_file)
    return await probe_node(address, settings.gateway_id, time.time)


def _note(node: "NodeSettings", probe: "NodeProbe", findings: Findings) -> None:
    """Takes note of one node."""
    area = Area.NODES
    if probe.failure is not None:
        findings.add(
            area,
            Level.PROBLEM,
            f"{node.node_id} at {node.url}: {probe.failure}.",
            "Check that it runs, its address and firewall, that its `[[gateways]]` names this "
            "gateway, that both have the same key file, and its certificate where it is wss://.",
        )
    else:
        findings.ok(area, f"{node.node_id} at {node.url} answers and has proved itself.")
    if probe.skew_s is not None:
        note_skew(node.node_id, probe.skew_s, findings)
    for model, state in probe.models.items():
        if model in probe.engines:
            _note_engine(node, model, state, probe.engines[model], findings)
        elif state == "failed":
            findings.add(
                area,
                Level.PROBLEM,
                f"{node.node_id} cannot serve {model}.",
                "Its log and `GET /operator/v1/nodes` say why.",
            )
    if probe.failure is None and "ready" not in probe.models.values():
        findings.add(
            area,
            Level.WARNING,
            f"No model of {node.node_id} can serve at the moment.",
            "Wait until they are loaded; `/health/ready` of the node tells how far they are.",
        )


def _note_place(
    settings: "GatewaySettings", node: "NodeSettings", probe: "NodeProbe", findings: Findings
) -> None:
    """Takes note of a node that says it is elsewhere than these settings have it."""
    if probe.region is None:
        return
    laws = {region.name: region.jurisdiction for region in settings.routing.regions}
    law = laws.get(RegionId(probe.region))
    if node.region not in (None, probe.region):
        said, known = f"in {probe.region}", f"in {node.region}"
    elif law not in (None, probe.jurisdiction):
        said, known = f"under the law of {probe.jurisdiction or 'nobody'}", f"under that of {law}"
    else:
        return
    findings.add(
        Area.NODES,
        Level.PROBLEM,
        f"{node.node_id} says it is {said}, these settings {known}: it gets no request.",
        "Correct `region` or `jurisdiction` in the node's settings, or `[[nodes]]` and "
        "`[[routing.regions]]` in these, and restart what was changed.",
    )


def _note_disputes(
    settings: "GatewaySettings", probes: Sequence["NodeProbe | None"], findings: Findings
) -> None:
    """Takes note of regions whose nodes, and enrolments, do not all name the same law; those of the
    catalogue are under its law, and who says otherwise there is named by `_note_place`.
    """
    catalogue = {region.name for region in settings.routing.regions}
    said: dict[str, dict[str, list[str]]] = {}
    for node, probe in zip(settings.nodes, probes, strict=True):
        if probe is not None and probe.region is not None and node.region in (None, probe.region):
            laws = said.setdefault(probe.region, {})
            laws.setdefault(probe.jurisdiction or "none", []).append(node.node_id)
    for node_id, enrolment in list_enrolled(settings).items():
        laws = said.setdefault(enrolment.region, {})
        laws.setdefault(enrolment.jurisdiction or "none", []).append(node_id)
    for region, laws in sorted(said.items()):
        if len(laws) < 2 or region in catalogue:
            continue
        words = [f"{law} by {', '.join(sorted(laws[law]))}" for law in sorted(laws)]
        findings.add(
            Area.NODES,
            Level.PROBLEM,
            f"Different things are said of whose law holds in {region} ({'; '.join(words)}): who "
            "is bound to one of them is not computed there.",
            "Correct `jurisdiction` in those nodes' settings or enrolments, or name the region in "
            "`[[routing.regions]]`.",
        )


def _note_engine(
    node: "NodeSettings", model: str, state: str, engine: str, findings: Findings
) -> None:
    """Takes note of a model that an engine of others computes."""
    what = f"{model} of {node.node_id}, which an engine of others ({engine}) computes,"
    if state == "ready":
        findings.ok(Area.NODES, f"{what} is served.")
    elif state == "failed":
        findings.add(
            Area.NODES,
            Level.PROBLEM,
            f"{what} is not served: the engine is not as the node's `[[upstreams]]` describes it.",
            "The node's log and `GET /operator/v1/nodes` say what is different.",
        )
    else:
        findings.add(
            Area.NODES,
            Level.WARNING,
            f"{what} is not there: the node gets no answer from the engine.",
            "Check that it runs, and `url` in the node's `[[upstreams]]`.",
        )
