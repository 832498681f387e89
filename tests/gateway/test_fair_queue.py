"""Requests wait in a real gateway while its nodes are full, and every way that such a wait ends."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tenancy.administration import AccountChange
from tests.gateway.raw_http import format_request
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

BODY = {"prompt": "Hi", "max_tokens": 5}
STREAM = BODY | {"stream": True}
NUM_PLACES = 2
"""At each node: one request that it computes and one that waits there."""
ROUTING = {"max_waiting_per_model": 1, "report_ttl_s": 30}


class Turnstile:
    """A node that computes one request at a time, and ends it when it is told to."""

    def __init__(self, node: ScriptedNode) -> None:
        """Takes the node over."""
        self.node = node
        self.num_prompt: dict[str, int] = {}
        """Tokens of the prompts of some accounts."""
        self.served: list[ScriptedStream] = []
        """In the order in which they came to their turn."""
        self.text = "Hello"
        self._live = 0
        self._one = asyncio.Semaphore(1)
        self._passes = asyncio.Semaphore(0)
        node.max_running = 1
        node.script = self._serve

    async def start(self) -> None:
        """Says what it can do, and from now on nothing more by itself: a report that crosses
        requests on their way does not count them.
        """
        self.node.reports = False
        await self.node.send_report()

    def let_through(self, count: int = 1) -> None:
        """So many requests may end."""
        for _ in range(count):
            self._passes.release()

    async def _serve(self, stream: ScriptedStream) -> None:
        self._count(1)
        try:
            async with self._one:
                self.served.append(stream)
                num_prompt = self.num_prompt.get(stream.grant.account_id, 7)
                await stream.put(Accepted(num_prompt, 0))
                await self._wait(stream)
                if stream.aborted.is_set():
                    await stream.put(Finished(FinishReason.ABORTED, Usage(7, 0, 0)))
                    return
                num_deltas = 1 if len(self.text) < 1000 else 20
                for index in range(num_deltas):
                    await stream.put(Delta(self.text, (index,)))
                await stream.put(Finished(FinishReason.STOP, Usage(num_prompt, 0, num_deltas)))
        finally:
            self._count(-1)

    async def _wait(self, stream: ScriptedStream) -> None:
        """Until it is let through or aborted."""
        ways: list[Coroutine[Any, Any, object]] = [self._passes.acquire(), stream.aborted.wait()]
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    def _count(self, sign: int) -> None:
        self._live += sign
        self.node.num_running = min(self._live, 1)
        self.node.num_waiting = self._live - self.node.num_running


class Site:
    """A gateway before turnstiles."""

    def __init__(self, gateway: RunningGateway, turnstiles: list[Turnstile]) -> None:
        """All running."""
        self.gateway = gateway
        self.turnstiles = turnstiles
        self._tasks: list[asyncio.Task[Reply]] = []

    @property
    def queue(self) -> Any:
        """The gateway's queue."""
        return self.gateway.gateway._pool.forwarding.queue  # type: ignore[reportPrivateUsage]

    def ask(self, tenant: Tenant | None = None, body: Any = BODY, **headers: str) -> Any:
        """A request, on its way."""
        tenant = tenant or self.gateway.tenant
        path = self.gateway.account_path(f"/ai/run/{MODEL}", tenant)
        sending = self.gateway.send(
            "POST",
            path,
            to_bytes(body),
            api_token=tenant.api_token,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        task = asyncio.ensure_future(sending)
        self._tasks.append(task)
        return task

    async def fill(self) -> list[Any]:
        """Takes every place of every node; the replies to come."""
        asked = [self.ask() for _ in range(NUM_PLACES * len(self.turnstiles))]
        nodes = [turnstile.node for turnstile in self.turnstiles]
        await wait_until(lambda: all(len(node.streams) == NUM_PLACES for node in nodes))
        for turnstile in self.turnstiles:
            await turnstile.start()
        return asked

    async def wait_for(self, count: int) -> None:
        """Returns once so many wait in the gateway."""
        await wait_until(lambda: self.queue.num_waiting == count)

    async def end(self) -> None:
        """Lets everything come to its end."""
        for turnstile in self.turnstiles:
            turnstile.let_through(1000)
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def open_site(
    folder: Path, template: Path, *regions: str, **sections: Any
) -> AsyncGenerator[Site]:
    """A gateway before one turnstile in each region; all places are free."""
    nodes: list[ScriptedNode] = []
    async with _run_nodes([(f"node-{n + 1}", name) for n, name in enumerate(regions)], nodes):
        turnstiles = [Turnstile(node) for node in nodes]
        sections = {"routing": ROUTING} | sections
        async with run_gateway(folder, template, nodes, **sections) as gateway:
            site = Site(gateway, turnstiles)
            for turnstile in turnstiles:
                await turnstile.start()
            try:
                yield site
            finally:
                await site.end()


@asynccontextmanager
async def _run_nodes(
    places: list[tuple[str, str]], nodes: list[ScriptedNode]
) -> AsyncGenerator[None]:
    if not places:
        yield
        return
    async with run_node(*places[0]) as node:
        nodes.append(node)
        async with _run_nodes(places[1:], nodes):
            yield


def read_explanation(reply: Reply) -> dict[str, str]:
    """The words of `x-hearth-explain`."""
    pairs = reply.headers["x-hearth-explain"].split("; ")
    return dict(pair.split("=", 1) for pair in pairs)  # type: ignore[misc]


async def test_what_finds_no_room_waits_and_is_served_when_there_is(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        first = await site.fill()
        late = [site.ask(x_hearth_explain="1") for _ in range(3)]
        await site.wait_for(3)
        (turnstile,) = site.turnstiles
        assert len(turnstile.node.streams) == NUM_PLACES  # nothing more has gone there
        turnstile.let_through()
        assert (await first[0]).status == 200
        await site.wait_for(2)
        await wait_until(lambda: len(turnstile.node.streams) == NUM_PLACES + 1)
        turnstile.let_through(10)
        replies = await asyncio.gather(*first[1:], *late)
        assert [reply.status for reply in replies] == [200] * 4
        assert all(float(read_explanation(one)["queued_ms"]) > 0 for one in replies[1:])
        assert site.queue.num_waiting == 0


async def test_who_does_not_want_to_wait_is_refused_at_once(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        await site.fill()
        waiting = site.ask()
        await site.wait_for(1)
        best_s = float("inf")

        async def is_quick() -> bool:
            nonlocal best_s
            began_s = time.monotonic()
            reply = await site.ask(body=BODY | {"options": {"rejectIfBusy": True}})
            best_s = min(best_s, time.monotonic() - began_s)
            assert (reply.status, reply.code) == (429, 3040)
            assert int(reply.headers["retry-after"]) >= 1
            return best_s < 0.1

        await wait_until_async(is_quick)
        assert not waiting.done()
        assert len(site.turnstiles[0].node.streams) == NUM_PLACES


async def test_a_queue_that_is_full_refuses_with_when_to_come_back(
    tmp_path: Path, database_template: Path
) -> None:
    bounds = {"max_requests": 4, "max_wait_s": 30}
    async with open_site(tmp_path, database_template, "weur", queue=bounds) as site:
        await site.fill()
        for _ in range(2):  # one model has half of the places
            site.ask()
        await site.wait_for(2)
        reply = await site.ask()
        assert (reply.status, reply.code) == (429, 3040)
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["x-should-retry"] == "true"
        other = await site.gateway.add_tenant()
        waiting = site.ask(other)  # another account's first one takes a place of the crowd's
        await wait_until(lambda: sum(task.done() for task in site._tasks) == 2)
        assert not waiting.done()
        site.turnstiles[0].let_through(10)
        assert (await waiting).status == 200


async def test_who_waits_too_long_is_refused(tmp_path: Path, database_template: Path) -> None:
    async with open_site(tmp_path, database_template, "weur", queue={"max_wait_s": 0.3}) as site:
        await site.fill()
        reply = await site.ask()
        assert (reply.status, reply.code) == (429, 3040)
        assert site.queue.num_waiting == 0


async def test_a_client_that_leaves_is_forgotten_and_never_reaches_a_node(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        first = await site.fill()
        books = site.gateway.gateway._bookkeeping.books  # type: ignore[reportPrivateUsage]
        leaving = [site.ask(body=body) for body in (BODY, STREAM)]
        await site.wait_for(2)
        for task in leaving:
            task.cancel()
        await site.wait_for(0)
        site.turnstiles[0].let_through(10)
        assert [reply.status for reply in await asyncio.gather(*first)] == [200, 200]
        assert len(site.turnstiles[0].node.streams) == NUM_PLACES
        await wait_until(lambda: not books.list_limited())


async def test_what_may_go_elsewhere_does_and_what_may_not_waits(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur", "enam") as site:
        gateway = site.gateway
        bound = await gateway.add_tenant(regions=["weur"])
        near, far = site.turnstiles
        for _ in range(NUM_PLACES + 3):
            site.ask(bound)
        await site.wait_for(3)
        await wait_until(lambda: len(near.node.streams) == NUM_PLACES)
        free = [site.ask() for _ in range(NUM_PLACES)]  # nobody stands in their way
        await wait_until(lambda: len(far.node.streams) == NUM_PLACES)
        last = site.ask()
        await site.wait_for(4)
        far.let_through(3)
        replies = await asyncio.gather(*free, last)
        assert [reply.headers["x-hearth-region"] for reply in replies] == ["enam"] * 3
        assert site.queue.num_waiting == 3
        assert all(one.grant.regions == ("weur",) for one in near.node.streams)
        assert all(one.grant.account_id != bound.account_id for one in far.node.streams)


async def find_place(
    tmp_path: Path, template: Path, choose: Callable[[Tenant, Tenant], Tenant]
) -> int:
    """Which one is served first of all that wait: 40 of one account, then one of `choose`'s."""
    async with open_site(tmp_path, template, "weur") as site:
        crowd, other = site.gateway.tenant, await site.gateway.add_tenant()
        await site.fill()
        for _ in range(40):
            site.ask(crowd)
        await site.wait_for(40)
        chosen = choose(crowd, other)
        last = site.ask(chosen, BODY | {"prompt": "The last one."})
        await site.wait_for(41)
        (turnstile,) = site.turnstiles
        turnstile.let_through(50)
        assert (await last).status == 200
        order = [b"The last one." in bytes(stream.body) for stream in turnstile.served]
        return order.index(True) - NUM_PLACES


async def test_an_accounts_first_request_waits_for_one_of_another_account(
    tmp_path: Path, database_template: Path
) -> None:
    assert await find_place(tmp_path, database_template, lambda _, other: other) <= 1


async def test_the_same_request_of_the_crowds_own_account_waits_for_all_of_them(
    tmp_path: Path, database_template: Path
) -> None:
    assert await find_place(tmp_path, database_template, lambda crowd, _: crowd) == 40


async def test_a_node_that_is_lost_and_comes_back_serves_who_has_waited(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        await site.fill()
        waiting = [site.ask() for _ in range(2)]
        await site.wait_for(2)
        (turnstile,) = site.turnstiles
        turnstile.let_through(10)
        turnstile.node.reports = True  # on the connection to come, too
        turnstile.node.drop_connections()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 200]


async def test_what_an_answer_has_really_taken_decides_already_who_gets_its_place(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        (turnstile,) = site.turnstiles
        costly, other = await site.gateway.add_tenant(), await site.gateway.add_tenant()
        turnstile.num_prompt[costly.account_id] = 2000
        await site.fill()
        for count, tenant in enumerate((costly, other) * 2, 1):
            asked = site.ask(tenant)
            await site.wait_for(count)
        turnstile.let_through(NUM_PLACES + 4)
        await asyncio.gather(asked)
        await site.wait_for(0)
        await wait_until(lambda: len(turnstile.served) == NUM_PLACES + 4)
        served = [stream.grant.account_id for stream in turnstile.served[NUM_PLACES:]]
        # By what they were expected to take, it would be in turns.
        assert served == [one.account_id for one in (costly, other, other, costly)]


async def test_an_answer_that_has_begun_goes_on_before_all_that_wait(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur", "enam") as site:
        near, far = site.turnstiles
        told = asyncio.Event()

        async def begin(stream: ScriptedStream) -> None:
            await stream.put(Accepted(7, 0))
            await stream.put(Delta("Hel", (1,)))
            told.set()

        near.node.script = begin
        begun = site.ask(body=STREAM)
        await told.wait()
        near.node.script = near._serve
        near.node.num_running, near.node.num_waiting = 1, 1
        await near.start()
        for _ in range(NUM_PLACES):
            site.ask()
        await wait_until(lambda: len(far.node.streams) == NUM_PLACES)
        urgent = await site.gateway.add_tenant()
        await site.gateway.tenancy.change_account(urgent.account_id, AccountChange(priority=100))
        for _ in range(10):
            site.ask(urgent)
        await site.wait_for(10)
        near.node.reports = False
        near.node.is_draining = True  # it does not come back for others
        near.node.drop_connections()
        await site.wait_for(11)
        far.let_through()
        await wait_until(lambda: len(far.node.streams) == NUM_PLACES + 1)
        assert far.node.streams[-1].request.resumption is not None
        far.let_through(20)
        reply = await begun
        assert reply.status == 200
        assert "".join(event["response"] for event in reply.events[:-1]) == "HelHello"


async def test_a_client_that_does_not_read_holds_no_place_at_a_node_that_is_done(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        (turnstile,) = site.turnstiles
        turnstile.text = "x" * 1_000_000
        request = format_request(site.gateway, STREAM)
        with socket.create_connection(("127.0.0.1", site.gateway.gateway.port)) as lazy:
            lazy.sendall(request)
            await wait_until(lambda: len(turnstile.served) == 1)
            site.ask()
            await wait_until(lambda: len(turnstile.node.streams) == NUM_PLACES)
            await turnstile.start()
            turnstile.node.reports = False  # nothing but the end of the stream can tell of room
            waiting = site.ask()
            await site.wait_for(1)
            turnstile.let_through()
            await wait_until(lambda: len(turnstile.node.streams) == NUM_PLACES + 1)
            turnstile.text = "Hello"
            turnstile.let_through(10)
            assert (await waiting).status == 200


async def test_a_gateway_that_stops_says_so_to_who_waits(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, "weur") as site:
        await site.fill()
        waiting = site.ask()
        await site.wait_for(1)
        site.gateway.gateway._pool.end_requests()  # type: ignore[reportPrivateUsage]
        reply = await waiting
        assert (reply.status, reply.code) == (503, 7507)
        late = await site.ask()
        assert (late.status, late.code) == (503, 7507)
