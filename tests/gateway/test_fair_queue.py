"""Requests wait in a real gateway while its nodes are full, and every way that such a wait ends."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

from contracts.inference import Accepted, Delta
from tenancy.changes import AccountChange
from tests.gateway.raw_http import format_request
from tests.gateway.running_gateway import (
    Reply,
    Tenant,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import ScriptedStream
from tests.gateway.turnstiles import BODY, NUM_PLACES, STREAM, open_site


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
