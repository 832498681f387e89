"""Writes the dashboard and the alert rules from the table; `make dashboards`.

Read next: `panels` (what is in them).
"""

import json
from pathlib import Path
from typing import Any

from tools.observability.alerts import ALERTS, Alert
from tools.observability.panels import ROWS, Panel, Query

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/dashboards/hearth.json"
RULES = ROOT / "deploy/prometheus/alerts.yml"
PANELS_ABREAST = 4
HEIGHT = 8
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "hearth-prometheus"}


def main() -> None:
    """Writes both files."""
    for file, text in ((DASHBOARD, create_dashboard()), (RULES, create_rules())):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(file.relative_to(ROOT))


def create_dashboard() -> str:
    """Grafana's dashboard, as JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        panels.append({"type": "row", "title": row.title, "gridPos": place, "panels": []})
        top += 1
        for index, panel in enumerate(row.panels):
            width = WIDTH // PANELS_ABREAST
            left = index % PANELS_ABREAST * width
            below = top + index // PANELS_ABREAST * HEIGHT
            place = {"x": left, "y": below, "w": width, "h": HEIGHT}
            panels.append(_create_panel(panel, place))
        top += -(-len(row.panels) // PANELS_ABREAST) * HEIGHT
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    dashboard = {
        "uid": "hearth",
        "title": "Hearth",
        "tags": ["hearth"],
        "timezone": "utc",
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def create_rules() -> str:
    """Prometheus' alert rules, as YAML."""
    head = "# Written by `make dashboards` from tools/observability/alerts.py.\n"
    return f"{head}groups:\n  - name: hearth\n    rules:\n" + "".join(map(_format_rule, ALERTS))


def _create_panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "gridPos": place,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [_create_target(query, i) for i, query in enumerate(panel.queries)],
    }


def _create_target(query: Query, index: int) -> dict[str, str]:
    name = chr(ord("A") + index)
    return {"refId": name, "expr": query.expression, "legendFormat": query.legend}


def _format_rule(alert: Alert) -> str:
    """One rule; every text is quoted as JSON, which YAML reads as it is."""
    return (
        f"      - alert: {alert.name}\n"
        f"        expr: {json.dumps(alert.expression)}\n"
        f"        for: {alert.lasts}\n"
        f"        labels: {{severity: {alert.severity}}}\n"
        "        annotations:\n"
        f"          summary: {json.dumps(alert.summary)}\n"
        f"          action: {json.dumps(alert.action)}\n"
    )


if __name__ == "__main__":
    main()
