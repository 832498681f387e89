"""Which processes the fleet has, what they are told, and whom they serve.

Two gateways of two workers each, four nodes in three regions, hot standby, PostgreSQL and Redis;
small: two gateways and two nodes. Two of the four nodes are enrolled and found by what they write
in Redis, the others are named in every gateway's settings. A worker is a process of its own with an
id, ports, a journal and keys of its own: no port is shared, clients choose among all four.

What is not as it is by default, and why: `routing.silence_s` is 3 instead of 10, so that a black
hole or a frozen process is noticed in the time that an event has here; `resume_patience_s` 60
instead of 10 and `retry_reserve` 4,096 instead of 256, since on two cores all streams of a node
wait longer for a place elsewhere, many at once, than they would on cards of their own: that every
answer ends is what is shown, not how soon. `membership.gone_after_s` is 4 instead of 30, so that a
black hole outlasts it.

Owns settings, keys and accounts. Read next: `benchmarks.fleet.members`, `benchmarks.fleet.proof`.
"""

import itertools
import json
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import msgspec

from benchmarks.fleet.members import (
    describe_to_gateway,
    describe_to_node,
    enrol_members,
    name_key,
)
from benchmarks.fleet.processes import Member, is_healthy, wait_until
from benchmarks.fleet.sites import HUB, STORE, Sites
from benchmarks.fleet.stores import create_postgres, create_redis
from contracts.ids import RegionId
from contracts.region_rules import RegionRules
from gpu_pool.model_store import BUNDLED_NAME, BUNDLED_PATH
from migrations.upgrade import upgrade_database_async
from tenancy.actors import Actor, ActorKind
from tenancy.audit.heads import HeadFile
from tenancy.directory import SqlTenancy, create_tenancy
from tenancy.encryption.key_ring_file import create_key_ring_file
from tenancy.permissions import Permission

REGIONS = {"weur": "eu", "enam": "us", "apac": "jp"}
LATENCIES_MS = {("weur", "enam"): 20, ("weur", "apac"): 40, ("enam", "apac"): 30}
NODES = {"weur-1": "weur", "weur-2": "weur", "enam-1": "enam", "apac-1": "apac"}
GATEWAYS = {"gw-1a": "weur", "gw-1b": "weur", "gw-2a": "enam", "gw-2b": "enam"}
MEMBERS = frozenset({"weur-1", "apac-1"})
"""Enrolled ones: one that is killed, and one that a black hole surrounds."""
SMALL_NODES = {"weur-1": "weur", "weur-2": "weur"}
SMALL_GATEWAYS = {"gw-1a": "weur", "gw-2a": "enam"}
RULES = (
    RegionRules(),
    RegionRules(allowed_regions=(RegionId("weur"),)),
    RegionRules(allowed_jurisdictions=("us", "jp"), preferred_regions=(RegionId("apac"),)),
)
"""Of the accounts; each leaves two nodes, so that one may be away."""


@dataclass(frozen=True)
class Shape:
    """How large a fleet is and what its nodes have."""

    nodes: Mapping[str, str]
    """Regions by name, as for the gateways."""
    gateways: Mapping[str, str]
    num_tenants: int
    has_standby: bool = True
    models: tuple[str, ...] = (BUNDLED_NAME,)
    """Their names; all of them are one and the same."""
    folder: Path = BUNDLED_PATH
    """What is served under these names."""
    dtype: str = "float32"
    placement: Mapping[str, int] | None = None
    """The memory that a node's models share; None: all of them stay."""
    kv_bytes: int = 256 << 20
    """Of each model."""
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of nodes that are there for prompts or answers alone; blocks move between them by TCP."""
    engine: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Settings of nodes by their names, besides those that all have here."""
    has_metrics: bool = False
    """True: each node answers `/metrics` on a port of its own."""
    members: Set[str] = frozenset()
    """Nodes that are in no gateway's settings: they are enrolled, and say that they are there."""


WHOLE = Shape(NODES, GATEWAYS, 3, members=MEMBERS)
SMALL = Shape(SMALL_NODES, SMALL_GATEWAYS, 2, has_standby=False)
SPLIT_KV_BYTES = 96 << 20
"""For the streams under way and few prefixes besides, so that most prompts are computed."""
SPLIT_ROLES = {"weur-1": "decode", "weur-2": "prefill", "enam-1": "decode", "apac-1": "prefill"}
"""So that each account's regions have one of each, one pair at one site and one between two."""
SPLIT = Shape(
    NODES, SMALL_GATEWAYS, 3, has_standby=False, roles=SPLIT_ROLES, kv_bytes=SPLIT_KV_BYTES
)
NOTICE_S, GRACE_S, SILENCE_S = 2.0, 60, 3.0
_HAND_OVERS = re.compile(r'^hearth_gateway_hand_overs_total\{outcome="(\w+)"\} (\S+)', re.MULTILINE)
_MEMBERS = re.compile(r"^hearth_gateway_members (\S+)", re.MULTILINE)
_ROUTING = {"silence_s": SILENCE_S, "resume_patience_s": 60.0, "retry_reserve": 4096}


