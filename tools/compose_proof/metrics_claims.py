"""What is claimed of metrics: Prometheus reaches every part, no panel is empty.

Read next: `tools.observability.panels`, `claims` (everything else).
"""

import json
import math
import time
import urllib.parse
import urllib.request
from typing import Any

from tools.compose_proof.claims import Tenants
from tools.compose_proof.compose_project import ComposeProject
from tools.compose_proof.gateway_client import poll
from tools.compose_proof.narration import claim, step
from tools.observability.alerts import ALERTS
from tools.observability.panels import ROWS

PROFILE = ("--profile", "metrics")
LOAD_S = 25.0


def check_metrics(project: ComposeProject, tenants: Tenants) -> None:
    """Starts Prometheus, gives it something to count, asks every panel's queries, stops it."""
    port = project.ports["PROMETHEUS_PORT"]
    with step("starting Prometheus"):
        project.compose(*PROFILE, "up", "--detach", "--no-build", "--wait", "prometheus")
    reached = poll(lambda: _read(port, "sum(up)") == ["3"], 40)
    claim(reached, "Prometheus reads the gateway and both nodes", _read(port, "up"))
    with step("asking and streaming for a while"):
        end_s = time.monotonic() + LOAD_S
        while time.monotonic() < end_s:
            for tenant in (tenants.eu, tenants.us):
                tenant.ask()
                list(tenant.stream(40))
    panels = [panel for row in ROWS for panel in row.panels]
    empty = [
        f"{panel.title}: {query.expression}"
        for panel in panels
        for query in panel.queries
        if not panel.is_optional and not _is_finite(_read(port, query.expression))
    ]
    count = sum(len(panel.queries) for panel in panels if not panel.is_optional)
    claim(not empty, f"all {count} queries of the dashboard return data", "\n".join(empty))
    rules = _fetch(port, "rules", {})["groups"][0]["rules"]
    well = {rule["name"] for rule in rules if rule["health"] in ("ok", "unknown")}
    known = {alert.name for alert in ALERTS}
    claim(well == known, f"all {len(ALERTS)} alert rules are loaded", rules)
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    claim(not firing, "and none of them is firing", firing)
    project.compose(*PROFILE, "rm", "--stop", "--force", "--volumes", "prometheus")


def _read(port: int, expression: str) -> list[str]:
    """The values that a query returns at this moment."""
    data = _fetch(port, "query", {"query": expression})
    return [sample["value"][1] for sample in data["result"]]


def _fetch(port: int, what: str, query: dict[str, str]) -> Any:
    """The data of one answer of Prometheus' API. Raises: `OSError`."""
    url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=20) as response:
        return json.load(response)["data"]


def _is_finite(values: list[str]) -> bool:
    """True when there is a number among them: a quantile of nothing is none."""
    return any(math.isfinite(float(value)) for value in values)
