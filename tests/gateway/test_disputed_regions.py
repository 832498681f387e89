"""A region of which two sources name different jurisdictions, as who is bound to one meets it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.batches import BatchItem
from contracts.errors import StreamBroken
from contracts.ids import ModelName, RegionId
from contracts.inference import Accepted, Delta
from contracts.region_rules import RegionRules
from tests.gateway.batch_client import ask_batch, hand_in, run_batch, wait_for_answers
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

HI = {"prompt": "Hi"}
EEUR = RegionId("eeur")


@dataclass
class Site:
    """A gateway in `weur`, and two nodes in `eeur`, of which one may change its mind."""

    gateway: RunningGateway
    steady: ScriptedNode
    fickle: ScriptedNode

    async def bind(self, **rules: tuple[str, ...]) -> Tenant:
        """A new account with these rules."""
        return await self.gateway.add_tenant(rules=RegionRules(**rules))  # type: ignore[arg-type]

    async def ask(self, tenant: Tenant, **headers: str) -> Reply:
        """One request of the account."""
        return await self.gateway.send(
            "POST",
            self.gateway.account_path(f"/ai/run/{MODEL}", tenant),
            to_bytes(HI),
            api_token=tenant.api_token,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    async def say(self, jurisdiction: str) -> None:
        """The fickle node names this law from now on."""
        self.fickle.jurisdiction = jurisdiction
        await self.fickle.send_report()
        laws = self.gateway.gateway._pool.fleet.roster.laws  # type: ignore[reportPrivateUsage]

        async def is_heard() -> bool:
            return (EEUR in laws.list_regions(["eu"])) is (jurisdiction == "eu")

        await wait_until_async(is_heard)

    @property
    def served(self) -> set[str]:
        """Accounts of which either node has had something."""
        streams = (*self.steady.streams, *self.fickle.streams)
        return {stream.grant.account_id for stream in streams}


@asynccontextmanager
async def open_site(
    folder: Path, database_template: Path, *others: ScriptedNode, **settings: Any
) -> AsyncGenerator[Site]:
    """A site whose nodes have reported and are of one mind."""
    async with (
        run_node("node-1", EEUR) as steady,
        run_node("node-2", EEUR) as fickle,
        run_gateway(
            folder,
            database_template,
            [steady, fickle, *others],
            **{"region": "weur"} | settings,
        ) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 2 + len(others)))
        yield Site(gateway, steady, fickle)


@pytest.fixture
async def site(tmp_path: Path, database_template: Path) -> AsyncGenerator[Site]:
    async with open_site(tmp_path, database_template, batches={"poll_s": 0.05}) as opened:
        yield opened


async def test_who_is_bound_to_one_of_the_laws_is_told_to_try_again(site: Site) -> None:
    eu, free = await site.bind(allowed_jurisdictions=("eu",)), site.gateway.tenant
    assert (await site.ask(eu)).status == 200
    await site.say("us")
    before = len(site.steady.streams) + len(site.fickle.streams)
    for tenant, headers in ((eu, {}), (free, {"x_hearth_jurisdictions": "eu"})):
        refused = await site.ask(tenant, **headers)
        assert refused.status == 429, refused.body
        assert b"whose law holds where this model is served (eeur)" in refused.body
    assert len(site.steady.streams) + len(site.fickle.streams) == before


@pytest.mark.parametrize("law", ["us", "eu"], ids=["disputed", "as it was"])
async def test_an_answer_under_way_goes_on_only_where_the_law_is_known_by_then(
    tmp_path: Path, database_template: Path, law: str
) -> None:
    is_said = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        if stream.request.resumption is not None:
            await go_on(stream)
            return
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (11, 12, 13)))
        await is_said.wait()
        await stream.fail(StreamBroken("The engine died."))

    routing = {"resume_patience_s": 0.3}
    async with open_site(tmp_path, database_template, routing=routing) as site:
        eu = await site.bind(allowed_jurisdictions=("eu",))
        site.steady.script = site.fickle.script = begin_and_fail
        running = asyncio.create_task(site.gateway.run(STREAM, tenant=eu))
        await wait_until(lambda: bool(site.served))
        await site.say(law)
        is_said.set()
        reply = await running
        num_streams = len(site.steady.streams) + len(site.fickle.streams)
        if law == "eu":
            assert (read_text(reply), num_streams) == ("Hallo", 2)
        else:
            assert (num_streams, b"[DONE]" in reply.body) == (1, False)


@pytest.mark.parametrize("law", ["us", "eu"], ids=["disputed", "as it was"])
async def test_who_waits_is_served_only_where_the_law_is_known_by_then(
    tmp_path: Path, database_template: Path, law: str
) -> None:
    async with open_site(tmp_path, database_template, queue={"max_wait_s": 2.0}) as site:
        eu = await site.bind(allowed_jurisdictions=("eu",))
        for node in (site.steady, site.fickle):
            node.num_waiting = 1000
            await node.send_report()
        running = asyncio.create_task(site.ask(eu))
        queue = site.gateway.gateway._pool.forwarding.queue  # type: ignore[reportPrivateUsage]
        await wait_until(lambda: queue.num_waiting == 1)
        await site.say(law)
        site.steady.num_waiting = 0
        await site.steady.send_report()
        reply = await running
        assert (reply.status, bool(site.served)) == ((200, True) if law == "eu" else (429, False))


async def test_items_wait_until_the_laws_are_one_again_and_others_go_on(site: Site) -> None:
    eu = await site.bind(allowed_jurisdictions=("eu",))
    await site.say("us")
    reply = await hand_in(site.gateway, HI, HI, tenant=eu)
    assert all(answer["success"] for answer in await run_batch(site.gateway, HI, HI))
    batch = {"request_id": reply.json["result"]["request_id"]}
    assert "status" in (await ask_batch(site.gateway, batch, tenant=eu)).json["result"]
    assert eu.account_id not in site.served
    await site.say("eu")
    done = await wait_for_answers(site.gateway, batch["request_id"], eu)
    assert [answer["success"] for answer in done["responses"]] == [True, True]


async def test_an_item_that_waits_in_vain_fails_when_it_is_due(
    tmp_path: Path, database_template: Path
) -> None:
    batches = {"poll_s": 0.05, "patience_s": 0.5}
    async with open_site(tmp_path, database_template, batches=batches) as site:
        eu = await site.bind(allowed_jurisdictions=("eu",))
        await site.say("us")
        (answer,) = await run_batch(site.gateway, HI, tenant=eu)
        assert answer["error"]["code"] == 3007
        assert eu.account_id not in site.served


async def test_an_item_that_no_law_that_is_named_there_lets_in_fails_at_once(site: Site) -> None:
    await site.say("us")
    for rules in ({"allowed_jurisdictions": ("ca",)}, {"allowed_regions": ("weur",)}):
        (answer,) = await run_batch(site.gateway, HI, tenant=await site.bind(**rules))
        assert answer["error"]["code"] == 7403
    both = await site.bind(allowed_jurisdictions=("eu", "us"))  # the control
    (answer,) = await run_batch(site.gateway, HI, tenant=both)
    assert answer["success"]


async def test_an_item_that_waits_for_a_law_is_tried_once_a_poll(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, batches={"poll_s": 60.0}) as site:
        service = site.gateway.gateway._batches._service  # type: ignore[reportPrivateUsage]
        answer, tried = service.answer, list[str]()

        async def count(context: Any, item: BatchItem, *args: Any, **options: Any) -> bytes:
            tried.append(item.account_id)
            return await answer(context, item, *args, **options)

        service.answer = count
        eu = await site.bind(allowed_jurisdictions=("eu",))
        await site.say("us")
        await hand_in(site.gateway, HI, tenant=eu)
        await wait_until(lambda: eu.account_id in tried)
        for _ in range(5):  # each wakes whoever looks for items
            await run_batch(site.gateway, HI)
        assert tried.count(eu.account_id) == 1


async def test_items_of_the_accounts_other_models_go_on(
    tmp_path: Path, database_template: Path
) -> None:
    other = ModelName("@hearth/tests/other")
    batches = {"poll_s": 0.05, "max_running": 2}
    async with run_node("node-3", "weur") as home:
        home.models = (other,)
        async with open_site(tmp_path, database_template, home, batches=batches) as site:
            eu = await site.bind(allowed_jurisdictions=("eu",))
            await site.say("us")
            reply = await hand_in(site.gateway, *[HI] * 8, tenant=eu)
            batch = {"request_id": reply.json["result"]["request_id"]}
            second = await hand_in(site.gateway, *[HI] * 8, tenant=eu, model=other)
            done = await wait_for_answers(
                site.gateway, second.json["result"]["request_id"], eu, other
            )
            assert all(answer["success"] for answer in done["responses"])
            assert "status" in (await ask_batch(site.gateway, batch, tenant=eu)).json["result"]
            assert len(home.streams) == 8