@dataclass(frozen=True)
class Tenant:
    """An account with one API token, and where its requests may go."""

    account_id: str
    api_token: str
    regions: frozenset[str]


@dataclass
class Fleet:
    """Everything that runs, and what is needed to use it."""

    sites: Sites
    session: aiohttp.ClientSession
    roles: Mapping[str, str]
    """Those of the shape."""
    enrolled: Set[str] = frozenset()
    """Nodes that have come by themselves."""
    database: str = ""
    """Where PostgreSQL is."""
    members: dict[str, Member] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    """Of the gateways' ports for tenants."""
    metrics_urls: dict[str, str] = field(default_factory=dict)
    """Of the nodes that have such a port."""
    admin_urls: dict[str, str] = field(default_factory=dict)
    tenants: list[Tenant] = field(default_factory=list)
    operator: str = ""
    tenancy: SqlTenancy | None = None

    @property
    def gateways(self) -> list[str]:
        """Their names."""
        return list(self.urls)

    @property
    def nodes(self) -> list[str]:
        """Their names."""
        return [name for name in self.members if name in NODES]

    async def call(
        self, gateway: str, method: str, path: str, body: object = None, query: str = ""
    ) -> Any:
        """What a gateway's operators' port answers."""
        async with self.session.request(
            method,
            self.admin_urls[gateway] + path + query,
            json=body,
            headers={"authorization": f"Bearer {self.operator}"},
        ) as response:
            answer = await response.json()
            if response.status != 200:
                raise RuntimeError(f"{method} {path}: {answer}")
            return answer["result"]

    async def count_hand_overs(self) -> Counter[str]:
        """How the hand-overs of all gateways have ended so far."""
        counts: Counter[str] = Counter()
        for gateway in self.gateways:
            found = _HAND_OVERS.findall(await self._read_metrics(gateway))
            counts.update({outcome: int(float(value)) for outcome, value in found})
        return counts

    async def count_members(self) -> dict[str, int]:
        """How many nodes each gateway has by enrolment and heartbeat."""
        counts: dict[str, int] = {}
        for gateway in self.gateways:
            found = _MEMBERS.findall(await self._read_metrics(gateway))
            counts[gateway] = sum(int(float(value)) for value in found)
        return counts

    async def _read_metrics(self, gateway: str) -> str:
        headers = {"authorization": f"Bearer {self.operator}"}
        url = f"{self.admin_urls[gateway]}/metrics"
        async with self.session.get(url, headers=headers) as response:
            return await response.text()

    async def wait_database(self) -> None:
        """Returns once PostgreSQL takes connections."""

        async def answers() -> bool:
            try:
                connection: Any = await asyncpg.connect(self.database, timeout=5)
            except (OSError, asyncpg.PostgresError):
                return False
            await connection.close()
            return True

        await wait_until(answers, "PostgreSQL")

    async def is_serving(self, gateway: str, node: str) -> bool:
        """True when `gateway` has the node as one that serves."""
        if not await is_healthy(self.session, self.members[gateway].health_url):
            return False
        for state in await self.call(gateway, "GET", "/operator/v1/nodes"):
            if state["node_id"] == node:
                loads = state["loads"]
                return bool(state["is_connected"] and any(load["is_ready"] for load in loads))
        return False

    async def wait_serving(self) -> None:
        """Returns once every gateway has every node."""
        for gateway, node in itertools.product(self.gateways, self.nodes):

            async def is_so(gateway: str = gateway, node: str = node) -> bool:
                return await self.is_serving(gateway, node)

            await wait_until(is_so, f"{gateway} to have {node}")


