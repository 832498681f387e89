"""A prompt computed at one node, an answer given by another: real sockets, scripted nodes.

Whatever goes wrong between the two, the client reads one whole answer and pays its prompt once.
"""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import (
    ContextTooLong,
    InvalidRequest,
    NodeUnreachable,
    PoolSaturated,
    ServiceError,
    StreamBroken,
    TransferFailed,
)
from contracts.grant import RetentionClass
from contracts.inference import Accepted, Finished, FinishReason, Usage
from contracts.kv_transfer import (
    MAX_CHUNK_BLOCKS,
    KvExported,
    KvGaveUp,
    KvHalf,
    KvLanded,
    KvRelease,
    KvReserved,
    KvRun,
    KvStop,
    digest_account,
)
from contracts.wire import MAX_FRAME_BYTES
from tenancy.changes import AccountChange
from tests.gateway.prompt_pair import (
    NUM_CACHED,
    NUM_PROMPT,
    STREAM,
    WHOLE,
    Pair,
    answer,
    create_export,
    run_pair,
)
from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import wait_until
from tests.gateway.scripted_node import ScriptedStream
from tests.gateway.test_failover import read_text
from tests.gateway.test_money import wait_for_records

FRAME_BYTES = MAX_FRAME_BYTES - 64
"""Of an export that fills a node's frame; to pass it on takes a few more."""


@pytest.fixture
async def pair(tmp_path: Path, database_template: Path) -> AsyncGenerator[Pair]:
    async with run_pair(tmp_path, database_template) as running:
        yield running


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_a_long_prompt_is_computed_elsewhere_and_paid_once(
    pair: Pair, body: dict[str, Any]
) -> None:
    assert read_text(await pair.gateway.run(body)) == "Hello"
    (answering,), (computing,) = pair.answers.streams, pair.prompts.streams
    assert answering.ticket is not None
    assert computing.ticket is not None
    assert (answering.ticket.half, computing.ticket.half) == (KvHalf.DECODE, KvHalf.PREFILL)
    assert (computing.ticket.first_block, computing.ticket.num_blocks) == (1, 10)
    for ticket in (answering.ticket, computing.ticket):
        assert ticket.request_id == answering.grant.request_id == computing.grant.request_id
        assert ticket.account_digest == digest_account(answering.grant.account_id)
        assert (ticket.prefill_node, ticket.decode_node) == ("prompts", "answers")
        assert ticket.prefill_incarnation == "life of prompts"
        assert ticket.deadline_unix_ms <= answering.grant.deadline_unix_ms
    assert [told.exported.agent for told in answering.imports] == [b"first", b"last"]
    assert not any(told.sealed_ticket for told in answering.imports)
    (record,) = await wait_for_records(pair.gateway, 1)
    tokens = record.tokens
    assert (tokens.num_uncached, tokens.num_cached) == (NUM_PROMPT - NUM_CACHED, NUM_CACHED)
    assert tokens.num_output == 2
    assert await pair.count("landed") == 1
    assert not pair.others.streams


async def test_a_short_prompt_and_one_that_must_leave_nothing_stay(pair: Pair) -> None:
    assert read_text(await pair.gateway.run({"prompt": "Hi"})) == "local"
    secret = await pair.gateway.add_tenant()
    change = AccountChange(retention=RetentionClass.NONE)
    await pair.gateway.tenancy.change_account(secret.account_id, change)
    await pair.gateway.gateway._cache.poll_epoch()
    assert read_text(await pair.gateway.run(WHOLE, tenant=secret)) == "local"
    assert not pair.prompts.streams


async def test_a_prompt_never_leaves_the_regions_of_its_account(pair: Pair) -> None:
    pair.prompts.has_transfer = False
    await pair.prompts.send_report()
    bound = await pair.gateway.add_tenant(regions=["weur"])
    assert read_text(await pair.gateway.run(WHOLE, tenant=bound)) == "local"
    assert not pair.others.streams
    assert read_text(await pair.gateway.run(WHOLE)) == "Hello"  # the control: others may
    assert len(pair.others.streams) == 1


async def break_off(stream: ScriptedStream) -> None:
    """A node for prompts that fails half-way."""
    await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
    await stream.put(create_export("first", is_last=False))
    await stream.fail(StreamBroken("The model failed."))


async def refuse(stream: ScriptedStream) -> None:
    """A node for prompts without room, or in another life than the gateway thinks."""
    await stream.fail(TransferFailed("Another incarnation."))


async def be_full(stream: ScriptedStream) -> None:
    """A node for prompts without room."""
    await stream.fail(PoolSaturated("No room for blocks that leave."))


