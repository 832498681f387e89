"""Rules on jurisdictions and preferred regions, from a request's first byte to the node."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import StreamBroken
from contracts.ids import RegionId
from contracts.inference import Accepted, Delta
from contracts.region_rules import RegionRules
from tenancy.changes import AccountChange
from tests.gateway.batch_client import run_batch
from tests.gateway.cloudflare_client import ALL
from tests.gateway.finetune_client import CONFIG_FILE, ask, create, upload
from tests.gateway.finetunes.adapter_files import format_config
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import STREAM, are_known, go_on, read_text

WEUR, EEUR, ENAM = (RegionId(name) for name in ("weur", "eeur", "enam"))
HI = {"prompt": "Hi"}
REGIONS = [
    {"name": "weur", "jurisdiction": "eu", "latency_ms": 0, "entry": "https://weur.example"},
    {"name": "enam", "jurisdiction": "us", "latency_ms": 80, "entry": "https://enam.example"},
]
"""The catalogue; what law holds in `eeur` is the node's word."""


@dataclass
class Site:
    """A gateway in `weur` and a node in each region."""

    gateway: RunningGateway
    home: ScriptedNode
    near: ScriptedNode
    abroad: ScriptedNode

    async def bind(self, **rules: Any) -> Tenant:
        """A new account with these rules."""
        return await self.gateway.add_tenant(rules=RegionRules(**rules))

    async def ask(self, tenant: Tenant, **headers: str) -> Reply:
        """One request of the account."""
        return await self.gateway.send(
            "POST",
            self.gateway.account_path(f"/ai/run/{MODEL}", tenant),
            to_bytes(HI),
            api_token=tenant.api_token,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    async def find(self, tenant: Tenant, **headers: str) -> str:
        """Where the account is served."""
        reply = await self.ask(tenant, **headers)
        assert reply.status == 200, reply.body
        return reply.headers["x-hearth-region"]


@asynccontextmanager
async def open_site(folder: Path, database_template: Path, **routing: Any) -> AsyncGenerator[Site]:
    """A site whose nodes have all reported."""
    routing = {"regions": REGIONS} | routing
    async with (
        run_node("node-1", "weur") as home,
        run_node("node-2", "eeur") as near,
        run_node("node-3", "enam", "us") as abroad,
    ):
        nodes = [home, near, abroad]
        async with run_gateway(
            folder, database_template, nodes, routing=routing, region="weur"
        ) as gateway:
            await wait_until_async(lambda: are_known(gateway, 3))
            yield Site(gateway, home, near, abroad)


@pytest.fixture
async def site(tmp_path: Path, database_template: Path) -> AsyncGenerator[Site]:
    async with open_site(tmp_path, database_template) as opened:
        yield opened


async def fill(node: ScriptedNode, num_waiting: int = 1000) -> None:
    """The node says that it has no room, or has some again."""
    node.num_waiting = num_waiting
    await node.send_report()
    await asyncio.sleep(0.1)


async def test_an_account_is_computed_only_where_its_law_holds(site: Site) -> None:
    eu, us = (
        await site.bind(allowed_jurisdictions=("eu",)),
        await site.bind(allowed_jurisdictions=("us",)),
    )
    for _ in range(5):
        assert await site.find(eu) in (WEUR, EEUR)
        assert await site.find(us) == ENAM
    assert {stream.grant.regions for stream in site.abroad.streams} == {(ENAM,)}
    nobody = await site.ask(await site.bind(allowed_jurisdictions=()))
    assert (nobody.status, nobody.code) == (403, 7403)
    both = await site.bind(allowed_jurisdictions=("eu",), allowed_regions=(ENAM, EEUR))
    assert {await site.find(both) for _ in range(3)} == {EEUR}
    assert await site.find(site.gateway.tenant, x_hearth_regions="enam") == ENAM  # the control


async def test_headers_narrow_what_rules_allow_and_never_widen_it(site: Site) -> None:
    eu = await site.bind(allowed_jurisdictions=("eu",))
    assert await site.find(eu, x_hearth_regions="eeur,enam") == EEUR
    for headers in ({"x_hearth_jurisdictions": "us"}, {"x_hearth_regions": "enam"}):
        refused = await site.ask(eu, **headers)
        assert (refused.status, refused.code) == (403, 7403)
    assert site.abroad.streams == []


async def test_a_refusal_names_the_header_and_what_the_account_may_use(site: Site) -> None:
    free, eu = site.gateway.tenant, await site.bind(allowed_jurisdictions=("eu",))
    for tenant, usable in ((free, "eeur (eu), enam (us), weur (eu)"), (eu, "eeur (eu), weur (eu)")):
        refused = await site.ask(tenant, x_hearth_regions="WEUR,moon")
        assert (refused.status, refused.code) == (403, 7403)
        said = "`x-hearth-regions: WEUR,moon` leaves no region to this request. "
        assert f"{said}The account may use {usable}." in refused.body.decode()
    nobody = await site.ask(await site.bind(allowed_regions=()))
    assert b"The account's data-residency rules allow no region" in nobody.body


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"x_hearth_regions": "weur;enam"}, "`weur;enam` is not a region's name"),
        ({"x_hearth_regions": ""}, "There is no name in the list"),
        ({"x_hearth_jurisdictions": "EU"}, "`EU` names no jurisdiction: it takes up to 63 lower"),
    ],
)
async def test_a_malformed_header_is_refused_with_its_form_and_opens_nothing(
    site: Site, headers: dict[str, str], said: str
) -> None:
    for tenant in (site.gateway.tenant, await site.bind(allowed_regions=(WEUR,))):
        refused = await site.ask(tenant, **headers)
        assert (refused.status, refused.code) == (400, 5006)
        assert said in refused.body.decode()
    for node in (site.home, site.near, site.abroad):
        assert node.streams == []
    assert await site.find(site.gateway.tenant) == WEUR  # the control