@asynccontextmanager
async def run_fleet(folder: Path, sites: Sites, shape: Shape) -> AsyncGenerator[Fleet]:
    """The whole fleet, ready to serve; killed after the block."""
    nodes, gateways = shape.nodes, shape.gateways
    ports = itertools.count(18_000 + secrets.randbelow(200) * 50)
    hub = sites.find_address(HUB)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        fleet = Fleet(sites, session, shape.roles, shape.members)
        database_port, redis_port = next(ports), next(ports)
        fleet.members["postgres"] = create_postgres(folder, hub, database_port)
        fleet.members["redis"] = create_redis(folder, sites, redis_port)
        fleet.database = f"postgresql://hearth@{hub}:{database_port}/postgres"
        stores = fleet.database, f"redis://{sites.find_address(STORE)}:{redis_port}/0"
        try:
            for store in ("postgres", "redis"):
                fleet.members[store].start()
            fleet.tenancy = await _prepare_tenancy(fleet, folder, shape.num_tenants)
            node_ports = {name: next(ports) for name in nodes}
            for name, site in nodes.items():
                port = node_ports[name]
                address = sites.find_address(site)
                metrics_port = next(ports) if shape.has_metrics else None
                if metrics_port is not None:
                    fleet.metrics_urls[name] = f"http://{address}:{metrics_port}/metrics"
                listen = address, port, metrics_port
                file = _write_node(folder, name, stores[1], listen, shape)
                url = f"http://{address}:{port}/health/ready"
                _add(fleet, folder, name, site, ["node", "--config", str(file)], url)
            named = [
                _describe_node(name, f"ws://{sites.find_address(site)}:{node_ports[name]}")
                for name, site in nodes.items()
                if name not in shape.members
            ]
            for name, site in gateways.items():
                port, admin_port = next(ports), next(ports)
                address = sites.find_address(site)
                listen = {"host": address, "port": port}, {"host": address, "port": admin_port}
                file = _write_gateway(folder, name, listen, stores, shape, named)
                fleet.urls[name] = f"http://{address}:{port}"
                fleet.admin_urls[name] = f"http://{address}:{admin_port}"
                url = f"{fleet.admin_urls[name]}/health/ready"
                _add(fleet, folder, name, site, ["gateway", "--config", str(file)], url)
            if shape.has_standby:
                _add_standby(fleet, folder)
            enrolled = {name: nodes[name] for name in nodes if name in shape.members}
            await enrol_members(folder, enrolled, gateways)
            for member in list(fleet.members.values())[2:]:
                member.start()
            for name in (*nodes, *gateways):
                await fleet.members[name].wait_ready(session)
            await fleet.wait_serving()
            yield fleet
        finally:
            for member in reversed(fleet.members.values()):
                await member.kill()
            if fleet.tenancy is not None:
                await fleet.tenancy.close()


def _add(
    fleet: Fleet, folder: Path, name: str, site: str, words: list[str], health_url: str
) -> None:
    """One of our own programs."""
    command = fleet.sites.enter(site, [sys.executable, "-m", "cli", *words])
    environ = {"OMP_NUM_THREADS": "1", "UCX_TLS": "tcp"}
    fleet.members[name] = Member(name, site, command, folder / f"{name}.log", health_url, environ)


def _add_standby(fleet: Fleet, folder: Path) -> None:
    """Hot standby, which asks one worker of each gateway."""
    asked = [fleet.admin_urls[name] for name in ("gw-1a", "gw-2a")]
    _write_secret(folder / "standby.token", fleet.operator)
    lines = [f'state_file = "{folder / "standby.json"}"']
    lines += [f'[[gateways]]\nurl = "{url}"' for url in asked]
    (folder / "standby.toml").write_text("\n".join(lines))
    words = ["standby", "--config", str(folder / "standby.toml")]
    _add(fleet, folder, "standby", HUB, words, "")
    fleet.members["standby"].environ["HEARTH_STANDBY__OPERATOR_TOKEN_FILE"] = str(
        folder / "standby.token"
    )


async def _prepare_tenancy(fleet: Fleet, folder: Path, num_tenants: int) -> SqlTenancy:
    """Schema, key ring, an operator and the accounts."""
    await fleet.wait_database()
    await upgrade_database_async(fleet.database)
    ring = create_key_ring_file(folder / "key_ring.json", secrets.token_bytes)
    heads = HeadFile(folder / "heads.jsonl")
    tenancy = create_tenancy(fleet.database, ring, time.time, secrets.token_bytes, heads)
    acting = tenancy.act_as(Actor(ActorKind.COMMAND_LINE, "fleet"))
    fleet.operator = (await acting.create_operator("fleet")).value.reveal()
    for rules in RULES[:num_tenants]:
        account = await acting.create_account("fleet", **msgspec.structs.asdict(rules))
        rights = frozenset({Permission.WORKERS_AI_READ})
        issued = await acting.create_api_token(account.account_id, "fleet", rights)
        regions = frozenset(
            region
            for region, law in REGIONS.items()
            if region in (rules.allowed_regions or REGIONS)
            and law in (rules.allowed_jurisdictions or REGIONS.values())
        )
        fleet.tenants.append(Tenant(account.account_id, issued.value.reveal(), regions))
    return tenancy


