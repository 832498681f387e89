"""A gateway, node processes and engines of others behind them: from clients to the books.

The engines speak as vLLM does. Read next: `tests.fixtures.engine_of_others`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contracts.usage import Outcome
from migrations.upgrade import upgrade_database
from tests.fixtures.engine_process import MODEL, EngineProcess, run_engine
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until_async,
)
from tests.gateway.test_money import list_records

BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 40, "stream": True, "temperature": 0}
USAGE = {"stream_options": {"include_usage": True}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
REGIONS = ("weur", "enam")


class Fleet:
    """Two engines, a node before each, and a gateway."""

    def __init__(
        self, engines: list[EngineProcess], nodes: list[FleetNode], gateway: RunningGateway
    ) -> None:
        self.engines, self.nodes, self.gateway = engines, nodes, gateway

    async def ask(self, text: str, tenant: Tenant | None = None, **changes: Any) -> Reply:
        """A chat's answer."""
        message = {"role": "user", "content": text}
        return await self.gateway.chat(BODY | {"messages": [message]} | changes, tenant)

    async def count_ready(self) -> int:
        """Nodes whose engine serves."""
        reply = await self.gateway.send(
            "GET", "/operator/v1/nodes", api_token=self.gateway.operator, origin=self.gateway.admin
        )
        return sum(any(load["is_ready"] for load in node["loads"]) for node in reply.json["result"])


@asynccontextmanager
async def run_fleet(folder: Path, *arguments: str) -> AsyncGenerator[Fleet]:
    """All of it, ready to serve; the nodes are in different regions."""
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    async with AsyncExitStack() as stack:
        engines = [stack.enter_context(run_engine("vllm", *arguments)) for _ in REGIONS]
        nodes = []
        for region, engine in zip(REGIONS, engines, strict=True):
            upstream = engine.write_upstream(features=["function_calling"])
            node = create_fleet_node(folder, f"node-{region}", ("cli", "node"), upstream)
            settings = node.folder / "node.toml"
            settings.write_text(settings.read_text().replace('"weur"', f'"{region}"', 1))
            node.start()
            stack.callback(node.reap)
            nodes.append(node)
        gateway = await stack.enter_async_context(
            run_gateway(folder, template, nodes, is_awaited=False)  # type: ignore[arg-type]
        )
        fleet = Fleet(engines, nodes, gateway)
        await wait_until_async(lambda: has_ready(fleet, 2), timeout_s=100)
        yield fleet


async def has_ready(fleet: Fleet, count: int) -> bool:
    return await fleet.count_ready() == count


def find_words(stream: str) -> list[str]:
    """What a stream says, whatever number of words an event has."""
    data = [line.removeprefix("data: ") for line in stream.splitlines() if "choices" in line]
    choices = [choice for event in map(json.loads, data) for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices).split()


def read_text(reply: Reply) -> str:
    """The text of a stream that must be complete."""
    assert reply.status == 200, reply.body
    assert reply.events[-1] == "[DONE]", reply.events[-1]
    choices = [choice for event in reply.events[:-1] for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.timeout(400)
async def test_engines_of_others_serve_tenants(tmp_path: Path) -> None:
    """One fleet for all of it, for processes take their time to start."""
    async with run_fleet(tmp_path, "--token-s", "0.01", "--max-requests", "3") as fleet:
        await check_an_answer_and_its_usage_are_in_the_books(fleet)
        await check_tools_reach_the_client(fleet)
        await check_bad_input_is_the_clients(fleet)
        await check_accounts_have_salts_of_their_own(fleet)
        await check_residency_holds(fleet)
        await check_a_full_engine_sends_requests_to_the_other(fleet)
        await check_who_leaves_is_missed_by_the_engine(fleet)
        await check_a_killed_engine_ends_its_own_answers_alone(fleet)


@pytest.mark.timeout(200)
async def test_an_engine_that_is_started_last_is_waited_for(tmp_path: Path) -> None:
    template = tmp_path / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    engine = EngineProcess("vllm")
    node = create_fleet_node(tmp_path, "node-1", ("cli", "node"), engine.write_upstream())
    async with AsyncExitStack() as stack:
        stack.callback(node.reap)
        stack.callback(engine.reap)
        node.start()
        gateway = await stack.enter_async_context(
            run_gateway(tmp_path, template, [node], is_awaited=False)  # type: ignore[list-item]
        )
        fleet = Fleet([engine], [node], gateway)

        async def is_offered() -> bool:
            return (await fleet.ask("Hello", stream=False)).status not in (404, 503)

        await wait_until_async(is_offered, timeout_s=60)
        refused = await fleet.ask("Hello", stream=False)
        assert refused.status == 429  # it may be there in a moment: `retry-after`
        assert int(refused.headers["Retry-After"]) > 0
        await asyncio.to_thread(engine.start)
        await wait_until_async(lambda: has_ready(fleet, 1), timeout_s=20)
        assert read_text(await fleet.ask("Hello"))


async def check_an_answer_and_its_usage_are_in_the_books(fleet: Fleet) -> None:
    reply = await fleet.ask("Tell me", **USAGE)
    assert len(read_text(reply).split()) == 40
    usage = reply.events[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 40)
    whole = await fleet.ask("Tell me", stream=False)
    assert whole.json["choices"][0]["message"]["content"] == read_text(reply)
    records = await list_records(fleet.gateway)
    assert [one.tokens.num_output for one in records] == [40, 40]
    assert {one.outcome for one in records} == {Outcome.COMPLETE}


async def check_tools_reach_the_client(fleet: Fleet) -> None:
    reply = await fleet.ask("Weather?", stream=False, tools=[TOOL])
    (choice,) = reply.json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}


