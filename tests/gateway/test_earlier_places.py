"""What the ledger says of where a request was computed: everywhere, and not at its end alone."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import (
    Forbidden,
    InvalidRequest,
    ModelFailed,
    NodeUnreachable,
    PoolSaturated,
    ServiceError,
    StreamBroken,
)
from contracts.ids import NodeId, RegionId
from contracts.inference import Accepted, Finished, FinishReason, Usage
from contracts.kv_transfer import KvGaveUp, KvReserved
from contracts.pricing import TokenCounts
from contracts.usage import NodePlace, Outcome, UsageRecord
from gateway import attempts
from gateway.metering.open_usage import OpenUsage, read_open_usage
from gateway.request_context import RequestContext
from gateway.settlement import Books
from tenancy.usage import ledger
from tests.gateway.batch_client import run_batch
from tests.gateway.prompt_pair import STREAM as LONG
from tests.gateway.prompt_pair import Pair, run_pair
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.gateway.scripted_node import (
    Script,
    ScriptedNode,
    ScriptedStream,
    answer_hello,
    run_node,
)
from tests.gateway.test_continuation import STREAM, are_known, begin_and_lose, go_on, read_text
from tests.gateway.test_failover import read_text as read_answer
from tests.gateway.test_hand_overs import be_full, break_off, refuse
from tests.gateway.test_money import list_records, wait_for_records

WHOLE: dict[str, Any] = {"prompt": "Hi"}
GONE = StreamBroken("The engine died.")


def at(node_id: str, region: str) -> NodePlace:
    """A node in a region."""
    return NodePlace(NodeId(node_id), RegionId(region))


HOME, ABROAD = at("node-1", "weur"), at("node-2", "enam")


def read_places(record: UsageRecord) -> tuple[NodePlace, ...]:
    """All places that a record names, in order."""
    assert record.node_id is not None
    assert record.region is not None
    assert record.earlier_places is not None
    return (*record.earlier_places, NodePlace(record.node_id, record.region))


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    """Two nodes in two regions, the first of which is chosen first."""
    async with run_node("node-1", "weur") as first, run_node("node-2", "enam") as second:
        yield [first, second]


@pytest.fixture
async def pair(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway before both, which loses patience soon."""
    routing, limits = {"resume_patience_s": 0.5}, {"queue_deadline_s": 1}
    options: dict[str, Any] = {"routing": routing, "limits": limits}
    async with run_gateway(tmp_path, database_template, nodes, **options) as gateway:
        await wait_until_async(lambda: are_known(gateway, 2))
        yield gateway


@pytest.fixture
async def split(tmp_path: Path, database_template: Path) -> AsyncGenerator[Pair]:
    """A node for answers and two for prompts."""
    async with run_pair(tmp_path, database_template) as running:
        yield running


def fail_with(error: ServiceError) -> Script:
    """A node that says at once what is wrong."""

    async def script(stream: ScriptedStream) -> None:
        await stream.fail(error)

    return script


