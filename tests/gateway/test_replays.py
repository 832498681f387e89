"""Answers that are given again by their key, and what regions their request and account allow."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import AccountSuspended, InvalidRequest, NoEndpoint, ResidencyViolation
from contracts.ids import NodeId, RegionId
from contracts.region_rules import RegionRules
from gateway.replays import Replays, describe_narrowing
from gateway.routing.law_table import LawTable
from gateway.routing.regions import Region, RegionCatalogue
from tenancy.changes import AccountChange
from tests.gateway.batch_client import hand_in
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    run_gateway,
    to_bytes,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import are_known
from tests.gateway.test_narrowed_accounts import change

WEUR, ENAM = RegionId("weur"), RegionId("enam")
HI = {"prompt": "Hi"}


@dataclass
class Site:
    """A gateway before a node at home, which is nearer, and one abroad."""

    gateway: RunningGateway
    home: ScriptedNode
    abroad: ScriptedNode

    async def ask(self, **headers: str) -> Reply:
        """The same request with the same key."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        path = self.gateway.account_path(f"/ai/run/{MODEL}")
        key = {"idempotency-key": "k"}
        return await self.gateway.send("POST", path, to_bytes(HI), headers=key | named)

    @property
    def num_run(self) -> int:
        """Requests that nodes have got."""
        return len(self.home.streams) + len(self.abroad.streams)


@asynccontextmanager
async def open_site(folder: Path, template: Path) -> AsyncGenerator[Site]:
    """Both nodes are known."""
    async with (
        run_node("node-1", WEUR, "eu") as home,
        run_node("node-2", ENAM, "us") as abroad,
        run_gateway(folder, template, [home, abroad]) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 2))
        yield Site(gateway, home, abroad)


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"x_hearth_regions": "weur"},
        {"x_hearth_regions": "nowhere"},
        {"x_hearth_regions": "enam,weur", "x_hearth_jurisdictions": "us"},
    ],
    ids=["none", "another", "nowhere", "a law beside"],
)
async def test_a_key_that_comes_with_other_regions_comes_with_another_request(
    tmp_path: Path, database_template: Path, others: dict[str, str]
) -> None:
    async with open_site(tmp_path, database_template) as site:
        first = await site.ask(x_hearth_regions="enam,weur")
        again = await site.ask(x_hearth_regions=" weur, enam", x_hearth_explain="1")
        assert (first.status, again.status) == (200, 200)
        assert again.body == first.body  # the control: the same, in other words
        assert again.headers["idempotent-replayed"] == "true"
        assert first.headers["x-hearth-region"] == again.headers["x-hearth-region"] == WEUR
        refused = await site.ask(**others)
        assert (refused.status, refused.code) == (400, 5006)
        assert b"another request" in refused.body
        assert b"Hello" not in refused.body
        assert site.num_run == 1


@pytest.mark.parametrize(
    ("what", "is_allowed"),
    [
        (AccountChange(name="another"), True),
        (AccountChange(allowed_regions=(ENAM,)), True),
        (AccountChange(allowed_regions=(WEUR,)), False),
        (AccountChange(allowed_jurisdictions=("us",)), True),
        (AccountChange(allowed_jurisdictions=("eu",)), False),
    ],
    ids=["the same", "there", "elsewhere", "under its law", "under another law"],
)
async def test_an_answer_is_given_again_only_where_the_rules_allow_by_now_where_it_comes_from(
    tmp_path: Path, database_template: Path, what: AccountChange, is_allowed: bool
) -> None:
    async with open_site(tmp_path, database_template) as site:
        there = {"x_hearth_regions": "enam"}
        first = await site.ask(**there)
        await change(site.gateway, site.gateway.tenant, what)
        for _ in range(2):  # and the key is not free either
            again = await site.ask(**there)
            if is_allowed:
                assert again.body == first.body
                assert again.headers["x-hearth-region"] == ENAM
            else:
                assert (again.status, again.code) == (403, 7403)
                assert b"Hello" not in again.body
        assert site.num_run == 1


