"""The files that `hearth dev` writes are read by the processes they are written for."""

import tomllib
from pathlib import Path

from cli.dev.home import DevHome
from cli.dev.preparation import format_database_url
from cli.dev.settings_files import (
    DevPorts,
    format_gateway_settings,
    format_node_settings,
)
from contracts.ids import ModelName
from contracts.sections import LogFormat
from contracts.settings import decode_settings
from gateway.settings import GatewaySettings
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.settings import PoolSettings

PORTS = DevPorts(gateway=1001, admin=1002, node=1003)
AWKWARD = 'a folder "with" quotes \\ and umlauts ä'


def test_gateway_and_node_meet_at_the_same_port_with_the_same_key(tmp_path: Path) -> None:
    home = DevHome(tmp_path / AWKWARD)
    model = create_model("@hearth/tiny-chat", tmp_path / AWKWARD, 'says "hi"')
    gateway_text = format_gateway_settings(home, PORTS, format_database_url(home))
    gateway = decode_settings(GatewaySettings, tomllib.loads(gateway_text), {}, "HEARTH_GATEWAY")
    node_text = format_node_settings(
        home, PORTS, (model, create_model("@hub/second", tmp_path, ""))
    )
    node = decode_settings(PoolSettings, tomllib.loads(node_text), {}, "HEARTH_POOL")

    assert (gateway.listen.port, gateway.admin.port, node.listen.port) == (1001, 1002, 1003)
    assert gateway.nodes[0].url == "ws://127.0.0.1:1003"
    assert gateway.nodes[0].node_id == node.node_id
    assert gateway.nodes[0].key_file == node.gateways[0].key_file == home.pair_key.resolve()
    assert gateway.gateway_id == node.gateways[0].gateway_id
    assert gateway.log.format is node.log.format is LogFormat.CONSOLE  # people read these
    assert node.models[0].dtype is DtypeChoice.FLOAT32
    assert gateway.key_ring.file == home.key_ring.resolve()
    assert gateway.database.url.endswith(f"/{AWKWARD}/hearth.db")
    assert [served.name for served in node.models] == ["@hearth/tiny-chat", "@hub/second"]
    assert node.models[0].description == 'says "hi"'
    assert node.models[0].path == (tmp_path / AWKWARD).resolve()


def create_model(name: str, path: Path, description: str) -> ServedModelSettings:
    return ServedModelSettings(
        name=ModelName(name), path=path, dtype=DtypeChoice.FLOAT32, description=description
    )