@pytest.mark.parametrize("word", ["any", "none"])
async def test_no_account_is_bound_to_a_word_for_all_places_or_none(site: Site, word: str) -> None:
    async def create(**rules: Any) -> Reply:
        return await site.gateway.send(
            "POST",
            "/operator/v1/accounts",
            to_bytes({"name": "a", **rules}),
            api_token=site.gateway.operator,
            origin=site.gateway.admin,
        )

    for name in ("allowed_regions", "allowed_jurisdictions", "preferred_regions"):
        refused = await create(**{name: [word]})
        assert refused.status == 400
        assert f"No place is called `{word}`, which `{name}` names".encode() in refused.body
    assert (await create(allowed_regions=None)).status == 200  # the control


async def test_a_region_of_which_a_node_says_otherwise_gets_nothing_more(site: Site) -> None:
    eu = await site.bind(allowed_jurisdictions=("eu",), preferred_regions=(EEUR,))
    assert await site.find(eu) == EEUR
    site.near.jurisdiction = "us"
    await site.near.send_report()
    await wait_until_async(lambda: is_found(site, eu, WEUR))
    site.near.jurisdiction = "eu"
    await site.near.send_report()
    await wait_until_async(lambda: is_found(site, eu, EEUR))


async def is_found(site: Site, tenant: Tenant, region: RegionId) -> bool:
    """The account is served there by now."""
    return await site.find(tenant) == region


async def test_what_is_preferred_computes_until_it_is_full(site: Site) -> None:
    rules = {"preferred_regions": (ENAM,), "preferred_jurisdictions": ("eu",)}
    picky = await site.bind(**rules)
    assert {await site.find(picky) for _ in range(5)} == {ENAM}
    assert await site.find(site.gateway.tenant) == WEUR  # the control: nobody else is moved
    await fill(site.abroad)
    reply = await site.ask(picky, x_hearth_explain="1")
    assert reply.headers["x-hearth-region"] in (WEUR, EEUR)
    assert "spilled=1" in reply.headers["x-hearth-explain"]
    await fill(site.abroad, 0)
    reply = await site.ask(picky, x_hearth_explain="1")
    assert reply.headers["x-hearth-region"] == ENAM
    assert "spilled" not in reply.headers["x-hearth-explain"]
    bound = await site.bind(allowed_jurisdictions=("eu",), **rules)
    assert await site.find(bound) in (WEUR, EEUR)


async def test_batches_follow_the_rules(site: Site) -> None:
    us = await site.bind(allowed_jurisdictions=("us",))
    picky = await site.bind(preferred_regions=(EEUR,))
    await run_batch(site.gateway, HI, HI, tenant=us)
    await run_batch(site.gateway, HI, HI, tenant=picky)
    served = {
        node.region: {stream.grant.account_id for stream in node.streams}
        for node in (site.home, site.near, site.abroad)
    }
    assert served == {WEUR: set(), EEUR: {picky.account_id}, ENAM: {us.account_id}}