def take_and_fail(error: ServiceError) -> Script:
    """A node that fails after it has taken the request, before it answers."""

    async def script(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.fail(error)

    return script


async def say_nothing(stream: ScriptedStream) -> None:
    """A node of which nothing is heard."""
    await asyncio.sleep(3600)


async def give_up(stream: ScriptedStream) -> None:
    """A node that ends what it has not taken, without a reason."""
    await stream.put(Finished(FinishReason.ABORTED, Usage(0, 0, 0)))


# -- answers that move -----------------------------------------------------------------------------


async def test_an_answer_that_went_on_abroad_names_both_regions(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script, nodes[1].script = begin_and_lose(nodes[0], GONE), go_on
    assert read_text(await pair.run(STREAM)) == "Hallo"
    (record,) = await wait_for_records(pair, 1)
    assert (record.node_id, record.region) == ABROAD
    assert record.earlier_places == (HOME,)
    assert (record.outcome, record.tokens) == (Outcome.COMPLETE, TokenCounts(3, 4, 4))


async def test_where_nothing_moves_nothing_more_is_done_and_a_row_names_one_place(
    pair: RunningGateway, nodes: list[ScriptedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of what is there for those that move; the control, one that does, makes each."""
    called: list[str] = []

    def count(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            called.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in (
        (RequestContext, "note_seen"),
        (RequestContext, "list_places"),
        (attempts, "_note_left"),
        (attempts, "is_refusal"),
        (Books, "note_moved"),
        (OpenUsage, "amend"),
        (ledger, "_write_places"),
    ):
        count(owner, name)
    for body in (STREAM, WHOLE):
        assert (await pair.run(body)).status == 200
    records = await wait_for_records(pair, 2)
    assert [read_places(record) for record in records] == [(HOME,), (HOME,)]
    assert called == []
    nodes[0].script, nodes[1].script = begin_and_lose(nodes[0], GONE), go_on
    await pair.run(STREAM)
    await wait_for_records(pair, 3)
    assert len(set(called)) == 7


async def test_an_answer_that_comes_back_names_each_place_once(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    """There, abroad and home again, where it ended: the ledger says so last."""
    nodes[1].script = begin_and_lose(nodes[1], GONE)

    async def lose_or_go_on(stream: ScriptedStream) -> None:
        is_begun = stream.request.resumption is not None
        await (go_on if is_begun else begin_and_lose(nodes[0], GONE))(stream)

    nodes[0].script = lose_or_go_on
    assert read_text(await pair.run(STREAM)) == "HalHallo"
    assert [len(node.streams) for node in nodes] == [2, 1]
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == (ABROAD, HOME)


async def test_an_answer_that_nobody_goes_on_with_is_where_it_was(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    """The node that has refused its rest had no part in it."""
    nodes[0].script = begin_and_lose(nodes[0])
    nodes[1].script = fail_with(InvalidRequest("Not like this."))
    await pair.run(STREAM)
    assert len(nodes[1].streams) == 1
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == (HOME,)
    assert record.outcome is Outcome.FAILED


async def test_a_gateway_that_dies_in_the_midst_of_the_rest_has_written_both_down(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    """From when the next node is asked, and with what had been counted until then."""
    found: list[UsageRecord] = []
    (path,) = pair.gateway._bookkeeping.journal.folder.glob("*.open")

    async def look_and_go_on(stream: ScriptedStream) -> None:
        found.extend(read_open_usage(path))
        await go_on(stream)

    nodes[0].script, nodes[1].script = begin_and_lose(nodes[0], GONE), look_and_go_on
    assert read_text(await pair.run(STREAM)) == "Hallo"
    (record,) = found
    assert read_places(record) == (HOME, ABROAD)
    assert record.tokens == TokenCounts(3, 4, 3)
    assert list(read_open_usage(path)) == []


# -- attempts before the first byte ----------------------------------------------------------------


@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("script", "counts"),
    [
        (fail_with(PoolSaturated("Full.")), False),
        (fail_with(Forbidden("Not for your regions.")), False),
        (fail_with(NodeUnreachable("The model's engine cannot be reached.")), False),
        (take_and_fail(PoolSaturated("No blocks left.")), True),
        (fail_with(GONE), True),
        (fail_with(ModelFailed("The engine answered with status 500.")), True),
        (give_up, True),
        (say_nothing, True),
    ],
    ids=[
        "full",
        "grant refused",
        "engine unreachable",
        "full after all",
        "broken",
        "model failed",
        "given up",
        "silent",
    ],
)
async def test_an_attempt_counts_unless_the_node_said_no_before_it_took_the_request(
    pair: RunningGateway,
    nodes: list[ScriptedNode],
    body: dict[str, Any],
    script: Script,
    counts: bool,
) -> None:
    nodes[0].script = script
    assert (await pair.run(body)).status == 200
    assert [len(node.streams) for node in nodes] == [1, 1]
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == ((HOME, ABROAD) if counts else (ABROAD,))


async def test_a_node_that_dies_before_it_answers_anything_counts(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def die(stream: ScriptedStream) -> None:
        nodes[0].drop_connections()

    nodes[0].script = die
    assert (await pair.run(WHOLE)).status == 200
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == (HOME, ABROAD)


async def test_what_was_taken_and_lost_and_refused_elsewhere_is_in_the_ledger_at_no_cost(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script = take_and_fail(GONE)
    nodes[1].script = fail_with(InvalidRequest("Not like this."))
    assert (await pair.run(WHOLE)).status == 400
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == (HOME,)
    assert (record.outcome, record.tokens) == (Outcome.FAILED, TokenCounts(0, 0, 0))
    assert (record.price_version, record.cost_nano) == (None, 0)
    nodes[0].script = nodes[1].script  # the control: nobody took it
    assert (await pair.run(WHOLE)).status == 400
    assert len(await list_records(pair)) == 1


# -- prompts that others compute -------------------------------------------------------------------


async def test_who_computed_the_prompt_for_the_node_that_answers_is_named(split: Pair) -> None:
    assert read_answer(await split.gateway.run(LONG)) == "Hello"
    (record,) = await wait_for_records(split.gateway, 1)
    assert read_places(record) == (at("prompts", "weur"), at("answers", "weur"))
    await split.gateway.run(WHOLE)  # the control: a short prompt stays
    assert read_places((await wait_for_records(split.gateway, 2))[1]) == (at("answers", "weur"),)


@pytest.mark.parametrize(
    ("script", "counts"),
    [(break_off, True), (refuse, True), (be_full, False)],
    ids=["broken off", "no transfer", "full"],
)
async def test_who_gave_the_prompt_up_counts_unless_it_said_no_before_it_took_it(
    split: Pair, script: Script, counts: bool
) -> None:
    split.prompts.script = script
    assert read_answer(await split.gateway.run(LONG)) == "Hello"
    (record,) = await wait_for_records(split.gateway, 1)
    others = (at("others", "xnam"), at("answers", "weur"))
    assert read_places(record) == ((at("prompts", "weur"), *others) if counts else others)


async def test_who_is_silent_about_the_prompt_counts(split: Pair) -> None:
    """The node that answers has lost its patience, and nobody knows what the other one does."""
    is_asked = asyncio.Event()

    async def take_in_silence(stream: ScriptedStream) -> None:
        is_asked.set()
        await say_nothing(stream)

    async def lose_patience(stream: ScriptedStream) -> None:
        await stream.put(KvReserved(1, 10))
        await is_asked.wait()
        await stream.put(KvGaveUp("late"))
        await stream.answer("local")

    split.answers.script, split.prompts.script = lose_patience, take_in_silence
    assert read_answer(await split.gateway.run(LONG)) == "local"
    (record,) = await wait_for_records(split.gateway, 1)
    assert read_places(record) == (at("prompts", "weur"), at("answers", "weur"))


# -- items of batches ------------------------------------------------------------------------------


async def test_the_item_of_a_batch_names_where_its_run_has_been(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script = take_and_fail(GONE)
    (answer,) = await run_batch(pair, WHOLE)
    assert answer["success"]
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == (HOME, ABROAD)


@pytest.mark.parametrize(
    ("last_word", "keeps_id"), [(GONE, True), (PoolSaturated("Full."), False)], ids=["lost", "full"]
)
async def test_an_item_that_was_put_back_names_where_its_earlier_runs_have_been(
    pair: RunningGateway, nodes: list[ScriptedNode], last_word: ServiceError, keeps_id: bool
) -> None:
    """Its first run breaks at home, and then everywhere, or finds no room; the second is abroad."""

    async def lose_run(stream: ScriptedStream) -> None:
        if not is_first_run(stream):
            nodes[0].is_draining = True
            await nodes[0].send_report()
            await stream.fail(PoolSaturated("Full."))
        else:
            await take_and_fail(GONE)(stream)

    async def fail_or_answer(stream: ScriptedStream) -> None:
        await (fail_with(last_word) if is_first_run(stream) else answer_hello)(stream)

    nodes[0].script, nodes[1].script = lose_run, fail_or_answer
    (answer,) = await run_batch(pair, WHOLE)
    assert answer["success"]
    (record,) = await wait_for_records(pair, 1)
    assert read_places(record) == (HOME, ABROAD)
    request_ids = {stream.grant.request_id for node in nodes for stream in node.streams}
    assert (len(request_ids) == 1) == keeps_id


async def test_of_an_item_whose_gateway_was_lost_it_is_not_known(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    """The run that answers knows its own places alone, so that the ledger claims nothing."""
    store = pair.gateway._batches._store
    real = store.claim_batch_items

    async def lose_word(*arguments: Any, **options: Any) -> Any:
        items = await real(*arguments, **options)
        if items and items[0].claim == 1:  # as if it had died with them
            await store.release_batch_items(arguments[0])
            return []
        return items

    store.claim_batch_items = lose_word
    (answer,) = await run_batch(pair, WHOLE)
    assert answer["success"]
    (record,) = await wait_for_records(pair, 1)
    assert record.earlier_places is None


def is_first_run(stream: ScriptedStream) -> bool:
    """True in the run of an item's first claim: attempts of each have numbers of their own."""
    return stream.attempt >> 20 == 1
