"""docker-compose.yml fits the code: commands, settings, ports, keys, health checks, rights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import compose_checks
from tests.deploy.compose_file import GPU_FILE, ComposeFile, load_compose, read_compose

Check = Callable[[ComposeFile], list[str]]
Fault = Callable[[ComposeFile], Any]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "database_url"
    file.write_text("postgresql+asyncpg://hearth:secret@postgres:5432/hearth\n")
    return file


CHECKS: list[Check] = [
    compose_checks.find_unknown_commands,
    compose_checks.find_port_faults,
    compose_checks.find_key_faults,
    compose_checks.find_standby_faults,
    compose_checks.find_health_faults,
    compose_checks.find_undeclared_names,
    compose_checks.find_soft_spots,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_compose_file_has_no_fault(check: Check) -> None:
    assert check(load_compose()) == []


def test_every_setting_and_environment_variable_is_understood(secret: Path) -> None:
    assert compose_checks.find_undecodable_settings(load_compose(), secret) == []


def _rename_command(compose: ComposeFile) -> None:
    compose.services["database"]["command"][1] = "upgraed"


def _add_option(compose: ComposeFile) -> None:
    compose.services["gateway"]["command"].append("--prot=1")


def _move_listener(compose: ComposeFile) -> None:
    compose.tables["gateway"]["listen"]["port"] = 8080


def _move_node(compose: ComposeFile) -> None:
    compose.tables["node-enam"]["listen"]["port"] = 8791


def _swap_nodes(compose: ComposeFile) -> None:
    compose.tables["gateway"]["nodes"][0]["url"] = "ws://node-enam:8790"


def _ask_other_port(compose: ComposeFile) -> None:
    test = compose.services["gateway"]["healthcheck"]["test"]
    test[3] = test[3].replace("8787", "8788")


def _swap_pair_keys(compose: ComposeFile) -> None:
    compose.services["node-weur"]["volumes"][0] = "pair-enam:/var/lib/hearth/pair:ro"


def _make_no_key_ring(compose: ComposeFile) -> None:
    del compose.services["keys"]["command"][2]


def _break_snippet(compose: ComposeFile) -> None:
    compose.services["gateway"]["healthcheck"]["test"][3] += "\n  import ("


def _ask_other_path(compose: ComposeFile) -> None:
    test = compose.services["node-weur"]["healthcheck"]["test"]
    test[3] = test[3].replace("/health/ready", "/health/or-not")


def _drop_health_check(compose: ComposeFile) -> None:
    del compose.services["gateway"]["healthcheck"]


def _give_standby_no_file(compose: ComposeFile) -> None:
    compose.tables["standby"]["alive_file"] = "/tmp/other"


def _give_standby_another_credential(compose: ComposeFile) -> None:
    environment = compose.services["standby"]["environment"]
    environment["HEARTH_STANDBY__OPERATOR_TOKEN_FILE"] = "/run/secrets/database_url"


def _send_standby_to_tenants(compose: ComposeFile) -> None:
    compose.tables["standby"]["gateways"][0]["url"] = "http://gateway:8787"


def _cut_standby_off(compose: ComposeFile) -> None:
    compose.services["standby"]["networks"] = ["elsewhere"]


def _drop_volume(compose: ComposeFile) -> None:
    del compose.content["volumes"]["key-ring"]


def _declare_unused_secret(compose: ComposeFile) -> None:
    compose.content["secrets"]["spare"] = {"file": "spare"}


def _withhold_secret(compose: ComposeFile) -> None:
    compose.services["database"]["secrets"] = []


def _run_as_root(compose: ComposeFile) -> None:
    compose.services["node-weur"]["user"] = "0:0"


def _publish_to_all(compose: ComposeFile) -> None:
    compose.services["gateway"]["ports"] = ["8787:8787", "127.0.0.1:8788:8788"]


def _allow_writing(compose: ComposeFile) -> None:
    compose.services["valkey"]["read_only"] = False


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        (compose_checks.find_unknown_commands, _rename_command),
        (compose_checks.find_unknown_commands, _add_option),
        (compose_checks.find_port_faults, _move_listener),
        (compose_checks.find_port_faults, _move_node),
        (compose_checks.find_port_faults, _swap_nodes),
        (compose_checks.find_port_faults, _ask_other_port),
        (compose_checks.find_key_faults, _swap_pair_keys),
        (compose_checks.find_key_faults, _make_no_key_ring),
        (compose_checks.find_health_faults, _break_snippet),
        (compose_checks.find_health_faults, _ask_other_path),
        (compose_checks.find_health_faults, _drop_health_check),
        (compose_checks.find_health_faults, _give_standby_no_file),
        (compose_checks.find_standby_faults, _give_standby_another_credential),
        (compose_checks.find_standby_faults, _send_standby_to_tenants),
        (compose_checks.find_standby_faults, _cut_standby_off),
        (compose_checks.find_undeclared_names, _drop_volume),
        (compose_checks.find_undeclared_names, _declare_unused_secret),
        (compose_checks.find_undeclared_names, _withhold_secret),
        (compose_checks.find_soft_spots, _run_as_root),
        (compose_checks.find_soft_spots, _publish_to_all),
        (compose_checks.find_soft_spots, _allow_writing),
    ],
    ids=lambda value: value.__name__.lstrip("_"),
)
def test_a_planted_fault_is_found(check: Check, plant: Fault) -> None:
    compose = load_compose()
    plant(compose)
    assert len(check(compose)) > 0


@pytest.mark.parametrize(
    "name",
    ["HEARTH_GATEWAY__LISTEN__PROT", "HEARTH_GATEWAY__DATABASE__URI_FILE", "HEARTH_VALKEY_URL"],
)
def test_an_environment_name_that_nobody_reads_is_found(name: str, secret: Path) -> None:
    compose = load_compose()
    compose.services["gateway"]["environment"] = {name: "1"}
    assert len(compose_checks.find_undecodable_settings(compose, secret)) > 0


def test_an_unknown_option_in_a_settings_file_is_found(secret: Path) -> None:
    compose = load_compose()
    compose.tables["node-weur"]["regoin"] = "weur"
    assert len(compose_checks.find_undecodable_settings(compose, secret)) > 0


def test_the_gpu_override_changes_nodes_only_and_gives_each_a_gpu_of_its_own() -> None:
    override = read_compose(GPU_FILE)
    nodes = {name for name in load_compose().services if name.startswith("node-")}
    assert set(override["services"]) == nodes
    reserved = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for service in override["services"].values()
    ]
    assert sorted(reserved) == [["0"], ["1"]]