@pytest.mark.parametrize("is_narrowed", [True, False])
async def test_who_has_waited_for_the_answer_gets_it_only_where_the_rules_allow_it_by_then(
    tmp_path: Path, database_template: Path, is_narrowed: bool
) -> None:
    may_answer = asyncio.Event()

    async def wait(stream: ScriptedStream) -> None:
        await may_answer.wait()
        await stream.answer("Hello")

    async with open_site(tmp_path, database_template) as site:
        site.abroad.script = wait
        there = {"x_hearth_regions": "enam"}
        asking = [asyncio.create_task(site.ask(**there)) for _ in range(2)]
        requests = site.gateway.gateway._batches._requests  # type: ignore[reportPrivateUsage]
        await wait_until(lambda: bool(site.abroad.streams) and requests.num_open == 2)
        rules = AccountChange(allowed_regions=(WEUR if is_narrowed else ENAM,))
        await change(site.gateway, site.gateway.tenant, rules)
        may_answer.set()
        first, second = await asyncio.gather(*asking)
        assert {first.status, second.status} == ({200, 403} if is_narrowed else {200})
        assert site.num_run == 1


async def test_a_batch_that_is_sent_again_with_other_regions_is_another_request(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template) as site:
        key = {"idempotency-key": "k", "x-hearth-regions": "weur"}
        first = await hand_in(site.gateway, HI, headers=key)
        again = await hand_in(site.gateway, HI, headers=key)
        assert first.json == again.json
        assert "x-hearth-region" not in again.headers  # nothing has been computed for it
        refused = await hand_in(site.gateway, HI, headers=key | {"x-hearth-regions": "enam"})
        assert refused.status == 400


class Known:
    """Stands for what the store says of an account."""

    def __init__(self, rules: RegionRules) -> None:
        self.rules = rules
        self.error: Exception | None = None

    async def find(self, principal: Any, generation: int) -> Any:
        if self.error is not None:
            raise self.error
        return replace(principal, region_rules=self.rules)


@dataclass(frozen=True)
class Someone:
    """A principal, as far as it is looked at."""

    region_rules: RegionRules


@dataclass(frozen=True)
class Context:
    """A request's, as far as it is looked at."""

    principal: Someone
    generation: int = 0


async def test_while_it_is_not_settled_whose_law_holds_there_the_client_is_told_to_try_again() -> (
    None
):
    laws = LawTable(RegionCatalogue(WEUR, {WEUR: Region("eu", 0.0)}))
    known = Known(RegionRules(allowed_jurisdictions=("us",)))
    context = Context(Someone(RegionRules()))
    replays = Replays(laws, known)  # type: ignore[arg-type]
    laws.note(NodeId("a"), ENAM, "us")
    await replays.require(context, (ENAM,))  # type: ignore[arg-type]
    laws.note(NodeId("b"), ENAM, "eu")
    with pytest.raises(NoEndpoint):
        await replays.require(context, (ENAM,))  # type: ignore[arg-type]
    for region in (WEUR, RegionId("gone")):
        with pytest.raises(ResidencyViolation):
            await replays.require(context, (region,))  # type: ignore[arg-type]
    known.error = AccountSuspended("This account is suspended.")
    with pytest.raises(AccountSuspended):
        await replays.require(context, (ENAM,))  # type: ignore[arg-type]


def test_what_headers_allow_is_one_thing_however_it_is_written() -> None:
    regions, laws = b"x-hearth-regions", b"x-hearth-jurisdictions"
    same = [[(regions, b"a,b")], [(regions, b" b ,a,, a"), (b"x-hearth-explain", b"1")]]
    assert len({describe_narrowing(headers) for headers in same}) == 1
    others: list[list[tuple[bytes, bytes]]] = [
        [],
        [(regions, b"a,b")],
        [(laws, b"a,b")],
        [(regions, b"a"), (laws, b"b")],
    ]
    assert len({describe_narrowing(headers) for headers in others}) == len(others)
    for malformed in [(regions, b"")], [(laws, b"")], [(regions, b'a","b')]:
        with pytest.raises(InvalidRequest):  # before anything is looked for by it
            describe_narrowing(malformed)
