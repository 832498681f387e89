"""Keys of a gateway and a node: brought by a token once, replaced under load, void afterwards.

A real gateway and a real node; the executor is the double, whose answers take a while.
"""

import asyncio
import json
import re
import secrets
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.terminal import CommandFailed
from contracts.enrolment import Enrolment, format_enrolment
from contracts.grant import WireEnd, prove_identity
from contracts.ids import ModelName, NodeId
from contracts.pair_key import PairKey
from contracts.wire import (
    GATEWAY_HEADER,
    GATEWAY_NONCE_HEADER,
    KEY_NAME_HEADER,
    WIRE_PATH,
    Challenge,
    Hello,
    decode_frame,
    decode_from_connection,
    encode_frame,
)
from gateway.membership.enrolments import EnrolmentFolder
from gateway.upstream.pair_key_file import load_pair_key
from gpu_pool.connection_settings import GatewaySettings
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.server.gateway_keys import read_key_file
from migrations.upgrade import upgrade_database
from tenancy.audit.entries import AuditFilter
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.node_process import GATEWAY
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until

pytestmark = pytest.mark.slow

NAME = NodeId("double-node")
MODEL = ModelName("@hearth/tests/double")
STREAM: dict[str, Any] = {"prompt": "Hi", "max_tokens": 60, "ignore_eos": True, "stream": True}
NONCE = "ab" * 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's files."""
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database."""
    path = tmp_path_factory.mktemp("database") / "template.db"
    upgrade_database(f"sqlite+aiosqlite:///{path}")
    return path


@dataclass
class Pair:
    """A gateway, a node and the two files of their key."""

    gateway: RunningGateway
    node: DoubleNode
    gateway_file: Path
    node_file: Path
    first: PairKey

    @property
    def url(self) -> str:
        """Where the node is."""
        return self.node.address.url

    def are_settled(self) -> bool:
        """True once both have one and the same key, which is not the first."""
        keys = read_key_file(self.node_file).keys
        return keys == (load_pair_key(self.gateway_file),) != (self.first,)


@dataclass(frozen=True)
class Address:
    """A node as gateways' settings have it."""

    node_id: NodeId
    url: str
    pair_key: bytes


@asynccontextmanager
async def run_pair(folder: Path, checkpoint: Path, template: Path) -> AsyncGenerator[Pair]:
    """Both, connected."""
    (folder / "node").mkdir()
    (folder / "gateway").mkdir()
    options = ("--step-s", "0.02")
    models = (ServedModelSettings(name=MODEL, path=checkpoint),)
    async with run_double_node(folder / "node", checkpoint, *options, models=models) as node:
        url = node.address.url.replace("http", "ws")
        address = Address(NAME, url, node.address.pair_key)
        async with run_gateway(folder / "gateway", template, [address]) as gateway:
            yield Pair(
                gateway,
                node,
                folder / "gateway" / f"{NAME}.key",
                folder / "node" / "gateway.key",
                PairKey(node.address.pair_key),
            )