def _write_node(
    folder: Path, name: str, store_url: str, listen: tuple[str, int, int | None], shape: Shape
) -> Path:
    """Settings and pair keys of a node; one that is enrolled gets its keys by that. `listen`:
    address, port and the one for metrics.
    """
    address, port, metrics_port = listen
    region, is_member = shape.nodes[name], name in shape.members
    keys: list[dict[str, str]] = []
    for gateway in shape.gateways:
        file = name_key(folder, gateway, name)
        if not is_member:
            _write_secret(file, secrets.token_hex(32))
        keys.append({"gateway_id": gateway, "key_file": str(file)})
    model = {"path": str(shape.folder), "dtype": shape.dtype}
    table: dict[str, Any] = {
        "node_id": name,
        "region": region,
        "jurisdiction": REGIONS[region],
        "drain_s": 5.0,
        "log": {"level": "debug"},
        "listen": {"host": address, "port": port},
        "engine": {"num_threads": 1, "kv_bytes": shape.kv_bytes, **shape.engine.get(name, {})},
        "gateways": keys,
        "models": [model | {"name": one} for one in shape.models],
    }
    if is_member:
        table["membership"] = describe_to_node(address, port, store_url)
    if shape.roles:
        table["role"] = shape.roles[name]
        table["transfer"] = {"engine": "nixl"}
        table["engine"]["swap_bytes"] = shape.kv_bytes
    if shape.placement is not None:
        table["placement"] = dict(shape.placement)
    if metrics_port is not None:
        table["metrics"] = {"host": address, "port": metrics_port}
    return _write_toml(folder / f"{name}.toml", table)


def _write_gateway(
    folder: Path,
    name: str,
    listen: tuple[dict[str, Any], dict[str, Any]],
    stores: tuple[str, str],
    shape: Shape,
    named: list[dict[str, Any]],
) -> Path:
    """Settings of one worker of a gateway, with a journal of its own, and the `named` nodes."""
    region = shape.gateways[name]
    keys = {node["node_id"]: str(name_key(folder, name, node["node_id"])) for node in named}
    regions = [
        {"name": other, "jurisdiction": law, "latency_ms": _find_latency(region, other)}
        for other, law in REGIONS.items()
    ]
    table: dict[str, Any] = {
        "gateway_id": name,
        "region": region,
        "listen": listen[0],
        "admin": listen[1],
        "database": {"url": stores[0]},
        "key_ring": {"file": str(folder / "key_ring.json")},
        "audit": {"heads_file": str(folder / f"{name}.heads.jsonl")},
        "journal": {"folder": str(folder / f"{name}.journal")},
        "limits": {"shutdown_notice_s": NOTICE_S, "shutdown_grace_s": GRACE_S},
        "shared_limits": {"url": stores[1], "lease_s": 5.0, "num_gateways": 4},
        "routing": _ROUTING,
        "routing.regions": regions,
        "nodes": [node | {"key_file": keys[node["node_id"]]} for node in named],
    }
    if shape.members:
        table["membership"] = describe_to_gateway(folder, name, stores[1])
    return _write_toml(folder / f"{name}.toml", table)


def _describe_node(name: str, url: str) -> dict[str, Any]:
    """A node in a gateway's settings, but for the key."""
    return {"node_id": name, "region": NODES[name], "url": url, "allow_plaintext": True}


def _find_latency(region: str, other: str) -> float:
    """There and back, in ms."""
    return LATENCIES_MS.get((region, other), LATENCIES_MS.get((other, region), 0))


def _write_secret(file: Path, text: str) -> Path:
    """A file for its owner alone."""
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def _write_toml(file: Path, table: dict[str, Any]) -> Path:
    """Plain values, then sections, then lists of sections: what settings files are made of."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if _is_plain(value)]
    for name, value in table.items():
        sections = [value] if isinstance(value, dict) else value if not _is_plain(value) else []
        head = f"[{name}]" if isinstance(value, dict) else f"[[{name}]]"
        for section in sections:
            lines += [head, *(f"{key} = {json.dumps(each)}" for key, each in section.items())]
    file.write_text("\n".join(lines) + "\n")
    return file


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list)
