"""Every alert rule fires when it should, not before its time, and not upon what is just in order.

The rules are the file that Prometheus reads in a fleet; `alert_cases` has the samples.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.prometheus_server import needs_promtool, try_rules
from tests.tools.alert_cases import CASES, AlertCase
from tools.observability.alerts import ALERTS, Alert
from tools.observability.generate import RULES

LATE, EARLY = "45m", "0m"
"""Longer than any rule waits after its rates have samples; the first look."""


def test_every_alert_has_its_case_and_every_case_its_alert() -> None:
    assert {alert.name for alert in ALERTS} == set(CASES)
    assert set(CASES) - {ALERTS[0].name} != {alert.name for alert in ALERTS}  # the control


def test_cases_are_of_the_names_that_their_rules_ask_for() -> None:
    for alert in ALERTS:
        asked = set(re.findall(r"\b(?:up|hearth_\w+)\b", alert.expression)) - {"hearth_gateway"}
        for series in (CASES[alert.name].fires, CASES[alert.name].quiet):
            named = {name.partition("{")[0] for name in series}
            assert named <= asked, alert.name


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_it_fires_after_its_time_and_is_quiet_otherwise(alert: Alert, tmp_path: Path) -> None:
    case = CASES[alert.name]
    done = try_rules(
        tmp_path,
        create_cases(
            create_test(alert, case.fires, {LATE: [case], EARLY: []}),
            create_test(alert, case.quiet, {LATE: []}),
        ),
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_promtool_finds_a_rule_that_does_not_fire_and_one_that_does(
    alert: Alert, tmp_path: Path
) -> None:
    case = CASES[alert.name]
    for series, expected in ((case.quiet, [case]), (case.fires, [])):
        swapped = create_cases(create_test(alert, series, {LATE: expected}))
        assert try_rules(tmp_path, swapped).returncode != 0


def create_cases(*tests: dict[str, Any]) -> dict[str, Any]:
    """A whole file for promtool."""
    return {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(tests)}


def create_test(alert: Alert, series: Any, expected: dict[str, list[AlertCase]]) -> dict[str, Any]:
    """One lot of samples, and what fires at which moments."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": moment,
                "alertname": alert.name,
                "exp_alerts": [describe(alert, case) for case in cases],
            }
            for moment, cases in expected.items()
        ],
    }


def describe(alert: Alert, case: AlertCase) -> dict[str, Any]:
    """The alert as somebody reads it, its labels put into its sentences."""
    sentences = {"summary": alert.summary, "action": alert.action}
    for label, value in case.labels.items():
        for name, text in sentences.items():
            sentences[name] = text.replace(f"{{{{ $labels.{label} }}}}", value)
    return {
        "exp_labels": {**case.labels, "severity": alert.severity},
        "exp_annotations": sentences,
    }
