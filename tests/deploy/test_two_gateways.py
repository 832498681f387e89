"""docker-compose.two-gateways.yml fits docker-compose.yml: keys, ports, ids, who hears of whom."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.process_settings import resolve_file_variables
from contracts.settings import decode_settings
from gateway.settings import PREFIX as GATEWAY_PREFIX
from gateway.settings import GatewaySettings
from gpu_pool.settings import PREFIX as POOL_PREFIX
from gpu_pool.settings import PoolSettings
from hot_standby.settings import PREFIX as STANDBY_PREFIX
from hot_standby.settings import StandbySettings
from tests.deploy.compose_file import ROOT, TWO_GATEWAYS_FILE, load_compose, read_compose
from tests.fixtures.prometheus_server import needs_prometheus, run_prometheus


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Stands for every mounted secret."""
    file = tmp_path / "secret"
    file.write_text("redis://gateway:0123456789abcdef@valkey:6379/0\n")
    return file


def decode(
    kind: type[Any], prefix: str, table: dict[str, Any], *services: Any, secret: Path
) -> Any:
    """The settings of a process whose environment is that of `services`, the later ones last."""
    environ = {
        key: str(secret) if key.endswith("_FILE") else str(value)
        for service in services
        for key, value in service.get("environment", {}).items()
    }
    return decode_settings(kind, table, resolve_file_variables(kind, prefix, environ), prefix)


def test_each_gateway_has_a_key_of_its_own_with_each_node_and_all_are_made(secret: Path) -> None:
    base, more = load_compose(), read_compose(TWO_GATEWAYS_FILE)["services"]
    gateways: list[GatewaySettings] = [
        decode(GatewaySettings, GATEWAY_PREFIX, base.tables["gateway"], *services, secret=secret)
        for services in (
            (base.services["gateway"], more["gateway"]),
            (base.services["gateway"], more["gateway-2"]),
        )
    ]
    assert [gateway.gateway_id for gateway in gateways] == ["gateway-1", "gateway-2"]
    limits = [gateway.shared_limits for gateway in gateways]
    assert [each.num_gateways for each in limits if each is not None] == [2, 2]
    made = {Path(word.partition("=")[2]) for word in more["keys"]["command"] if "pair" in word}
    used = [node.key_file for gateway in gateways for node in gateway.nodes]
    assert sorted(used) == sorted(made)
    for name in ("node-weur", "node-enam"):
        services = (base.services[name], more[name])
        node: PoolSettings = decode(
            PoolSettings, POOL_PREFIX, base.tables[name], *services, secret=secret
        )
        assert {each.gateway_id: each.key_file.name for each in node.gateways} == {
            gateway.gateway_id: f"{gateway.gateway_id}.key" for gateway in gateways
        }


def test_it_shares_no_port_journal_or_heads_with_the_first_and_hot_standby_asks_both(
    secret: Path,
) -> None:
    base, more = load_compose(), read_compose(TWO_GATEWAYS_FILE)
    first, second = base.services["gateway"], more["services"]["gateway-2"]
    assert not set(first["ports"]) & set(second["ports"])
    assert all(port.startswith("127.0.0.1:") for port in second["ports"])
    own = {volume.partition(":")[0] for volume in second["volumes"]}
    assert own == set(more["volumes"])
    replaced = {volume.partition(":")[2] for volume in second["volumes"]}
    assert replaced == {"/var/lib/hearth/journal", "/var/lib/hearth/audit"}
    services = (base.services["standby"], more["services"]["standby"])
    table = base.tables["standby"]
    standby: StandbySettings = decode(
        StandbySettings, STANDBY_PREFIX, table, *services, secret=secret
    )
    assert [each.url for each in standby.gateways] == [
        "http://gateway:8788",
        "http://gateway-2:8788",
    ]


@needs_prometheus
def test_prometheus_watches_the_second_gateway_where_there_is_one(tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    more = read_compose(TWO_GATEWAYS_FILE)
    (mounted,) = more["services"]["prometheus"]["configs"]
    content = (ROOT / more["configs"][mounted["source"]]["file"]).read_text()
    (job,) = (job for job in settings["scrape_configs"] if "file_sd_configs" in job)
    ((pattern,),) = (each["files"] for each in job["file_sd_configs"])
    assert Path(mounted["target"]).match(pattern)
    job["file_sd_configs"] = [{"files": [str(tmp_path / Path(pattern).name)]}]
    settings["scrape_configs"] = [job]
    del settings["rule_files"]
    watched = [{"gateway:8789"}, {"gateway:8789", "gateway-2:8789"}]  # the control, and with it
    for expected in watched:
        with run_prometheus(tmp_path, settings) as prometheus:
            deadline = time.monotonic() + 30
            while (found := list_watched(prometheus.fetch("targets"))) != expected:
                assert time.monotonic() < deadline, found
                time.sleep(0.1)
        (tmp_path / Path(mounted["target"]).name).write_text(content)


def list_watched(targets: Any) -> set[str]:
    """Addresses of what Prometheus reads as gateways."""
    active = [target["labels"] for target in targets["activeTargets"]]
    return {each["instance"] for each in active if each["job"] == "hearth-gateway"}