@pytest.mark.parametrize("script", [break_off, refuse, be_full])
async def test_another_node_takes_over_a_prompt_that_one_has_given_up(
    pair: Pair, script: Any
) -> None:
    pair.prompts.script = script
    assert read_text(await pair.gateway.run(STREAM)) == "Hello"
    assert len(pair.others.streams) == 1
    (answering,) = pair.answers.streams
    told = [told for told in answering.imports if told.sealed_ticket]
    assert [one.exported.agent for one in told] == [b"first"]
    assert answering.imports.index(told[0]) == len(answering.imports) - 2
    (record,) = await wait_for_records(pair.gateway, 1)
    assert record.tokens.num_uncached + record.tokens.num_cached == NUM_PROMPT


async def test_with_nobody_left_the_node_that_answers_computes_the_prompt(pair: Pair) -> None:
    pair.prompts.script = pair.others.script = break_off
    assert read_text(await pair.gateway.run(STREAM)) == "local"
    assert await pair.count("nobody") == 1
    assert await pair.count("given_up") == 0, "each hand-over counts once"
    nums_asked = [len(node.streams) for node in (pair.prompts, pair.others)]
    assert nums_asked == [1, 1], "who has failed is not asked again"


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("error", "status"), [(NodeUnreachable("It is gone."), 503), (StreamBroken("It failed."), 502)]
)
async def test_with_nobody_left_who_can_compute_it_either_the_client_reads_an_error_alone(
    pair: Pair, body: dict[str, Any], error: ServiceError, status: int
) -> None:
    """The end of the order; the control, above, has one left who can."""

    async def give_up(stream: ScriptedStream) -> None:
        if stream.ticket is not None and stream.ticket.half is KvHalf.DECODE:
            await stream.put(KvReserved(1, 10))
            assert await stream.told.get() == KvStop()
            await stream.put(KvGaveUp("stopped"))
        else:
            await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        await stream.fail(error)

    for node in (pair.answers, pair.prompts, pair.others):
        node.script = give_up
    reply = await pair.gateway.run(body)
    assert (reply.status, reply.json["success"], reply.json["result"]) == (status, False, None)
    assert all(node.streams for node in (pair.answers, pair.prompts, pair.others))


async def exaggerate(stream: ScriptedStream) -> None:
    """A node for prompts that has found more in its cache than the prompt has."""
    await stream.put(Accepted(2**31 - 1, 2**31 - 1))
    await stream.put(create_export("last", is_last=True))
    assert await stream.told.get() == KvRelease()
    await stream.put(Finished(FinishReason.LENGTH, Usage(2**31 - 1, 2**31 - 1, 0)))


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_a_node_that_lies_about_its_cache_breaks_nobody_elses_connection(
    pair: Pair, body: dict[str, Any]
) -> None:
    pair.prompts.script = exaggerate
    assert read_text(await pair.gateway.run(body)) == "Hello"
    assert len(pair.answers.streams) == 1  # its connection stands, and all other streams on it
    (record,) = await wait_for_records(pair.gateway, 1)
    tokens = record.tokens
    assert tokens.num_uncached + tokens.num_cached == NUM_PROMPT


async def vanish(stream: ScriptedStream) -> None:
    """A node for prompts that is never heard of again."""
    await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
    await stream.put(create_export("first", is_last=False))
    await asyncio.sleep(3600)


RUN = KvRun(0, 0, (2**40,) * MAX_CHUNK_BLOCKS, (bytes(16),) * MAX_CHUNK_BLOCKS)


@pytest.mark.parametrize(
    "hostile",
    [
        KvExported("life of prompts", bytes(FRAME_BYTES), (), False),
        KvExported("life of prompts", b"", (RUN,) * 8, False),
    ],
    ids=["agent", "blocks"],
)
async def test_exports_that_fit_into_no_frame_break_nobody_elses_connection(
    pair: Pair, hostile: KvExported
) -> None:
    async def flood(stream: ScriptedStream) -> None:
        await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        await stream.put(hostile)
        await stream.aborted.wait()

    pair.prompts.script = flood
    assert read_text(await pair.gateway.run(STREAM)) == "Hello"
    (answering,) = pair.answers.streams  # its connection stands, and all other streams on it
    assert [told.exported.agent for told in answering.imports] == [b"first", b"last"]
    (record,) = await wait_for_records(pair.gateway, 1)
    assert record.tokens.num_uncached + record.tokens.num_cached == NUM_PROMPT


async def test_a_lost_connection_to_the_prompts_node_loses_no_answer(pair: Pair) -> None:
    pair.prompts.script = pair.others.script = vanish
    asking = asyncio.create_task(pair.gateway.run(STREAM))
    await wait_until(lambda: bool(pair.prompts.streams))
    await pair.others.stop()
    await pair.prompts.stop()
    assert read_text(await asking) == "local"