async def try_key(url: str, key: PairKey, *, is_named: bool = True) -> bool:
    """True when the node takes somebody with `key` for its gateway, and has proved itself too."""
    headers = {GATEWAY_HEADER: GATEWAY, GATEWAY_NONCE_HEADER: NONCE}
    if is_named:
        headers[KEY_NAME_HEADER] = key.name
    async with aiohttp.ClientSession() as session:
        url = url.replace("ws", "http") + WIRE_PATH
        try:
            socket = await session.ws_connect(url, headers=headers)
        except aiohttp.WSServerHandshakeError:
            return False
        async with socket:
            challenge = await socket.receive_bytes()
            nonce = bytes.fromhex(NONCE) + _read_nonce(challenge)
            proof = prove_identity(key.key, WireEnd.GATEWAY, nonce)
            await socket.send_bytes(encode_frame([(0, 0, Hello(proof))]))
            return (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.BINARY


def _read_nonce(frame: bytes) -> bytes:
    """The node's."""
    message = decode_from_connection(decode_frame(frame)[0].message)
    assert isinstance(message, Challenge)
    return message.nonce


async def rotate(pair: Pair) -> int:
    """Over the operators' port; the status."""
    reply = await pair.gateway.send(
        "POST",
        "/operator/v1/nodes/keys",
        b'{"node_id": "double-node"}',
        api_token=pair.gateway.operator,
        origin=pair.gateway.admin,
    )
    return reply.status


async def read_retries(pair: Pair) -> str:
    """What the gateway has counted."""
    reply = await pair.gateway.send(
        "GET", "/metrics", api_token=pair.gateway.operator, origin=pair.gateway.admin
    )
    (count,) = re.findall(r"^hearth_gateway_retries_total (\S+)", reply.body.decode(), re.MULTILINE)
    return count


async def test_a_key_is_replaced_under_load_and_the_former_one_is_void(
    tmp_path: Path, checkpoint: Path, template: Path
) -> None:
    async with run_pair(tmp_path, checkpoint, template) as pair:
        another = PairKey(b"another node's key, of 32 bytes.")
        for is_named in (True, False):
            assert not await try_key(pair.url, another, is_named=is_named)
            assert await try_key(pair.url, pair.first, is_named=is_named)  # the control
        streams = [asyncio.create_task(pair.gateway.run(STREAM, MODEL)) for _ in range(6)]
        loads = pair.node.server.parts.app
        await wait_until(lambda: loads.num_streams >= 6)
        assert await rotate(pair) == 200
        streams += [asyncio.create_task(pair.gateway.run(STREAM, MODEL)) for _ in range(3)]
        await wait_until(pair.are_settled)
        for reply in await asyncio.gather(*streams):
            assert reply.status == 200
            assert reply.events[-1] == "[DONE]"
        assert await read_retries(pair) == "0.0"  # nobody had to go on elsewhere, or anew
        assert not await try_key(pair.url, pair.first)
        assert not await try_key(pair.url, pair.first, is_named=False)
        assert await try_key(pair.url, load_pair_key(pair.gateway_file))  # the control
        await wait_until(lambda: len(loads._connections) == 1)  # the former one is left
        assert await rotate(pair) == 200  # and again
        entries = await pair.gateway.tenancy.list_audit_entries(_of_node())
        assert [entry.action for entry in entries] == ["node.rotate_key"] * 2
        assert load_pair_key(pair.gateway_file).key.hex() not in str(entries)


async def test_a_node_that_cannot_keep_the_new_key_goes_on_with_the_old_one(
    tmp_path: Path, checkpoint: Path, template: Path
) -> None:
    async with run_pair(tmp_path, checkpoint, template) as pair:
        (tmp_path / "node").rename(tmp_path / "elsewhere")
        assert await rotate(pair) == 409
        assert load_pair_key(pair.gateway_file) == pair.first
        assert (await pair.gateway.run({"prompt": "Hi"}, MODEL)).status == 200
        (tmp_path / "elsewhere").rename(tmp_path / "node")
        assert await rotate(pair) == 200  # the control
        await wait_until(pair.are_settled)


async def test_a_token_brings_a_node_its_key_once(
    tmp_path: Path, checkpoint: Path, template: Path
) -> None:
    gateway_file = tmp_path / "gateway.key"
    config = write_config(tmp_path, template)
    where = ("--url", "ws://127.0.0.1:8790", "--region", "local", "--key-file", str(gateway_file))
    said = await asyncio.to_thread(run, "enrol", NAME, *where, "--config", str(config))
    token = said.split("hearth node join ")[1].strip()
    joined = run("join", token, "--key-file", str(tmp_path / "joined.key"))
    assert f'gateway_id = "{GATEWAY}"' in joined
    brought = read_key_file(tmp_path / "joined.key").newest
    assert load_pair_key(gateway_file) == brought
    assert brought.key.hex() not in said + joined
    keys = GatewaySettings(gateway_id=GATEWAY, key_file=tmp_path / "joined.key")
    folder = tmp_path / "node"
    folder.mkdir()
    changes: dict[str, Any] = {
        "gateways": (keys,),
        "models": (ServedModelSettings(name=MODEL, path=checkpoint),),
    }
    async with run_double_node(folder, checkpoint, **changes) as node:
        url = node.address.url.replace("http", "ws")
        assert await try_key(url, brought)  # the control: before the first contact
        address = Address(NAME, url, brought.key)
        files = {"key_file": str(gateway_file)}
        (tmp_path / "gateway").mkdir()
        async with run_gateway(
            tmp_path / "gateway", template, [address], of_each_node=files
        ) as gateway:

            def is_over() -> bool:
                kept = read_key_file(tmp_path / "joined.key").keys
                return kept == (load_pair_key(gateway_file),) != (brought,)

            await wait_until(is_over)
            assert not await try_key(url, brought)
            assert not await try_key(url, brought, is_named=False)
            assert (await gateway.run({"prompt": "Hi"}, MODEL)).status == 200


def test_a_token_is_for_one_node_and_for_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").write_text('node_id = "another"\n')
    token = format_enrolment(Enrolment(GATEWAY, NAME, b"k" * 32, int(time.time()) + 60))
    with pytest.raises(CommandFailed, match="not another"):
        run("join", token, "--config", "node.toml")
    stale = format_enrolment(Enrolment(GATEWAY, NAME, b"k" * 32, int(time.time())))
    with pytest.raises(CommandFailed, match="over"):
        run("join", stale)
    run("join", token)  # the control
    with pytest.raises(CommandFailed, match="exists"):
        run("join", token)


def test_no_token_is_made_for_an_address_that_the_gateway_refuses(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, template)
    where = ("--region", "local", "--config", "gateway.toml")
    with pytest.raises(CommandFailed, match="ws://host:port"):
        run("enrol", NAME, "--url", "http://gpu-7:8790", *where)
    plain = ("enrol", NAME, "--url", "ws://192.0.2.1:8790", *where)
    with pytest.raises(CommandFailed, match="wss:// URL, or say `--allow-plaintext`"):
        run(*plain)
    assert not list(tmp_path.glob("*.key"))
    listed = CliRunner().invoke(app, ["audit", "list", "--json", "--config", "gateway.toml"])
    assert json.loads(listed.output) == []
    assert "allow_plaintext" in run(*plain, "--allow-plaintext")  # the control
    said = run("enrol", "gpu-7", "--url", "wss://gpu-7:8790", *where)
    assert "allow_plaintext" not in said  # the control


def test_no_node_is_enrolled_where_the_catalogue_knows_no_region_or_another_law(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, template)
    members = tmp_path / "members"
    at_home = ("--region", "local", "--config", "gateway.toml")
    run("enrol", "n0", "--url", "wss://n0:1", "--region", "anywhere", "-c", "gateway.toml")
    config.write_text(
        f'region = "local"\n{config.read_text()}'
        '[[routing.regions]]\nname = "weur"\njurisdiction = "eu"\nlatency_ms = 20\n'
        f'[membership]\nurl = "redis://127.0.0.1:1"\nfolder = "{members}"\n'
    )
    with pytest.raises(CommandFailed, match="knows no region `wuer`, only weur"):
        run("enrol", "n1", "--region", "wuer", "-c", "gateway.toml")
    with pytest.raises(CommandFailed, match="in the jurisdiction `eu`"):
        run("enrol", "n1", "--region", "weur", "--jurisdiction", "us", "-c", "gateway.toml")
    assert not members.exists()
    run("enrol", "n1", "--region", "weur", "-c", "gateway.toml")
    run("enrol", "n2", "--jurisdiction", "us", *at_home)
    run("enrol", "n3", *at_home)
    enrolled = EnrolmentFolder(members).read()
    laws = {node_id: node.enrolment.jurisdiction for node_id, node in enrolled.items()}
    assert laws == {"n1": "eu", "n2": "us", "n3": ""}


def test_what_cannot_be_recorded_is_not_enrolled(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, template)
    words = ("enrol", "gpu-7", "--url", "wss://gpu-7:8790", "--region", "weur", "-c", str(config))
    database = tmp_path / "hearth.db"
    database.rename(tmp_path / "elsewhere.db")
    with pytest.raises(CommandFailed):
        run(*words)
    assert not list(tmp_path.glob("*.key"))
    database.unlink(missing_ok=True)
    (tmp_path / "elsewhere.db").rename(database)
    said = run(*words)
    (key_file,) = tmp_path.glob("*.key")  # the control
    listed = CliRunner().invoke(app, ["audit", "list", "--json", "--config", str(config)])
    assert listed.exit_code == 0, listed.output
    (entry,) = json.loads(listed.output)
    assert (entry["action"], entry["resource_id"]) == ("node.enrol", "gpu-7")
    assert entry["actor"]["kind"] == "command_line"
    key = load_pair_key(key_file)
    assert key.name in listed.output
    assert key.key.hex() not in listed.output
    assert said.split("hearth node join ")[1].strip() not in listed.output
    with pytest.raises(CommandFailed, match="exists"):
        run(*words)
    listed = CliRunner().invoke(app, ["audit", "list", "--json", "--config", str(config)])
    assert len(json.loads(listed.output)) == 1  # nothing was made, nothing is told


def write_config(folder: Path, template: Path) -> Path:
    """Settings of a gateway with a database and a key ring, and without nodes."""
    shutil.copyfile(template, folder / "hearth.db")
    load_or_create_key_ring(folder / "key_ring.json", secrets.token_bytes)
    config = folder / "gateway.toml"
    config.write_text(
        f'gateway_id = "{GATEWAY}"\n[database]\nurl = "sqlite:///{folder / "hearth.db"}"\n'
        f'[key_ring]\nfile = "{folder / "key_ring.json"}"\n'
    )
    return config


def run(*words: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, ["node", *words])
    if result.exception is not None:
        raise result.exception
    return result.output


def _of_node() -> AuditFilter:
    return AuditFilter(resource_id=NAME)
