"""A whole gateway on real ports with a SQLite tenancy, for tests: accounts, tokens and clients.

Read next: `scripted_node` (what stands behind it), `raw_http` (clients that misbehave).
"""

import asyncio
import io
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

from contracts.ids import AccountId, NodeId, RegionId
from contracts.region_rules import ANY_REGION, RegionRules
from gateway.app import Gateway, create_gateway
from gateway.settings import GatewaySettings
from gateway.sources import create_sources
from tenancy.audit.heads import HeadFile
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tenancy.permissions import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.gateway.scripted_node import MODEL


@dataclass
class Tenant:
    """An account with one API token that may do inference."""

    account_id: AccountId
    api_token: str


@dataclass
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> int:
        """The integer code of the first error in the envelope."""
        assert self.json["success"] is False
        return self.json["errors"][0]["code"]

    @property
    def events(self) -> list[Any]:
        """Server-sent events; JSON decoded, `[DONE]` as it is."""
        events = self.body.decode().split("\n\n")
        assert events.pop() == ""
        return [
            "[DONE]" if event == "data: [DONE]" else msgspec.json.decode(event[6:])
            for event in events
            if not event.startswith(":")  # pings
        ]


@dataclass
class RunningGateway:
    """A started gateway and what is needed to talk to it."""

    gateway: Gateway
    """Or a process that has the same ports (`gateway_process`)."""
    tenancy: ActingTenancy
    """A second view of the same database, as the command line would have."""
    session: aiohttp.ClientSession
    tenants: list[Tenant] = field(default_factory=list)
    operator: str = ""

    @property
    def tenant(self) -> Tenant:
        """The first account."""
        return self.tenants[0]

    @property
    def base(self) -> str:
        """The tenants' origin."""
        return f"http://127.0.0.1:{self.gateway.port}"

    @property
    def admin(self) -> str:
        """The operators' origin."""
        return f"http://127.0.0.1:{self.gateway.admin_port}"

    async def add_tenant(
        self,
        regions: Iterable[str] | None = None,
        rules: RegionRules = ANY_REGION,
        permissions: frozenset[Permission] = frozenset({Permission.WORKERS_AI_READ}),
        **times: int,
    ) -> Tenant:
        """A new account with a token. `regions` are the only ones that it allows, else `rules`."""
        if regions is not None:
            rules = RegionRules(allowed_regions=tuple(map(RegionId, regions)))
        account = await self.tenancy.create_account("tests", **msgspec.structs.asdict(rules))
        issued = await self.tenancy.create_api_token(
            account.account_id, "tests", permissions, **times
        )
        tenant = Tenant(account.account_id, issued.value.reveal())
        self.tenants.append(tenant)
        return tenant

    def account_path(self, rest: str, tenant: Tenant | None = None) -> str:
        """A path below an account."""
        return f"/client/v4/accounts/{(tenant or self.tenant).account_id}{rest}"

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        api_token: str | None = "",
        headers: Mapping[str, str] | None = None,
        origin: str | None = None,
    ) -> Reply:
        """One request; an empty token stands for the first tenant's, None for none."""
        sent = dict(headers or {})
        if api_token is not None:
            sent["authorization"] = f"Bearer {api_token or self.tenant.api_token}"
        url = (origin or self.base) + path
        # A file, for aiohttp warns of long bodies in any other form.
        data = None if body is None else io.BytesIO(body)
        request = self.session.request(method, _encoded(url), data=data, headers=sent)
        async with request as response:
            return Reply(response.status, response.headers, await response.read())

    async def run(self, body: Any, model: str = MODEL, tenant: Tenant | None = None) -> Reply:
        """`POST /ai/run/{model}`."""
        tenant = tenant or self.tenant
        path = self.account_path(f"/ai/run/{model}", tenant)
        return await self.send("POST", path, to_bytes(body), api_token=tenant.api_token)

    async def chat(self, body: Any, tenant: Tenant | None = None) -> Reply:
        """`POST /ai/v1/chat/completions`."""
        tenant = tenant or self.tenant
        path = self.account_path("/ai/v1/chat/completions", tenant)
        return await self.send("POST", path, to_bytes(body), api_token=tenant.api_token)

    async def wait_until_ready(self) -> None:
        """Returns once a node can serve."""

        async def is_ready() -> bool:
            return (await self.send("GET", "/health/ready", api_token=None)).status == 200

        await wait_until_async(is_ready)


