"""A node from the outside: real sockets, real core processes, the executor double as model."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from contracts.codec import encode_request
from contracts.grant import seal_grant
from contracts.inference import (
    Accepted,
    ChatMessage,
    ChatPrompt,
    Delta,
    Failed,
    Finished,
    FinishReason,
    TextPrompt,
    Usage,
)
from contracts.wire import Abort, Open
from gpu_pool.engine.double_tokens import predict_tokens
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.wire import connection
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import (
    GatewayClient,
    ask,
    continue_text,
    failure_code,
    join_ids,
    join_text,
)
from tests.fixtures.node_process import MODEL, wait_until
from tests.fixtures.random_checkpoint import VOCAB_SIZE, create_tokenizer

TOKENIZER = create_tokenizer()
LONG = ask(MODEL, max_tokens=3500, ignore_eos=True)


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint) as running:
        yield running


@pytest.fixture
async def slow_node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint, "--step-s", "0.01") as running:
        yield running


def predict(model_text: ModelText, text: str, count: int) -> tuple[int, ...]:
    """What the double answers to a plain prompt."""
    ids = model_text.encoder.encode(TextPrompt(text=text), 4096).token_ids
    return predict_tokens(ids, count, vocab_size=VOCAB_SIZE)


async def test_the_text_is_that_of_the_tokens(node: DoubleNode, model_text: ModelText) -> None:
    expected = predict(model_text, "Grüße 🦖", 50)
    request = continue_text(MODEL, "Grüße 🦖", max_tokens=50, ignore_eos=True)
    async with GatewayClient(node.address) as client:
        events = await client.generate(request)
    assert join_ids(events) == expected
    assert join_text(events) == TOKENIZER.decode(list(expected))


async def test_a_stop_string_ends_the_answer_before_itself(
    node: DoubleNode, model_text: ModelText
) -> None:
    ids = predict(model_text, "Hello", 200)
    full = TOKENIZER.decode(list(ids))
    stop = full[60:64]
    request = continue_text(MODEL, "Hello", max_tokens=200, ignore_eos=True, stop=(stop,))
    async with GatewayClient(node.address) as client:
        events = await client.generate(request)
        last = events[-1]
        assert join_text(events) == full[: full.index(stop)]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.STOP
        assert last.usage.num_completion_tokens == len(join_ids(events))
        assert stop in TOKENIZER.decode(list(join_ids(events)))
        assert stop not in TOKENIZER.decode(list(join_ids(events)[:-1]))
        report = client.reports.get_nowait()
        while report.loads[0].num_free_blocks < report.loads[0].num_blocks:
            report = await asyncio.wait_for(client.reports.get(), 5)


async def test_an_open_ended_answer_ends_with_the_grant(node: DoubleNode) -> None:
    request = ask(MODEL, max_tokens=None, ignore_eos=True)
    async with GatewayClient(node.address) as client:
        events = await client.generate(request, max_total_tokens=100)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.LENGTH
    assert last.usage.num_prompt_tokens + last.usage.num_completion_tokens == 100


async def test_what_does_not_fit_is_refused_with_numbers(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        too_long = await client.generate(ask(MODEL, max_tokens=4090))
        beyond = await client.generate(ask(MODEL, max_tokens=100), max_total_tokens=50)
        long_prompt = await client.generate(continue_text(MODEL, "The quick brown fox. " * 2000))
    assert failure_code(too_long) == "context_too_long"
    assert isinstance(too_long[0], Failed)
    assert "4096" in too_long[0].error.message
    assert failure_code(beyond) == "forbidden"
    assert failure_code(long_prompt) == "context_too_long"


async def test_odd_requests_are_refused_and_the_engine_goes_on(node: DoubleNode) -> None:
    empty = ChatPrompt(messages=())
    odd_role = ChatPrompt(messages=(ChatMessage(role="<|im_end|>", content="x"),))
    good = ask(MODEL)
    async with GatewayClient(node.address) as client:
        for request in (
            continue_text(MODEL, ""),
            msgspec.structs.replace(good, prompt=empty),
            msgspec.structs.replace(good, prompt=odd_role),
            ask(MODEL, max_tokens=-1),
            ask(MODEL, temperature=float("nan")),
            ask(MODEL, stop=("",)),
        ):
            assert failure_code(await client.generate(request)) == "invalid_request"
        assert isinstance((await client.generate(good))[-1], Finished)


async def test_the_prompt_cache_is_the_accounts_own(node: DoubleNode) -> None:
    request = ask(MODEL, "The quick brown fox jumps. " * 20)
    async with GatewayClient(node.address) as client:
        first = await client.generate(request)
        other = await client.generate(request, cache_salt=b"t" * 32)
        again = await client.generate(request)
    cached = [e[0].num_cached_tokens for e in (first, other, again) if isinstance(e[0], Accepted)]
    assert cached[0] == cached[1] == 0
    assert cached[2] > 0


async def test_a_short_salt_is_refused(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        assert failure_code(await client.generate(ask(MODEL), cache_salt=b"")) == "forbidden"


async def test_the_end_of_a_connection_ends_its_streams(slow_node: DoubleNode) -> None:
    async with GatewayClient(slow_node.address) as watcher:
        async with GatewayClient(slow_node.address) as client:
            streams = [await client.open(LONG) for _ in range(3)]
            for stream in streams:
                assert isinstance(await stream.next(), Accepted)
            report = await asyncio.wait_for(watcher.reports.get(), 5)
            while report.loads[0].num_running < 3:
                report = await asyncio.wait_for(watcher.reports.get(), 5)
        while report.loads[0].num_running:
            report = await asyncio.wait_for(watcher.reports.get(), 5)
    await wait_until(lambda: slow_node.app.num_streams == 0)


async def test_a_stream_that_waits_for_a_place_can_be_aborted(slow_node: DoubleNode) -> None:
    async with GatewayClient(slow_node.address) as client:
        running = [await client.open(LONG) for _ in range(8)]
        for stream in running:
            assert isinstance(await stream.next(), Accepted)
        waiting = await client.open(LONG)
        await client.send(waiting, Abort())
        aborted = Finished(FinishReason.ABORTED, Usage(0, 0, 0))
        assert await waiting.read_all() == [aborted]
        busy = msgspec.structs.replace(LONG, reject_if_busy=True)
        assert failure_code(await client.generate(busy)) == "pool_saturated"


async def test_a_deadline_ends_a_running_stream(slow_node: DoubleNode) -> None:
    async with GatewayClient(slow_node.address) as client:
        deadline = int(time.time() * 1000) + 500
        events = await client.generate(LONG, deadline_unix_ms=deadline)
    assert isinstance(events[0], Accepted)
    assert failure_code(events) == "deadline_exceeded"
    last = events[-1]
    assert isinstance(last, Failed)
    assert last.usage is not None
    assert last.usage.num_prompt_tokens == events[0].num_prompt_tokens
    num_shown = len(join_ids(events))
    num_held = last.usage.num_completion_tokens - num_shown  # of text that was not complete yet
    assert num_shown > 0
    assert 0 <= num_held < 16


async def test_a_deadline_ends_a_stream_whose_core_hangs(slow_node: DoubleNode) -> None:
    os.kill(slow_node.core_pid, signal.SIGSTOP)
    try:
        async with GatewayClient(slow_node.address) as client:
            deadline = int(time.time() * 1000) + 300
            events = await client.generate(LONG, deadline_unix_ms=deadline)
    finally:
        os.kill(slow_node.core_pid, signal.SIGCONT)
    assert failure_code(events) == "deadline_exceeded"


async def test_a_deadline_ends_a_body_that_never_arrives(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        stream = client.expect(client.draw_stream_id())
        grant = client.create_grant(deadline_unix_ms=int(time.time() * 1000) + 200)
        opening = Open(seal_grant(grant, client.connection_key), 1000, 1, b"x")
        await client.send(stream, opening)
        assert failure_code(await stream.read_all()) == "deadline_exceeded"


async def test_a_killed_core_breaks_its_streams_at_once_and_comes_back(
    slow_node: DoubleNode,
) -> None:
    async with GatewayClient(slow_node.address) as client:
        streams = [await client.open(LONG) for _ in range(12)]  # some run, some wait
        accepted = await streams[0].next()
        assert isinstance(accepted, Accepted)
        killed_pid = slow_node.core_pid
        killed_s = time.monotonic()
        os.kill(killed_pid, signal.SIGKILL)
        answers = [await stream.read_all() for stream in streams]
        assert time.monotonic() - killed_s < 1
        assert {failure_code(events) for events in answers} == {"stream_broken"}
        first, last = answers[0][-1], answers[-1][-1]
        assert isinstance(first, Failed)
        assert isinstance(last, Failed)
        num_received = len(join_ids(answers[0]))
        assert first.usage is not None
        num_held_back = first.usage.num_completion_tokens - num_received
        assert 0 <= num_held_back < 4  # tokens of a character that was not complete
        assert first.usage.num_prompt_tokens == accepted.num_prompt_tokens
        assert last.usage is None  # it waited; nothing of it was computed
        assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)  # it waits
        assert slow_node.core_pid != killed_pid
        report = client.reports.get_nowait()
        seen = [report.loads[0].is_ready]
        while not client.reports.empty():
            seen.append(client.reports.get_nowait().loads[0].is_ready)
    assert False in seen
    assert seen[-1] is True


async def test_requests_wait_for_a_cold_model_within_bounds(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with (
        run_double_node(
            tmp_path, checkpoint, "--load-s", "1.5", is_ready=False, max_cold_wait_s=10.0
        ) as node,
        GatewayClient(node.address) as client,
    ):
        patient = await client.open(ask(MODEL))
        aborted = await client.open(ask(MODEL))
        hasty = msgspec.structs.replace(ask(MODEL), reject_if_busy=True)
        assert failure_code(await client.generate(hasty)) == "model_cold"
        soon = int(time.time() * 1000) + 200
        late = await client.generate(ask(MODEL), deadline_unix_ms=soon)
        assert failure_code(late) in {"deadline_exceeded", "model_cold"}
        await client.send(aborted, Abort())
        assert isinstance((await aborted.read_all())[-1], Finished)
        assert not node.is_ready
        assert isinstance((await patient.read_all())[-1], Finished)


async def test_a_model_that_takes_too_long_is_called_cold(tmp_path: Path, checkpoint: Path) -> None:
    async with (
        run_double_node(
            tmp_path, checkpoint, "--load-s", "30", is_ready=False, max_cold_wait_s=0.2
        ) as node,
        GatewayClient(node.address) as client,
    ):
        assert failure_code(await client.generate(ask(MODEL))) == "model_cold"


async def test_a_model_that_cannot_be_loaded_is_refused_at_once(
    tmp_path: Path, checkpoint: Path
) -> None:
    async with (
        run_double_node(tmp_path, checkpoint, "--fails", is_ready=False) as node,
        GatewayClient(node.address) as client,
    ):
        assert failure_code(await client.generate(ask(MODEL))) in ("model_cold", "model_failed")
        started_s = time.monotonic()
        assert failure_code(await client.generate(ask(MODEL))) == "model_failed"
        assert time.monotonic() - started_s < 1
        report = await asyncio.wait_for(client.reports.get(), 5)
        while not report.failed:
            report = await asyncio.wait_for(client.reports.get(), 5)
        assert [model.reason for model in report.failed] == ["the checkpoint is broken"]
        assert report.models == report.loads == ()
        async with aiohttp.ClientSession() as session:
            async with session.get(node.address.url + "/health/ready") as answer:
                states = [{"name": MODEL, "state": "failed"}]  # nothing of files to strangers
                place = {"region": "local", "jurisdiction": ""}
                expected = {"status": "failed", **place, "models": states}
                assert (answer.status, await answer.json()) == (503, expected)
            async with session.get(node.address.url + "/health/live") as answer:
                assert answer.status == 200


async def test_an_answer_begins_while_another_prompt_is_being_read(node: DoubleNode) -> None:
    async with GatewayClient(node.address) as client:
        long = await client.open(continue_text(MODEL, "The quick brown fox. " * 50_000))
        short = await client.generate(ask(MODEL))
        assert isinstance(short[-1], Finished)
        assert failure_code(await long.read_all()) == "context_too_long"


async def test_streams_of_one_connection_have_a_limit(
    node: DoubleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_STREAMS", 2)
    async with GatewayClient(node.address) as client:
        streams = [await client.open(LONG) for _ in range(2)]
        assert failure_code(await client.generate(ask(MODEL))) == "pool_saturated"
        for stream in streams:
            await client.send(stream, Abort())
            await stream.read_all()
        assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)


async def test_unfinished_bodies_of_one_connection_have_a_limit(
    node: DoubleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNFINISHED_BYTES", 1500)
    async with GatewayClient(node.address) as client:
        for expected in (None, "pool_saturated"):
            stream = client.expect(client.draw_stream_id())
            sealed = seal_grant(client.create_grant(), client.connection_key)
            await client.send(stream, Open(sealed, 1000, 1, b"x"))
            if expected:
                assert failure_code(await stream.read_all()) == expected
        body = encode_request(ask(MODEL))
        assert isinstance((await client.generate(body))[-1], Finished)


async def test_draining_lets_streams_finish_and_takes_no_new_ones(slow_node: DoubleNode) -> None:
    async with GatewayClient(slow_node.address) as client:
        running = await client.open(ask(MODEL, max_tokens=20, ignore_eos=True))
        assert isinstance(await running.next(), Accepted)
        slow_node.server.parts.status.start_draining()
        assert failure_code(await client.generate(ask(MODEL))) == "pool_saturated"
        events = await running.read_all()
        assert sum(isinstance(event, Delta) for event in events) > 0
        assert isinstance(events[-1], Finished)
        while not (await asyncio.wait_for(client.reports.get(), 5)).is_draining:
            pass