@pytest.mark.parametrize("is_narrowed", [False, True])
async def test_an_answer_goes_on_where_the_law_holds_by_then(site: Site, is_narrowed: bool) -> None:
    is_changed = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (11, 12, 13)))
        await is_changed.wait()
        await stream.fail(StreamBroken("The engine died."))

    us = await site.bind(allowed_regions=(ENAM, EEUR), preferred_regions=(ENAM,))
    site.abroad.script = begin_and_fail
    site.near.script = go_on
    running = asyncio.create_task(site.gateway.run(STREAM, tenant=us))
    await wait_until(lambda: bool(site.abroad.streams))
    cache = site.gateway.gateway._cache  # type: ignore[reportPrivateUsage]
    before = cache.generation
    change = AccountChange(allowed_jurisdictions=("us",) if is_narrowed else ("us", "eu"))
    await site.gateway.tenancy.change_account(us.account_id, change)
    await wait_until(lambda: cache.generation != before)
    is_changed.set()
    reply = await running
    assert site.home.streams == []
    if is_narrowed:
        assert site.near.streams == []
        assert b"[DONE]" not in reply.body
    else:
        assert read_text(reply) == "Hallo"


@pytest.mark.parametrize("law", ["eu", "us"])
async def test_who_has_waited_goes_nowhere_where_another_law_holds_by_then(
    site: Site, law: str
) -> None:
    forwarding = site.gateway.gateway._pool.forwarding  # type: ignore[reportPrivateUsage]
    standing = forwarding.forwarder._parts.standing  # type: ignore[reportPrivateUsage]
    find = standing.find

    async def find_late(*known: Any) -> Any:
        """The store takes a while, in which the node says whose law holds there."""
        site.near.jurisdiction = law
        await site.near.send_report()
        await asyncio.sleep(0.1)
        return await find(*known)

    standing.find = find_late  # type: ignore[method-assign]
    await fill(site.near)
    headers = {"x_hearth_jurisdictions": "eu", "x_hearth_regions": "eeur"}
    running = asyncio.create_task(site.ask(site.gateway.tenant, **headers))
    await wait_until(lambda: forwarding.queue.num_waiting == 1)
    cache = site.gateway.gateway._cache  # type: ignore[reportPrivateUsage]
    before = cache.generation
    await site.gateway.tenancy.change_account(
        site.gateway.tenant.account_id, AccountChange(name="another")
    )
    await wait_until(lambda: cache.generation != before)
    await fill(site.near, 0)
    reply = await running
    assert (reply.status, len(site.near.streams)) == ((200, 1) if law == "eu" else (403, 0))


async def test_whose_law_does_not_hold_here_may_not_even_enter(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, strict_entry=True) as site:
        us = await site.bind(allowed_jurisdictions=("us",))
        refused = await site.ask(us)
        assert (refused.status, refused.code) == (403, 7403)
        assert b"Send them to https://enam.example." in refused.body
        assert await site.find(await site.bind(allowed_jurisdictions=("eu",))) in (WEUR, EEUR)
        assert await site.find(await site.bind(preferred_regions=(ENAM,))) == ENAM
        assert us.account_id not in {stream.grant.account_id for stream in site.abroad.streams}


@pytest.mark.parametrize(("is_strict", "law"), [(True, "us"), (True, "eu"), (False, "us")])
async def test_nor_may_its_adapters(
    tmp_path: Path, database_template: Path, is_strict: bool, law: str
) -> None:
    is_kept_out = is_strict and law == "us"
    async with open_site(tmp_path, database_template, strict_entry=is_strict) as site:
        site.home.max_adapter_rank = 16
        await site.home.send_report()
        rules = RegionRules(allowed_jurisdictions=("us", "eu"))
        tenant = await site.gateway.add_tenant(rules=rules, permissions=ALL)
        made = await create(site.gateway, tenant)
        bound = AccountChange(allowed_jurisdictions=(law,))
        await site.gateway.tenancy.change_account(tenant.account_id, bound)

        async def is_known() -> bool:
            return (await site.ask(tenant)).status == (403 if is_kept_out else 200)

        await wait_until_async(is_known)
        uploaded = await upload(site.gateway, tenant, made["id"], CONFIG_FILE, format_config())
        again = await ask(site.gateway, tenant, "POST", "", {"model": MODEL, "name": "other"})
        assert {uploaded.status, again.status} == {403 if is_kept_out else 200}
        assert (b"https://enam.example." in uploaded.body) is is_kept_out
