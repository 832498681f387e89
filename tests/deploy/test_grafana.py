"""The provisioned dashboard fits Grafana's provisioning, its model, and the source beside it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.grafana_checks import (
    GrafanaFiles,
    find_model_faults,
    find_provisioning_faults,
    find_source_faults,
    load_grafana,
)

Check = Callable[[GrafanaFiles], list[str]]
CHECKS: list[Check] = [find_provisioning_faults, find_source_faults, find_model_faults]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_files_have_no_fault(check: Check) -> None:
    assert check(load_grafana()) == []


def _move_dashboard(files: GrafanaFiles) -> Any:
    files.targets["grafana-hearth"] = "/somewhere/hearth.json"


def _move_source(files: GrafanaFiles) -> Any:
    files.targets["grafana-source"] = "/etc/grafana/sources/prometheus.yml"


def _ask_another_port(files: GrafanaFiles) -> Any:
    files.source["datasources"][0]["url"] = "http://prometheus:9091"


def _part_networks(files: GrafanaFiles) -> Any:
    files.prometheus["networks"] = ["elsewhere"]


def _rename_source(files: GrafanaFiles) -> Any:
    files.source["datasources"][0]["uid"] = "another"


def _ask_nothing(files: GrafanaFiles) -> Any:
    files.dashboard["panels"][1]["targets"][0]["expr"] = " "


def _repeat_a_query_s_name(files: GrafanaFiles) -> Any:
    panel = next(p for p in files.dashboard["panels"] if len(p.get("targets", ())) > 1)
    panel["targets"][1]["refId"] = panel["targets"][0]["refId"]


def _come_from_the_future(files: GrafanaFiles) -> Any:
    files.dashboard["schemaVersion"] = 99


def _repeat_a_panel_s_id(files: GrafanaFiles) -> Any:
    files.dashboard["panels"][1]["id"] = files.dashboard["panels"][2]["id"]


def _put_one_upon_another(files: GrafanaFiles) -> Any:
    files.dashboard["panels"][2]["gridPos"] = files.dashboard["panels"][1]["gridPos"]


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        (find_provisioning_faults, _move_dashboard),
        (find_provisioning_faults, _move_source),
        (find_provisioning_faults, _ask_another_port),
        (find_provisioning_faults, _part_networks),
        (find_source_faults, _rename_source),
        (find_source_faults, _ask_nothing),
        (find_source_faults, _repeat_a_query_s_name),
        (find_model_faults, _come_from_the_future),
        (find_model_faults, _repeat_a_panel_s_id),
        (find_model_faults, _put_one_upon_another),
    ],
    ids=lambda value: value.__name__.lstrip("_"),
)
def test_a_planted_fault_is_found(check: Check, plant: Callable[[GrafanaFiles], Any]) -> None:
    files = load_grafana()
    plant(files)
    assert len(check(files)) > 0
