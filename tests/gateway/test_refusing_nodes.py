"""A node that takes nothing and says that it has room: it looks idle and would get everything."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.encoding import Encoded
from contracts.errors import (
    ConstraintUnmet,
    ContextTooLong,
    InvalidRequest,
    PoolSaturated,
    StoreUnavailable,
    UnsupportedFeature,
)
from contracts.fleet import Task
from contracts.inference import Accepted, Finished, FinishReason, Usage
from gateway.auth.principal_cache import PrincipalCache
from gateway.auth.standing import Standing
from tests.gateway.running_gateway import (
    RunningGateway,
    run_gateway,
    to_bytes,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import (
    CONTEXT_WINDOW,
    MODEL,
    Script,
    ScriptedNode,
    ScriptedStream,
    answer_hello,
    run_node,
)
from tests.gateway.test_continuation import are_known
from tests.gateway.test_failover import list_up

ASK: dict[str, Any] = {"prompt": "Hi"}
IMPATIENT = ASK | {"options": {"rejectIfBusy": True}}
RESERVE = 16
NUM_REQUESTS = 60


async def refuse(stream: ScriptedStream) -> None:
    """A node whose engine is behind something that lets nothing through."""
    await stream.fail(PoolSaturated("The model's engine takes no more requests."))


async def find_fault(stream: ScriptedStream) -> None:
    """A node that has lost its tokenizer, or a request that is wrong."""
    await stream.fail(InvalidRequest("The prompt is empty.", param="prompt"))


async def find_too_long(stream: ScriptedStream) -> None:
    """A node that counts tokens wrongly, or a request that is too long."""
    await stream.fail(ContextTooLong("This model's context is 4096 tokens."))


async def swallow(stream: ScriptedStream) -> None:
    """A node that has lost what takes requests up, and goes on reporting."""
    await stream.aborted.wait()


@asynccontextmanager
async def open_pair(
    folder: Path, template: Path, **changes: Any
) -> AsyncGenerator[tuple[RunningGateway, ScriptedNode, ScriptedNode]]:
    """A gateway before two nodes, of which the first is nearer and is asked first."""
    async with (
        run_node("node-1", "weur") as bad,
        run_node("node-2", "enam") as good,
        run_gateway(
            folder, template, [bad, good], routing={"retry_reserve": RESERVE}, **changes
        ) as gateway,
    ):

        async def are_up() -> bool:
            return len(await list_up(gateway)) == 2

        await wait_until_async(are_up)
        yield gateway, bad, good


@pytest.mark.parametrize("takes_some", [False, True], ids=["it takes none", "the control"])
async def test_a_node_that_refuses_what_it_has_room_for_uses_up_nobodys_retries(
    tmp_path: Path, database_template: Path, takes_some: bool
) -> None:
    """In the control it takes every fourth, so that it is asked all along."""
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):

        async def take_every_fourth(stream: ScriptedStream) -> None:
            await (stream.answer("Hi") if len(bad.streams) % 4 == 0 else refuse(stream))

        bad.script = take_every_fourth if takes_some else refuse
        replies = [await gateway.run(ASK) for _ in range(NUM_REQUESTS)]
        assert any(reply.status == 429 for reply in replies) == takes_some
        assert (len(bad.streams) > RESERVE) == takes_some
        assert good.streams


async def test_a_node_that_leaves_requests_lying_is_left_alone(
    tmp_path: Path, database_template: Path
) -> None:
    limits = {"queue_deadline_s": 1.0}
    async with open_pair(tmp_path, database_template, limits=limits) as (gateway, bad, good):
        bad.script = swallow
        replies = [await gateway.run(ASK) for _ in range(NUM_REQUESTS)]
        assert {reply.status for reply in replies} == {200}
        assert len(good.streams) == NUM_REQUESTS
        assert len(bad.streams) < RESERVE


async def test_who_would_not_wait_has_no_node_left_alone(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, bad, _):
        bad.script = refuse
        for _ in range(RESERVE):
            await gateway.run(IMPATIENT)
        num_before = len(bad.streams)
        assert (await gateway.run(ASK)).status in (200, 429)
        assert len(bad.streams) == num_before + 1


@pytest.mark.parametrize("takes_some", [False, True], ids=["with all", "the control"])
async def test_a_node_that_finds_fault_with_what_others_take_is_left_alone(
    tmp_path: Path, database_template: Path, takes_some: bool
) -> None:
    """In the control it takes every third: whom it blames may be wrong."""
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):

        async def take_every_third(stream: ScriptedStream) -> None:
            await (stream.answer("Hi") if len(bad.streams) % 3 == 0 else find_fault(stream))

        bad.script = take_every_third if takes_some else find_fault
        replies = [await gateway.run(ASK) for _ in range(NUM_REQUESTS)]
        num_blamed = sum(reply.status == 400 for reply in replies)
        if takes_some:
            assert (num_blamed, len(bad.streams)) == (NUM_REQUESTS * 2 // 3, NUM_REQUESTS)
        else:
            assert num_blamed == 3
            assert len(bad.streams) < RESERVE
            assert len(good.streams) == NUM_REQUESTS - 3


async def test_wrong_requests_have_no_node_left_alone(
    tmp_path: Path, database_template: Path
) -> None:
    """They are asked of a second node once there is doubt, and cost nobody's retries."""
    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = far.script = find_fault
        for _ in range(NUM_REQUESTS):
            reply = await gateway.run(ASK)
            assert reply.status == 400
            assert "The prompt is empty." in reply.body.decode()
        assert (len(near.streams), len(far.streams)) == (NUM_REQUESTS, NUM_REQUESTS - 3)
        near.script = far.script = answer_hello
        assert (await gateway.run(ASK)).status == 200
        assert len(near.streams) == NUM_REQUESTS + 1


