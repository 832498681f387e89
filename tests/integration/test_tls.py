"""TLS as the guide sets it up: its commands are run, its sections are used, and nothing is in the
clear on any port.
"""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contracts.ids import NodeId
from contracts.pricing import TokenRates
from contracts.sections import TlsSettings
from gpu_pool.connection_settings import ListenSettings
from migrations.upgrade import upgrade_database_async
from tests.fixtures.double_node import run_double_node
from tests.fixtures.node_process import MODEL, ROOT
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async


@dataclass(frozen=True)
class KnownNode:
    """A node as a gateway knows it."""

    node_id: NodeId
    url: str
    pair_key: bytes


@dataclass(frozen=True)
class Origins:
    """A gateway's ports over TLS."""

    gateway: RunningGateway
    tenants: str
    operators: str
    trust: ssl.SSLContext

    async def ask(self, url: str, trust: ssl.SSLContext | bool, **options: Any) -> tuple[int, Any]:
        """Status and body of a POST."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, ssl=trust, **options) as response,
        ):
            return response.status, await response.json()

    async def get_status(self, url: str) -> int:
        """The status of a GET without a credential, 0 while nothing answers."""
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(url, ssl=self.trust) as response:
                    return response.status
            except aiohttp.ClientError:
                return 0


def run_guide(folder: Path) -> None:
    """Makes the certificates with the commands of the guide."""
    guide = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = guide.partition("\n## TLS\n")[2]
    (script,) = re.findall(r"```sh\n(.+?)```", section.partition("\n## ")[0], re.DOTALL)
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def run_fleet(folder: Path, ca_file: Path) -> AsyncGenerator[Origins]:
    """A gateway and a node with the guide's certificates; the gateway trusts `ca_file`."""
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    database = f"sqlite+aiosqlite:///{folder / 'hearth.db'}"
    await upgrade_database_async(database)
    node_tls = TlsSettings(
        certificate_file=folder / "node-weur.pem", key_file=folder / "node-weur.key"
    )
    listen = ListenSettings(port=0, tls=node_tls)
    async with run_double_node(folder, checkpoint, listen=listen) as node:
        port = node.address.url.rpartition(":")[2]
        known = KnownNode(NodeId("double-node"), f"wss://localhost:{port}", node.address.pair_key)
        tls = {
            "certificate_file": str(folder / "gateway-1.pem"),
            "key_file": str(folder / "gateway-1.key"),
        }
        sections = {"listen": {"port": 0, "tls": tls}, "admin": {"port": 0, "tls": tls}}
        more = {"ca_file": str(ca_file)}
        async with run_gateway(
            folder, database, [known], is_awaited=False, of_each_node=more, **sections
        ) as gateway:
            yield Origins(
                gateway,
                f"https://localhost:{gateway.gateway.port}",
                f"https://localhost:{gateway.gateway.admin_port}",
                ssl.create_default_context(cafile=str(folder / "authority.pem")),
            )


async def test_every_port_speaks_tls_as_the_guide_sets_it_up(tmp_path: Path) -> None:
    run_guide(tmp_path)
    async with run_fleet(tmp_path, tmp_path / "authority.pem") as origins:
        for origin in (origins.tenants, origins.operators):

            async def is_ready(url: str = origin + "/health/ready") -> bool:
                return await origins.get_status(url) == 200

            await wait_until_async(is_ready, timeout_s=60)
        tenant = origins.gateway.tenant
        await origins.gateway.tenancy.set_price("*", TokenRates(0, 0, 0, 0))
        url = f"{origins.tenants}/client/v4/accounts/{tenant.account_id}/ai/run/{MODEL}"
        options = {
            "headers": {"authorization": f"Bearer {tenant.api_token}"},
            "json": {"prompt": "Hi", "max_tokens": 3},
        }

        async def is_answered() -> bool:  # once the gateway has heard of the price
            return (await origins.ask(url, origins.trust, **options))[0] == 200

        await wait_until_async(is_answered, timeout_s=30)
        with pytest.raises(aiohttp.ClientSSLError):  # who does not know the authority
            await origins.ask(url, True, **options)
        with pytest.raises(aiohttp.ClientError):  # who speaks in the clear
            await origins.ask(url.replace("https", "http"), True, **options)


async def test_a_node_with_a_certificate_of_another_authority_is_not_used(tmp_path: Path) -> None:
    """The control is the test above: there it is, with the right authority."""
    run_guide(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    run_guide(other)
    async with (
        run_fleet(tmp_path, other / "authority.pem") as origins,
        aiohttp.ClientSession() as session,
    ):
        url = origins.operators + "/operator/v1/nodes"
        headers = {"authorization": f"Bearer {origins.gateway.operator}"}
        for _ in range(20):  # it tries again and again meanwhile
            async with session.get(url, headers=headers, ssl=origins.trust) as response:
                (node,) = (await response.json())["result"]
            assert node["is_connected"] is False
            await asyncio.sleep(0.05)
