"""What must hold for Grafana to load the dashboard, each check a function from the files to faults.

Grafana itself is in no package here and has not been run; this is what its provisioning and its
dashboard model ask for. Source: Grafana's documentation (provisioning, dashboard JSON model).
"""

import json
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import yaml

from tests.deploy.compose_file import ROOT, load_compose

WIDTH = 24
KNOWN_TYPES = {"row", "timeseries"}
OLDEST_SCHEMA, NEWEST_SCHEMA = 36, 41
"""From the one that Grafana documents to that of Grafana 12, which brings older ones forward."""


@dataclass(frozen=True)
class GrafanaFiles:
    """What the container mounts, parsed, and where."""

    dashboard: dict[str, Any]
    source: dict[str, Any]
    provider: dict[str, Any]
    targets: dict[str, str]
    """The path in the container by the config's name."""
    prometheus: dict[str, Any]
    """That service of the compose file."""
    networks: set[str]
    """Grafana's."""


def load_grafana() -> GrafanaFiles:
    """Fresh copies that a test may change."""
    compose = load_compose()
    service = compose.services["grafana"]
    targets = {config["source"]: config["target"] for config in service["configs"]}
    files = {name: ROOT / compose.content["configs"][name]["file"] for name in targets}
    return GrafanaFiles(
        json.loads(files["grafana-hearth"].read_text(encoding="utf-8")),
        yaml.safe_load(files["grafana-source"].read_text(encoding="utf-8")),
        yaml.safe_load(files["grafana-dashboards"].read_text(encoding="utf-8")),
        targets,
        compose.services["prometheus"],
        set(service["networks"]),
    )


def find_provisioning_faults(files: GrafanaFiles) -> list[str]:
    """Files that Grafana would not look at, or a source that it would not reach."""
    folders = {"grafana-source": "datasources", "grafana-dashboards": "dashboards"}
    faults = [
        f"{name} is mounted at {files.targets[name]}"
        for name, folder in folders.items()
        if not files.targets[name].startswith(f"/etc/grafana/provisioning/{folder}/")
    ]
    (provider,) = files.provider["providers"]
    mounted = files.targets["grafana-hearth"].rpartition("/")[0]
    if provider["type"] != "file" or provider["options"]["path"] != mounted:
        faults.append(f"the provider reads {provider['options']}, the dashboard is in {mounted}")
    (source,) = files.source["datasources"]
    address = {port.rpartition(":")[2] for port in files.prometheus["ports"]}
    if source["url"] not in {f"http://prometheus:{port}" for port in address}:
        faults.append(f"nothing listens at {source['url']}")
    if not files.networks & set(files.prometheus["networks"]):
        faults.append("Grafana and Prometheus share no network")
    faults.extend(
        f"no apiVersion in {e}" for e in (files.source, files.provider) if "apiVersion" not in e
    )
    return faults


def find_source_faults(files: GrafanaFiles) -> list[str]:
    """Panels that ask another source than the one that is provisioned, or ask it nothing."""
    (source,) = files.source["datasources"]
    wanted = {"type": source["type"], "uid": source["uid"]}
    panels = [panel for panel in files.dashboard["panels"] if panel["type"] != "row"]
    faults = [
        f"{p['title']}: {p.get('datasource')}" for p in panels if p.get("datasource") != wanted
    ]
    for panel in panels:
        targets = panel["targets"]
        if not targets or not all(target["expr"].strip() for target in targets):
            faults.append(f"{panel['title']} asks nothing")
        if len({target["refId"] for target in targets}) != len(targets):
            faults.append(f"{panel['title']}: two queries have one refId")
    return faults


def find_model_faults(files: GrafanaFiles) -> list[str]:
    """What the dashboard model does not allow."""
    dashboard, faults = files.dashboard, list[str]()
    if not OLDEST_SCHEMA <= dashboard["schemaVersion"] <= NEWEST_SCHEMA:
        faults.append(f"schemaVersion {dashboard['schemaVersion']}")
    if dashboard.get("id") is not None:
        faults.append("a provisioned dashboard has no id of its own")
    if not dashboard["title"] or not 0 < len(dashboard["uid"]) <= 40:
        faults.append("title or uid")
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        faults.append("two panels have one id")
    faults.extend(f"type {p['type']}" for p in panels if p["type"] not in KNOWN_TYPES)
    faults.extend(p["title"] for p in panels if p["gridPos"]["x"] + p["gridPos"]["w"] > WIDTH)
    faults.extend(
        f"{one['title']} lies upon {other['title']}"
        for one, other in combinations(panels, 2)
        if _overlap(one["gridPos"], other["gridPos"])
    )
    return faults


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """True when the two rectangles share a field of the grid."""
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    down = one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
    return across and down