async def test_a_wrong_request_does_not_wait_for_another_opinion(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):
        bad.script = find_fault
        for _ in range(4):
            await gateway.run(ASK)
        await good.stop()
        reply = await gateway.run(ASK)
        assert reply.status == 400


async def test_who_asks_for_what_only_one_node_takes_has_the_other_left_alone_by_nobody_else(
    tmp_path: Path, database_template: Path
) -> None:
    """Nodes of one model have engines that differ. The control: the account itself leaves it."""

    async def take_plain(stream: ScriptedStream) -> None:
        odd = UnsupportedFeature("This model does not know `odd`.", param="odd")
        await (stream.fail(odd) if b"odd" in stream.body else stream.answer("Hi"))

    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = take_plain
        other = await gateway.add_tenant()
        replies = [await gateway.run({"prompt": "odd"}) for _ in range(NUM_REQUESTS)]
        assert [reply.status for reply in replies] == [400] * 3 + [200] * (NUM_REQUESTS - 3)
        assert len(near.streams) < RESERVE
        assert len(far.streams) == NUM_REQUESTS - 3
        reply = await gateway.run(ASK, tenant=other)
        assert (reply.status, reply.headers["x-hearth-node"]) == (200, near.node_id)


async def test_a_request_that_was_taken_before_it_failed_is_asked_of_nobody_else(
    tmp_path: Path, database_template: Path
) -> None:
    """Others were found fault with since: it would be computed twice, and both nodes took it."""

    async def take_one(stream: ScriptedStream) -> None:
        if b"first" not in stream.body:
            await find_fault(stream)
            return
        await stream.put(Accepted(7, 0))
        await go_on.wait()
        await stream.fail(ConstraintUnmet("The answer's schema cannot be followed to an end."))

    go_on = asyncio.Event()
    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = take_one
        first = asyncio.create_task(gateway.run({"prompt": "first"}))
        await wait_until(lambda: bool(near.streams))
        path, bound = gateway.account_path(f"/ai/run/{MODEL}"), {"x-hearth-regions": near.region}
        for _ in range(4):
            assert (await gateway.send("POST", path, to_bytes(ASK), headers=bound)).status == 400
        go_on.set()
        assert (await first).status == 400
        assert far.streams == []
        assert (await gateway.run(ASK)).status == 200  # the control: it is doubted by now
        assert len(near.streams) == 6