def _encoded(url: str) -> Any:
    """The URL exactly as written: tests send odd ones on purpose."""
    from yarl import URL

    return URL(url, encoded=True)


def to_bytes(body: Any) -> bytes:
    """`body` as JSON, unless it is bytes already."""
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


async def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Returns once `condition` holds; fails after `timeout_s`."""

    async def check() -> bool:
        return condition()

    await wait_until_async(check, timeout_s)


async def wait_until_async(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """The same for a condition that must be awaited."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


class NodeAddress(Protocol):
    """What a gateway must know of a node."""

    @property
    def node_id(self) -> NodeId: ...
    @property
    def url(self) -> str: ...
    @property
    def pair_key(self) -> bytes: ...


def write_settings(
    folder: Path, database: Path, nodes: Iterable[NodeAddress], **sections: Any
) -> GatewaySettings:
    """Settings for a gateway whose files lie in `folder`."""
    table = create_settings_table(folder, f"sqlite+aiosqlite:///{database}", nodes, **sections)
    return to_settings(table)


def to_settings(table: dict[str, Any]) -> GatewaySettings:
    """The settings that a file with `table` would give."""
    return msgspec.convert(table, GatewaySettings, dec_hook=lambda kind, value: kind(value))


def create_settings_table(
    folder: Path, database_url: str, nodes: Iterable[NodeAddress], **sections: Any
) -> dict[str, Any]:
    """The same as a settings file has them; keys are made where there are none.

    `of_each_node` holds further options of every node's section.
    """
    more = sections.pop("of_each_node", {})
    load_or_create_key_ring(folder / "key_ring.json", secrets.token_bytes)
    entries = []
    for node in nodes:
        key_file = folder / f"{node.node_id}.key"
        key_file.write_text(node.pair_key.hex() + "\n")
        key_file.chmod(0o600)
        entry = {"node_id": node.node_id, "url": node.url, "key_file": str(key_file)}
        entries.append(entry | more)
    return {
        "listen": {"port": 0},
        "admin": {"port": 0},
        "database": {"url": database_url},
        "key_ring": {"file": str(folder / "key_ring.json")},
        "nodes": entries,
        "journal": {"folder": str(folder / "journal"), "flush_s": 0.05},
        **sections,
    }


@asynccontextmanager
async def run_gateway(
    folder: Path,
    template: Path | str,
    nodes: Iterable[NodeAddress],
    *,
    is_awaited: bool = True,
    **sections: Any,
) -> AsyncGenerator[RunningGateway]:
    """A gateway in front of `nodes` with one tenant and one operator; ready to serve if awaited.

    `template` is a SQLite file, which is copied, or the URL of a database, which is used.
    """
    url = template if isinstance(template, str) else f"sqlite+aiosqlite:///{folder / 'hearth.db'}"
    if isinstance(template, Path):
        shutil.copyfile(template, folder / "hearth.db")
    limits = {"shutdown_grace_s": 1, **sections.pop("limits", {})}
    settings = to_settings(create_settings_table(folder, url, nodes, limits=limits, **sections))
    key_ring = load_or_create_key_ring(settings.key_ring.file, secrets.token_bytes)
    heads = HeadFile(settings.audit.find_heads_file(settings.key_ring.file))
    tenancy = ActingTenancy(
        create_tenancy(settings.database.url, key_ring, time.time, secrets.token_bytes, heads)
    )
    gateway = create_gateway(settings, create_sources())
    await gateway.start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        running = RunningGateway(gateway, tenancy, session)
        try:
            await running.add_tenant()
            running.operator = (await tenancy.create_operator("tests")).value.reveal()
            if settings.nodes and is_awaited:
                await running.wait_until_ready()
            yield running
        finally:
            await session.close()
            await gateway.stop()
            await tenancy.close()