async def test_a_node_that_wants_no_blocks_has_none_computed(pair: Pair) -> None:
    async def decline(stream: ScriptedStream) -> None:
        await stream.put(KvGaveUp("no_room"))
        await stream.put(KvReserved(0, 10))  # too late: the first word of the end counts
        await stream.answer("local")

    pair.answers.script = decline
    assert read_text(await pair.gateway.run(STREAM)) == "local"
    assert not pair.prompts.streams
    assert await pair.count("given_up") == 1
    assert await pair.count("nobody") == 0


async def test_blocks_that_do_not_land_are_given_back(pair: Pair) -> None:
    async def distrust(stream: ScriptedStream) -> None:
        await stream.put(KvReserved(0, 10))
        await stream.told.get()
        await stream.answer("local")
        await stream.put(KvGaveUp("tags"))

    async def give_up_first(stream: ScriptedStream) -> None:
        await stream.put(KvReserved(0, 10))
        await stream.told.get()
        await stream.put(KvGaveUp("tags"))
        await stream.answer("local")

    for script in (give_up_first, distrust):
        pair.answers.script = script
        assert read_text(await pair.gateway.run(STREAM)) == "local"
    released, aborted = pair.prompts.streams
    await wait_until(lambda: released.told.empty() and aborted.aborted.is_set())
    assert not released.aborted.is_set()


@pytest.mark.parametrize("has_exported", [False, True])
async def test_a_client_that_leaves_ends_both_halves_and_pays_the_prompt(
    pair: Pair, has_exported: bool
) -> None:
    """Blocks of which nobody was told are released at once: others may be being read."""

    async def stop_short(stream: ScriptedStream) -> None:
        await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        if has_exported:
            await stream.put(create_export("first", is_last=False))

    pair.prompts.script = stop_short
    async with connect(pair.gateway) as (_, writer):
        writer.write(format_request(pair.gateway, STREAM))
        await wait_until(lambda: bool(pair.prompts.streams))
        computing, answering = pair.prompts.streams[0], pair.answers.streams[0]
        if has_exported:
            await wait_until(lambda: bool(answering.imports))
    await asyncio.wait_for(answering.aborted.wait(), 5)
    # As a node says it that has not begun: it knows nothing of what is computed elsewhere.
    await answering.put(Finished(FinishReason.ABORTED, Usage(0, 0, 0)))
    await asyncio.wait_for(computing.aborted.wait(), 5)
    assert computing.told.empty() == has_exported
    if not has_exported:
        assert computing.told.get_nowait() == KvRelease()
    (record,) = await wait_for_records(pair.gateway, 1)
    assert record.tokens.num_uncached == NUM_PROMPT - NUM_CACHED


async def test_the_node_that_answers_may_die_while_the_prompt_is_computed(pair: Pair) -> None:
    async def die(stream: ScriptedStream) -> None:
        await stream.put(KvReserved(0, 10))
        await stream.told.get()
        pair.answers.script = answer
        await stream.fail(StreamBroken("The model failed."))

    pair.answers.script = die
    assert read_text(await pair.gateway.run(STREAM)) == "last resort"
    await wait_until(pair.prompts.streams[0].aborted.is_set)
    (record,) = await wait_for_records(pair.gateway, 1)
    assert record.tokens.num_uncached + record.tokens.num_cached == NUM_PROMPT


async def test_words_of_blocks_that_nobody_asked_for_end_their_stream_alone(pair: Pair) -> None:
    async def babble(stream: ScriptedStream) -> None:
        pair.answers.script = answer
        await stream.put(KvLanded(1, 1.0))

    pair.answers.script = babble
    assert read_text(await pair.gateway.run({"prompt": "Hi"})) == "last resort"


@pytest.mark.parametrize("is_taken", [False, True], ids=["at once", "once it has taken it"])
@pytest.mark.parametrize(
    "error",
    [InvalidRequest("The prompt is empty.", param="prompt"), ContextTooLong("It is too long.")],
    ids=lambda error: error.code,
)
async def test_a_node_that_finds_fault_with_every_prompt_is_left_alone(
    pair: Pair, error: ServiceError, is_taken: bool
) -> None:
    """The node that answers, or the next one for prompts, takes them."""

    async def find_fault(stream: ScriptedStream) -> None:
        if is_taken:
            await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        await stream.fail(error)

    for node in (pair.answers, pair.prompts, pair.others):
        node.context_window = 16_384
        await node.send_report()
    pair.prompts.script = find_fault
    for _ in range(12):
        assert read_text(await pair.gateway.run(WHOLE)) == "Hello"
    assert len(pair.prompts.streams) < 8
    assert len(pair.others.streams) == 12