@pytest.mark.parametrize("script", [find_fault, find_too_long])
async def test_of_three_nodes_two_that_find_fault_with_all_do_not_confirm_each_other(
    tmp_path: Path, database_template: Path, script: Script
) -> None:
    async with (
        run_node("node-1", "weur") as bad,
        run_node("node-2", "weur") as worse,
        run_node("node-3", "enam") as good,
        run_gateway(tmp_path, database_template, [bad, worse, good]) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 3))
        bad.script = worse.script = script
        replies = [await gateway.run(ASK) for _ in range(NUM_REQUESTS)]
        assert sum(reply.status == 400 for reply in replies) < 10
        assert len(good.streams) > NUM_REQUESTS - 10
        assert max(len(bad.streams), len(worse.streams)) < RESERVE


async def test_a_wrong_request_stays_wrong_where_the_store_is_asked_in_vain_for_another_opinion(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is wrong is so while the store is away: its client must not try again."""
    asked: list[object] = []

    async def fail(*args: object) -> None:
        asked.append(args)
        raise StoreUnavailable("The store is away.")

    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = find_fault
        for _ in range(3):
            assert (await gateway.run(ASK)).status == 400
        before = near.script

        async def find_fault_meanwhile(stream: ScriptedStream) -> None:
            monkeypatch.setattr(PrincipalCache, "is_trusted", False)
            monkeypatch.setattr(Standing, "_load", fail)
            await before(stream)

        near.script = find_fault_meanwhile
        assert (await gateway.run(ASK)).status == 400
        assert asked
        assert far.streams == []


@pytest.mark.parametrize("body", [ASK, ASK | {"max_tokens": 1000}], ids=["short", "and longer"])
@pytest.mark.parametrize(
    ("other_window", "num_believed"),
    [(CONTEXT_WINDOW, 3), (CONTEXT_WINDOW // 2, 3), (CONTEXT_WINDOW * 2, 0)],
    ids=["as long", "shorter", "longer"],
)
async def test_a_node_that_finds_all_requests_too_long_is_left_alone(
    tmp_path: Path,
    database_template: Path,
    other_window: int,
    num_believed: int,
    body: dict[str, Any],
) -> None:
    """Where there is a longer context each request is asked there next, so that none is lost."""
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):
        good.context_window, bad.script = other_window, find_too_long
        await good.send_report()
        replies = [await gateway.run(body) for _ in range(NUM_REQUESTS)]
        assert [reply.status for reply in replies[:num_believed]] == [400] * num_believed
        assert {reply.status for reply in replies[num_believed:]} == {200}
        assert len(bad.streams) < RESERVE
        assert len(good.streams) == NUM_REQUESTS - num_believed


async def test_a_node_that_finds_all_texts_too_long_is_left_alone(
    tmp_path: Path, database_template: Path
) -> None:
    """Of vectors only the request's length is known."""

    async def encode(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Encoded((0,), (bytes(16),)))
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 0)))

    async with open_pair(tmp_path, database_template) as (gateway, bad, good):
        bad.script, good.script = find_too_long, encode
        for node in (bad, good):
            node.task = Task.TEXT_EMBEDDINGS
            await node.send_report()
        replies = [await gateway.run({"text": "Hi"}) for _ in range(NUM_REQUESTS)]
        assert [reply.status for reply in replies] == [400] * 3 + [200] * (NUM_REQUESTS - 3)
        assert len(bad.streams) < RESERVE


async def test_a_node_that_takes_every_third_may_be_right_that_others_are_too_long(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, some, other):

        async def take_every_third(stream: ScriptedStream) -> None:
            await (stream.answer("Hi") if len(some.streams) % 3 == 0 else find_too_long(stream))

        some.script = take_every_third
        replies = [await gateway.run(ASK) for _ in range(NUM_REQUESTS)]
        assert sum(reply.status == 400 for reply in replies) == NUM_REQUESTS * 2 // 3
        assert (len(some.streams), len(other.streams)) == (NUM_REQUESTS, 0)