async def check_bad_input_is_the_clients(fleet: Fleet) -> None:
    num_before = sum(len(engine.see_requests()) for engine in fleet.engines)
    reply = await fleet.ask("x " * 9000, stream=False)
    assert reply.status == 400
    assert "context" in reply.json["error"]["message"]
    assert sum(len(engine.see_requests()) for engine in fleet.engines) == num_before + 1


async def check_accounts_have_salts_of_their_own(fleet: Fleet) -> None:
    other = await fleet.gateway.add_tenant()
    text = " ".join(f"secret{n}" for n in range(60))
    replies = [await fleet.ask(text, tenant, **USAGE) for tenant in (None, None, other)]
    cached = [reply.events[-2]["usage"]["prompt_tokens_details"] for reply in replies]
    assert [details["cached_tokens"] for details in cached] == [0, 60, 0]
    bodies = [body for engine in fleet.engines for body in engine.see_requests()]
    salts = {body["cache_salt"] for body in bodies if text in str(body["messages"])}
    assert len(salts) == 2  # the same account's twice
    assert not any(tenant.account_id in str(bodies) for tenant in fleet.gateway.tenants)


async def check_residency_holds(fleet: Fleet) -> None:
    """Also where the other region's engine is full, gone or would be nearer."""
    abroad = await fleet.gateway.add_tenant(regions=["enam"])
    nowhere = await fleet.gateway.add_tenant(regions=["apac"])
    text = "Only in enam"
    for _ in range(4):
        assert read_text(await fleet.ask(text, abroad))
    assert count_asked(fleet.engines[0], text) == 0
    assert count_asked(fleet.engines[1], text) == 4
    refused = await fleet.ask(text, nowhere, stream=False)
    assert refused.status == 403
    assert count_asked(fleet.engines[1], text) == 4
    fleet.engines[1].behave("503")  # full: no reason to send it elsewhere
    refused = await fleet.ask(text, abroad, stream=False)
    assert refused.status == 429
    assert count_asked(fleet.engines[0], text) == 0
    fleet.engines[1].behave("")
    assert read_text(await fleet.ask(text))  # the control: others may go anywhere


def count_asked(engine: EngineProcess, text: str) -> int:
    """Requests of that text which an engine got."""
    return sum(text in str(body["messages"]) for body in engine.see_requests())


async def check_a_full_engine_sends_requests_to_the_other(fleet: Fleet) -> None:
    fleet.engines[0].behave("503")
    replies = await asyncio.gather(*(fleet.ask(f"Full {n}") for n in range(3)))
    assert all(read_text(reply) for reply in replies)
    assert sum(count_asked(fleet.engines[1], f"Full {n}") for n in range(3)) == 3
    fleet.engines[0].behave("")


async def check_who_leaves_is_missed_by_the_engine(fleet: Fleet) -> None:
    num_records = len(await list_records(fleet.gateway))
    num_cut = sum(engine.see()["num_cut"] for engine in fleet.engines)
    async with open_stream(fleet, "I shall leave", max_tokens=4000) as response:
        await response.content.readline()

    async def is_cut() -> bool:
        seen = [engine.see() for engine in fleet.engines]
        is_idle = all(one["num_running"] == 0 for one in seen)
        return is_idle and sum(one["num_cut"] for one in seen) == num_cut + 1

    await wait_until_async(is_cut, timeout_s=5)

    async def is_recorded() -> bool:
        return len(await list_records(fleet.gateway)) == num_records + 1

    await wait_until_async(is_recorded)
    last = (await list_records(fleet.gateway))[-1]
    assert last.outcome is Outcome.ABORTED
    assert 0 < last.tokens.num_output < 4000


async def check_a_killed_engine_ends_its_own_answers_alone(fleet: Fleet) -> None:
    first, second = [await fleet.gateway.add_tenant(regions=[region]) for region in REGIONS]
    async with (
        open_stream(fleet, "Doomed", first, max_tokens=300) as doomed,
        open_stream(fleet, "Safe", second, max_tokens=300) as safe,
    ):
        await doomed.content.readline()
        first_line = (await safe.content.readline()).decode()
        fleet.engines[0].reap()  # SIGKILL
        broken, whole = await doomed.text(), first_line + await safe.text()
    assert "[DONE]" not in broken
    assert "error" in broken.strip().splitlines()[-1]
    assert whole.strip().endswith("data: [DONE]")
    assert len(find_words(whole)) == 300
    assert not count_asked(fleet.engines[1], "Doomed")
    await wait_until_async(lambda: has_ready(fleet, 1))
    assert read_text(await fleet.ask("Still here"))
    refused = await fleet.ask("Stranded", first, stream=False)
    assert refused.status in (429, 503)  # its own region's engine is gone: it may go nowhere else
    assert not count_asked(fleet.engines[1], "Stranded")
    fleet.engines[0].start()
    await wait_until_async(lambda: has_ready(fleet, 2))
    assert read_text(await fleet.ask("Back again", first))


@asynccontextmanager
async def open_stream(
    fleet: Fleet, text: str, tenant: Tenant | None = None, **changes: Any
) -> AsyncGenerator[aiohttp.ClientResponse]:
    """An answer that is under way."""
    gateway, tenant = fleet.gateway, tenant or fleet.gateway.tenant
    path = gateway.account_path("/ai/v1/chat/completions", tenant)
    body = BODY | {"messages": [{"role": "user", "content": text}]} | changes
    headers = {"authorization": f"Bearer {tenant.api_token}"}
    async with gateway.session.post(gateway.base + path, json=body, headers=headers) as response:
        assert response.status == 200
        yield response
