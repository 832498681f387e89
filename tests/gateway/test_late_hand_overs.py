"""Prompts that come too late for the node that answers: whose fault it is, and what is learnt.

By the gateway's own clock: a node that answers cannot have innocent ones left alone.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import StreamBroken
from contracts.inference import Accepted, Finished, FinishReason, Usage
from contracts.kv_transfer import (
    KV_LATE,
    KvGaveUp,
    KvImport,
    KvRelease,
    KvReserved,
)
from tests.gateway.prompt_pair import (
    NUM_CACHED,
    NUM_PROMPT,
    PROMPT,
    STREAM,
    Pair,
    create_export,
    run_pair,
)
from tests.gateway.running_gateway import wait_until
from tests.gateway.scripted_node import ScriptedStream
from tests.gateway.test_failover import read_text

NUM_LATE = 5


@pytest.fixture
async def pair(tmp_path: Path, database_template: Path) -> AsyncGenerator[Pair]:
    async with run_pair(tmp_path, database_template) as running:
        yield running


async def dawdle(stream: ScriptedStream) -> None:
    """A node for prompts that stops half-way, and ends when it is told that nobody waits."""
    if stream.ticket is not None:
        await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        await stream.put(create_export("first", is_last=False))
        await stream.told.get()
        await stream.put(Finished(FinishReason.LENGTH, Usage(NUM_PROMPT, NUM_CACHED, 0)))


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that answer wait for a fraction of a second."""
    monkeypatch.setattr("gateway.hand_over._PATIENCE", 0.0)
    monkeypatch.setattr("gateway.hand_over._LEAST_PATIENCE_S", 0.5)
    monkeypatch.setattr("gateway.hand_over._WAY_S", 0.25)


async def wait_in_vain(stream: ScriptedStream, reason: str = KV_LATE) -> None:
    """A node for answers that is patient for as long as its ticket says, counted from the last
    export on, and then helps itself.
    """
    if stream.ticket is not None:
        patience_s = stream.ticket.deadline_unix_ms / 1000 - time.time()
        await stream.put(KvReserved(0, 10))
        await stream.told.get()
        await asyncio.sleep(patience_s)
        await stream.put(KvGaveUp(reason))
    await stream.answer("local")


async def hurry(stream: ScriptedStream) -> None:
    """A node for answers that calls all others late as soon as it has heard of them."""
    if stream.ticket is not None:
        await stream.put(KvReserved(0, 10))
        await stream.told.get()
        await stream.put(KvGaveUp(KV_LATE))
    await stream.answer("local")


async def accuse(stream: ScriptedStream) -> None:
    """A node for answers that calls others late which nobody has asked."""
    if stream.ticket is not None:
        await asyncio.sleep(stream.ticket.deadline_unix_ms / 1000 - time.time())
        await stream.put(KvGaveUp(KV_LATE))
    await stream.answer("local")


async def ask_slowly(stream: ScriptedStream) -> None:
    """A node for answers that wants nothing before its patience has passed, and is late at once."""
    if stream.ticket is not None:
        await asyncio.sleep(stream.ticket.deadline_unix_ms / 1000 - time.time())
    await hurry(stream)


async def give_up_for_tags(stream: ScriptedStream) -> None:
    """A node for answers that has waited, and found wrong blocks."""
    await wait_in_vain(stream, "tags")


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(
    ("script", "is_left_alone"),
    [
        (wait_in_vain, True),
        (give_up_for_tags, False),
        (hurry, False),
        (accuse, False),
        (ask_slowly, False),
    ],
)
async def test_a_node_that_was_too_late_with_several_prompts_is_left_alone_for_a_while(
    pair: Pair, script: Any, is_left_alone: bool
) -> None:
    pair.prompts.script, pair.answers.script = dawdle, script
    for number in range(NUM_LATE):  # each a prompt that nobody has
        form = STREAM | {"prompt": f"{number} {PROMPT}"}
        assert read_text(await pair.gateway.run(form)) == "local"
    assert len(pair.prompts.streams) == (0 if script is accuse else NUM_LATE)
    troubled = pair.gateway.gateway._pool.fleet.list_troubled()
    assert ("prompts" in troubled) == is_left_alone


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("is_patient", [True, False])
async def test_a_prompt_that_is_late_and_then_fails_is_one_failure(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    async def fail_late(stream: ScriptedStream) -> None:
        await stream.put(Accepted(NUM_PROMPT, NUM_CACHED))
        await stream.put(create_export("first", is_last=False))
        assert await stream.told.get() == KvRelease()
        await stream.fail(StreamBroken("The model failed."))

    async def stay(stream: ScriptedStream) -> None:
        await stream.put(KvReserved(0, 10))
        await stream.told.get()
        await asyncio.sleep(0.6 if is_patient else 0)
        await stream.put(KvGaveUp(KV_LATE))
        await stream.put(Accepted(NUM_PROMPT, 0))
        await wait_until(lambda: len(ends) == 1)
        await stream.put(Finished(FinishReason.STOP, Usage(NUM_PROMPT, 0, 0)))

    ends, failures = list[str](), list[str]()
    fleet = pair.gateway.gateway._pool.fleet
    release = fleet.release

    def note_release(plan: Any) -> None:
        release(plan)
        ends.append(plan.node_id)

    monkeypatch.setattr(fleet, "note_failure", lambda node_id, _: failures.append(node_id))
    monkeypatch.setattr(fleet, "release", note_release)
    pair.prompts.script, pair.answers.script = fail_late, stay
    assert read_text(await pair.gateway.run(STREAM)) == ""
    assert ends[0] == "prompts"  # it was heard to fail
    assert failures == ["prompts"]


@pytest.mark.parametrize("is_patient", [True, False])
async def test_the_time_of_what_comes_too_late_is_learnt_from_who_has_waited(
    pair: Pair, is_patient: bool
) -> None:
    """That it has taken so long at least says nothing where that is shorter than it takes."""

    async def give_up(stream: ScriptedStream) -> None:
        if stream.ticket is not None:
            await stream.put(KvReserved(0, 10))
            is_last = False
            while not is_last:
                told = await stream.told.get()
                assert isinstance(told, KvImport)
                is_last = told.exported.is_last
            await asyncio.sleep(1 if is_patient else 0)
            await stream.put(KvGaveUp(KV_LATE))
        await stream.answer("local")

    def estimate_s() -> float:
        meter = pair.gateway.gateway._pool.fleet.locality.hand_over
        return meter.estimate_s(len(PROMPT) // 4, 0.0)

    before_s = estimate_s()
    pair.answers.script = give_up
    assert read_text(await pair.gateway.run(STREAM)) == "local"
    assert len(pair.prompts.streams) == 1
    assert (estimate_s() > before_s) if is_patient else (estimate_s() == before_s)
    assert not pair.gateway.gateway._pool.fleet.list_troubled()