@pytest.mark.parametrize(
    ("prompt", "options", "num_asked_twice"),
    [
        ("word " * 5000, {}, 0),
        ("Hi", {"max_tokens": CONTEXT_WINDOW}, 0),
        ("\U0001f9c3" * 1500, {}, NUM_REQUESTS - 3),
    ],
    ids=["plainly", "by what they ask for", "against appearances"],
)
async def test_requests_that_are_too_long_have_no_node_left_alone(
    tmp_path: Path,
    database_template: Path,
    prompt: str,
    options: dict[str, int],
    num_asked_twice: int,
) -> None:
    """Most are told so by the first node; text of few bytes to the token is asked of a second."""
    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = far.script = find_too_long
        for number in range(NUM_REQUESTS):
            reply = await gateway.run({"prompt": f"{number} {prompt}"} | options)
            assert (reply.status, reply.code) == (400, 7400)
        assert (len(near.streams), len(far.streams)) == (NUM_REQUESTS, num_asked_twice)
        near.script = far.script = answer_hello
        reply = await gateway.run(ASK)
        assert (reply.status, reply.headers["x-hearth-node"]) == (200, near.node_id)


@pytest.mark.parametrize(
    ("num_prompt", "options", "is_contradicted"),
    [
        (CONTEXT_WINDOW + 1, {}, False),
        (CONTEXT_WINDOW, {}, False),
        (CONTEXT_WINDOW - 1, {}, True),
        (1500, {"max_tokens": CONTEXT_WINDOW - 1000}, False),
        (1500, {"max_tokens": CONTEXT_WINDOW - 1500}, True),
    ],
    ids=["its prompt", "with one of an answer", "the first control", "what it asks for", "another"],
)
async def test_what_only_a_longer_context_holds_is_held_against_no_node(
    tmp_path: Path,
    database_template: Path,
    num_prompt: int,
    options: dict[str, int],
    is_contradicted: bool,
) -> None:
    """The node that takes it has counted: by its appearance it had room in both."""

    async def find_odd_too_long(stream: ScriptedStream) -> None:
        await (find_too_long(stream) if b"odd" in stream.body else stream.answer("Hi"))

    async with open_pair(tmp_path, database_template) as (gateway, short, long):
        short.script = find_odd_too_long
        long.context_window, long.num_prompt = 2 * CONTEXT_WINDOW, num_prompt
        await long.send_report()
        for number in range(NUM_REQUESTS):
            prompt = f"{number} " + "odd " * 400  # of which nobody has the beginning
            assert (await gateway.run({"prompt": prompt} | options)).status == 200
        assert len(long.streams) == NUM_REQUESTS
        assert (len(short.streams) < NUM_REQUESTS) == is_contradicted
        reply = await gateway.run(ASK)
        assert (reply.headers["x-hearth-node"] == short.node_id) != is_contradicted


@pytest.mark.parametrize(("engine", "is_contradicted"), [("openai", False), ("", True)])
async def test_what_an_engine_has_guessed_is_held_against_no_node(
    tmp_path: Path, database_template: Path, engine: str, is_contradicted: bool
) -> None:
    """It says how long a prompt was once all is over, and a guess by its bytes before. Our own has
    counted: the control.
    """

    async def find_odd_too_long(stream: ScriptedStream) -> None:
        await (find_too_long(stream) if b"odd" in stream.body else stream.answer("Hi"))

    async with open_pair(tmp_path, database_template) as (gateway, short, long):
        short.script = find_odd_too_long
        long.context_window, long.num_prompt = 2 * CONTEXT_WINDOW, CONTEXT_WINDOW // 2
        long.engine = engine
        await long.send_report()
        for number in range(NUM_REQUESTS):
            prompt = f"{number} " + "odd " * (CONTEXT_WINDOW // 4)
            assert (await gateway.run({"prompt": prompt})).status == 200
        assert (len(short.streams) < NUM_REQUESTS) == is_contradicted


async def test_a_request_waits_for_a_longer_context_also_where_its_node_is_doubted(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, short, long):
        short.script = find_too_long
        long.context_window, long.num_prompt = 2 * CONTEXT_WINDOW, CONTEXT_WINDOW + 1
        await long.send_report()
        for _ in range(5):
            assert (await gateway.run(ASK)).status == 200
        long.num_waiting = 1000
        await long.send_report()
        wanted = asyncio.create_task(gateway.run(ASK))
        await wait_until(lambda: len(short.streams) == 6)
        await asyncio.sleep(0.1)
        assert not wanted.done()
        long.num_waiting = 0
        await long.send_report()
        assert (await wanted).headers["x-hearth-node"] == long.node_id
