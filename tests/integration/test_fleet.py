"""Two regions, PostgreSQL, Valkey and the settings of docker-compose.yml, as plain processes."""

import json
import secrets
from collections.abc import Iterator

import httpx
import pytest

from tests.fixtures.redis_server import needs_redis, run_redis
from tests.integration.account_client import MODEL
from tests.integration.compose_fleet import NODES, ComposeFleet
from tests.integration.running_dev import choose_ports, wait_until
from tests.tenancy.postgres_server import create_database

pytestmark = [pytest.mark.slow, needs_redis]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[ComposeFleet]:
    gateway, admin, weur = choose_ports()
    enam, *_ = choose_ports()
    ports = {"gateway": gateway, "admin": admin, "node-weur": weur, "node-enam": enam}
    folder = tmp_path_factory.mktemp("fleet")
    with (
        create_database(postgres_server) as url,
        run_redis(tmp_path_factory.mktemp("limits")) as limits,
        ComposeFleet(folder, ports, create_secrets(url, limits.url)) as fleet,
    ):
        fleet.run_to_end("keys")
        fleet.run_to_end("database")
        for service in (*NODES, "gateway"):
            fleet.start(service)
        operator = json.loads(fleet.run_command("operators", "create", "ops", "--json"))["value"]
        wait_until(
            lambda: len(list_ready_regions(fleet, operator)) == 2,
            100,
            lambda: "\n".join(fleet.read_log(name) for name in (*NODES, "gateway")),
        )
        yield fleet


def create_secrets(database_url: str, valkey_url: str) -> dict[str, str]:
    """What the gateway's service reads from files, by the file's name."""
    return {
        "database_url": database_url + "\n",
        "valkey_url": valkey_url + "\n",
        "standby_credential": secrets.token_hex(32) + "\n",
    }


def list_ready_regions(fleet: ComposeFleet, operator: str) -> set[str]:
    """Regions whose node serves its model, as operators see it."""
    url = f"http://127.0.0.1:{fleet.ports['admin']}/operator/v1/nodes"
    try:
        response = httpx.get(url, headers={"Authorization": f"Bearer {operator}"}, timeout=10)
    except httpx.TransportError:
        return set()
    nodes = response.json()["result"]
    return {node["region"] for node in nodes if any(load["is_ready"] for load in node["loads"])}


def ask_from(fleet: ComposeFleet, *regions: str) -> httpx.Response:
    """The answer to a new account that these regions may compute for."""
    words = [word for region in regions for word in ("--region", region)]
    account = json.loads(fleet.run_command("accounts", "create", "acme", "--json", *words))
    account_id = account["account_id"]
    issued = json.loads(
        fleet.run_command("tokens", "create", account_id, "--name", "test", "--json")
    )
    return httpx.post(
        f"http://127.0.0.1:{fleet.ports['gateway']}/client/v4/accounts/{account_id}/ai/run/{MODEL}",
        headers={"Authorization": f"Bearer {issued['value']}"},
        json={"prompt": "Hi", "max_tokens": 4},
        timeout=60,
    )


def test_every_region_serves_and_a_region_without_a_node_is_refused(fleet: ComposeFleet) -> None:
    for regions in ((), ("weur",), ("enam",), ("apac", "enam")):
        response = ask_from(fleet, *regions)
        assert response.status_code == 200, response.text
    refused = ask_from(fleet, "apac")
    assert refused.status_code == 403
    assert refused.json()["errors"][0]["code"] == 7403


def test_an_account_bound_to_a_dead_region_is_not_served_elsewhere(fleet: ComposeFleet) -> None:
    """Runs last: the node of one region dies and stays dead."""
    process = fleet.processes["node-enam"]
    process.kill()
    process.wait()
    wait_until(lambda: ask_from(fleet, "enam").status_code != 200, 30)
    refused = ask_from(fleet, "enam")
    assert refused.status_code in (403, 429, 503), refused.text
    assert refused.json()["success"] is False
    served = ask_from(fleet, "enam", "weur")  # the control: the other region could have done it
    assert served.status_code == 200, served.text
