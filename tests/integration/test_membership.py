"""A node that joins a running gateway: enrolled and removed by the commands, found in a real Redis.

A real gateway and a real node; the executor is the double.
"""

import asyncio
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.doctor.command import examine
from cli.doctor.finding import Area, Level
from cli.main import app
from contracts.ids import ModelName
from contracts.settings import Secret
from gateway.upstream.pair_key_file import load_pair_key
from gpu_pool.connection_settings import GatewaySettings, ListenSettings, MembershipSettings
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.server.gateway_keys import read_key_file
from migrations.upgrade import upgrade_database
from tenancy.audit.entries import AuditFilter
from tests.fixtures.double_node import run_double_node
from tests.fixtures.free_port import find_port
from tests.fixtures.node_process import GATEWAY
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.fixtures.redis_server import needs_redis, run_redis
from tests.gateway.running_gateway import run_gateway, wait_until_async

pytestmark = needs_redis
NAME = "double-node"
NODE_MODEL = ModelName("@hearth/tests/double")


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """An empty database."""
    path = tmp_path / "template.db"
    upgrade_database(f"sqlite+aiosqlite:///{path}")
    return path


def write_config(folder: Path, store_url: str, members: Path) -> Path:
    """The settings file of a gateway, as its operator's commands read it."""
    config = folder / "gateway.toml"
    config.write_text(
        f'gateway_id = "{GATEWAY}"\n[membership]\nurl = "{store_url}"\n'
        f'folder = "{members}"\npoll_s = 0.1\ngone_after_s = 2.0\n'
        f'[database]\nurl = "sqlite:///{folder / "hearth.db"}"\n'
        f'[key_ring]\nfile = "{folder / "key_ring.json"}"\n'
    )
    return config


async def test_a_node_is_enrolled_serves_at_once_gets_another_key_and_is_removed(
    tmp_path: Path, template: Path
) -> None:
    gateway_folder, node_folder = tmp_path / "gateway", tmp_path / "node"
    gateway_folder.mkdir()
    node_folder.mkdir()
    members = gateway_folder / "members"
    checkpoint = write_random_checkpoint(tmp_path / "checkpoint")
    with run_redis(tmp_path) as server:
        config = write_config(gateway_folder, server.url, members)
        section = {"url": server.url, "folder": str(members), "poll_s": 0.1}
        async with run_gateway(
            gateway_folder, template, [], gateway_id=GATEWAY, membership=section
        ) as gateway:

            async def find_problems() -> list[str]:
                found = await asyncio.to_thread(examine, config)
                places = Area.CONFIGURATION, Area.NODES
                problems = [one for one in found.all if one.level is Level.PROBLEM]
                return [one.what for one in problems if one.area in places]

            assert await find_problems() == [f"No node is enrolled in {members}."]
            enrol = ["node", "enrol", NAME, "--region", "local", "-c", str(config)]
            printed = await asyncio.to_thread(CliRunner().invoke, app, enrol)
            assert printed.exit_code == 0, printed.output
            token = re.search(r"hearth_enrol_\S+", printed.output)
            assert token is not None
            key_file = node_folder / "joined.key"
            join = ["node", "join", token[0], "--key-file", str(key_file)]
            assert CliRunner().invoke(app, join).exit_code == 0
            first = load_pair_key(members / f"{NAME}.key")

            port = find_port()
            async with run_double_node(
                node_folder,
                checkpoint,
                listen=ListenSettings(port=port),
                models=(ServedModelSettings(name=NODE_MODEL, path=checkpoint),),
                gateways=(GatewaySettings(gateway_id=GATEWAY, key_file=key_file),),
                membership=MembershipSettings(
                    url=Secret(server.url), advertised_url=f"ws://127.0.0.1:{port}"
                ),
            ):
                await gateway.wait_until_ready()
                reply = await gateway.run({"prompt": "Hi", "max_tokens": 2}, NODE_MODEL)
                assert reply.status == 200

                async def is_renewed() -> bool:
                    keys = read_key_file(key_file).keys
                    return keys == (load_pair_key(members / f"{NAME}.key"),) != (first,)

                await wait_until_async(is_renewed)  # the token opens nothing any more
                found = [
                    one
                    for one in (await asyncio.to_thread(examine, config)).all
                    if one.area is Area.NODES
                ]
                assert any("that it is there" in one.what for one in found), found
                assert await find_problems() == []

                remove = ["node", "remove", NAME, "-c", str(config)]
                removed = await asyncio.to_thread(CliRunner().invoke, app, remove)
                assert removed.exit_code == 0, removed.output

                async def is_gone() -> bool:
                    return gateway.gateway._pool.membership.num_members == 0

                await wait_until_async(is_gone)
                reply = await gateway.run({"prompt": "Hi"}, NODE_MODEL)
                assert reply.status != 200
                of_node = AuditFilter(resource_id=NAME)
                entries = await gateway.tenancy.list_audit_entries(of_node)
                assert [entry.action for entry in entries] == ["node.remove", "node.enrol"]
                assert first.name in entries[1].details
                assert first.key.hex() not in str(entries)
