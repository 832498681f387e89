"""Engines of others that are gone, full, broken or hostile harm the requests that they have."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contracts.fleet import NodeReport
from contracts.inference import Delta, Failed, Finished, FinishReason, GenerationEvent
from contracts.wire import Abort
from gpu_pool.server.upstream.relay import TEMPLATE_TOKENS
from tests.fixtures.engine_process import EngineProcess, run_engine
from tests.fixtures.fleet_node import FleetNode
from tests.fixtures.gateway_client import GatewayClient, NodeAddress, ask, failure_code, join_text
from tests.fixtures.node_process import fetch_status, wait_until
from tests.gpu_pool.server.upstream.conftest import address_of, start_node

Pair = tuple[EngineProcess, NodeAddress]
Run = Callable[..., tuple[EngineProcess, FleetNode]]
LONG = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """An engine that is told to misbehave, and behaves again after each test."""
    with run_engine("vllm") as engine, ExitStack() as stack:
        upstream = engine.write_upstream(silence_s=1.0)
        node = start_node(tmp_path_factory.mktemp("node"), "node-1", upstream)
        stack.callback(node.reap)
        yield engine, address_of(node)


@pytest.fixture
def hurt(shared: Pair) -> Iterator[Pair]:
    yield shared
    shared[0].behave("")


async def generate(address: NodeAddress, text: str = "Hello") -> list[GenerationEvent]:
    async with GatewayClient(address) as client:
        return await client.generate(ask(address.model, text))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("400", "invalid_request"),
        ("422", "invalid_request"),
        ("401", "model_failed"),
        ("404", "model_failed"),
        ("413", "payload_too_large"),
        ("418", "model_failed"),
        ("429", "pool_saturated"),
        ("503", "pool_saturated"),
        ("500", "stream_broken"),
        ("redirect", "model_failed"),
        ("page", "stream_broken"),
    ],
)
async def test_a_refusal_is_whose_fault_it_is(hurt: Pair, status: str, code: str) -> None:
    engine, address = hurt
    engine.behave(status)
    events = await generate(address)
    assert failure_code(events) == code
    assert len(events) == 1
    assert events[0] == Failed(events[0].error, None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "mode",
    ["no json", "nested", "other choice", "given up", "negative", "error", "cut", "silent"],
)
async def test_half_an_answer_ends_with_an_error_and_is_counted(hurt: Pair, mode: str) -> None:
    engine, address = hurt
    engine.behave(mode)
    async with GatewayClient(address) as client:
        other = await client.open(ask(address.model, "other"))
        events = await client.generate(ask(address.model))
        await other.read_all()
    last = events[-1]
    assert failure_code(events) == "stream_broken"
    assert isinstance(last, Failed)
    assert "secret" not in last.error.message
    if mode == "silent":
        assert last.usage is None
    else:
        assert last.usage is not None
        assert (last.usage.num_prompt_tokens, last.usage.num_completion_tokens) == (2, 3)
        assert join_text(events) == "xxx"


@pytest.mark.parametrize("mode", ["endless line", "endless"])
async def test_an_answer_without_end_is_cut_off_and_others_go_on(hurt: Pair, mode: str) -> None:
    engine, address = hurt
    engine.behave(mode)
    async with GatewayClient(address) as client:
        events = await client.generate(ask(address.model))
        assert failure_code(events) == "stream_broken"
        engine.behave("")
        assert isinstance((await client.generate(ask(address.model)))[-1], Finished)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert sum(len(delta.text) for delta in deltas) < 2**20
    await wait_until(lambda: engine.see()["num_running"] == 0)


async def test_an_engine_is_believed_no_more_than_the_request_could_use(hurt: Pair) -> None:
    engine, address = hurt
    engine.behave("greedy")
    last = (await generate(address))[-1]
    assert isinstance(last, Finished)
    assert last.usage.num_completion_tokens == 8
    body = next(one for one in reversed(engine.see_requests()) if one["messages"])
    assert len(str(body)) < 2000
    assert TEMPLATE_TOKENS < last.usage.num_prompt_tokens < TEMPLATE_TOKENS + 2000
    last = (await generate(address, "x" * 20_000))[-1]
    assert isinstance(last, Finished)
    assert last.usage.num_prompt_tokens == 8192  # the engine's context


async def test_what_follows_the_end_is_not_waited_for(hurt: Pair) -> None:
    engine, address = hurt
    engine.behave("after the end")
    async with asyncio.timeout(15):
        last = (await generate(address))[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.STOP
    assert last.usage.num_completion_tokens == 2
    await wait_until(lambda: engine.see()["num_running"] == 0)


async def test_an_answer_that_is_whole_is_no_failure_for_want_of_its_count(hurt: Pair) -> None:
    engine, address = hurt
    engine.behave("cut at the end")
    last = (await generate(address))[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.num_completion_tokens) == (FinishReason.STOP, 4)


async def test_connections_to_the_engine_are_used_again(shared: Pair) -> None:
    engine, address = shared
    num_before = engine.see()["num_connections"]
    async with GatewayClient(address) as client:
        for number in range(12):
            assert isinstance(
                (await client.generate(ask(address.model, f"n{number}")))[-1], Finished
            )
            await asyncio.sleep(0.02)
    assert engine.see()["num_connections"] - num_before <= 6


async def test_who_leaves_is_missed_by_the_engine_at_once(shared: Pair) -> None:
    engine, address = shared
    num_cut = engine.see()["num_cut"]
    async with GatewayClient(address) as client:
        stream = await client.open(ask(address.model, **LONG))
        while not isinstance(event := await stream.next(), Delta):
            pass
        assert engine.see()["num_running"] == 1
        await client.send(stream, Abort())
        last = (await stream.read_all())[-1]
        await wait_until(lambda: engine.see()["num_running"] == 0, timeout_s=2)
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.ABORTED
    assert 0 < last.usage.num_completion_tokens < 3000
    assert engine.see()["num_cut"] == num_cut + 1
    assert event.text


async def test_a_lost_connection_to_the_gateway_ends_its_requests_there(shared: Pair) -> None:
    engine, address = shared
    async with GatewayClient(address) as client:
        stream = await client.open(ask(address.model, **LONG))
        while not isinstance(await stream.next(), Delta):
            pass
    await wait_until(lambda: engine.see()["num_running"] == 0, timeout_s=2)


async def test_an_engine_that_dies_fails_its_streams_and_serves_again_when_it_is_back(
    run: Run,
) -> None:
    engine, node = run("vllm", "--token-s", "0.02")
    address = address_of(node)
    ready = address.url + "/health/ready"
    async with GatewayClient(address) as client:
        stream = await client.open(ask(address.model, **LONG))
        for _ in range(4):
            await stream.next()
        engine.reap()
        events = await stream.read_all()
        assert failure_code(events) == "stream_broken"
        last = events[-1]
        assert isinstance(last, Failed)
        assert last.usage is not None
        assert last.usage.num_completion_tokens >= 3
        code = failure_code(await client.generate(ask(address.model)))
        assert code in ("node_unreachable", "model_cold")
        await wait_until(lambda: fetch_status(ready) == 503)
        engine.start()
        await wait_until(lambda: fetch_status(ready) == 200)
        assert isinstance((await client.generate(ask(address.model)))[-1], Finished)


async def test_an_engine_started_anew_as_something_else_is_checked_again(run: Run) -> None:
    engine, node = run("vllm")
    address = address_of(node)
    engine.reap()
    await wait_until(lambda: fetch_status(address.url + "/health/ready") == 503)
    engine.arguments = ("--no-reads-salts",)
    engine.start()
    log = node.folder / "node.log"
    await wait_until(lambda: "does not read `cache_salt`" in log.read_text(), timeout_s=20)
    assert failure_code(await generate(address)) == "model_cold"
    assert engine.see_requests() == []


async def test_the_load_is_the_engines_own_and_this_nodes(run: Run) -> None:
    engine, node = run("vllm", "--token-s", "0.05", max_running=3)
    address = address_of(node)
    async with GatewayClient(address) as client:
        streams = [await client.open(ask(address.model, **LONG)) for _ in range(3)]
        for stream in streams:
            await stream.next()
        assert failure_code(await client.generate(ask(address.model))) == "pool_saturated"
        load = (await wait_report(client)).loads[0]
        assert (load.num_running, load.num_waiting, load.max_running) == (3, 0, 3)
        assert (load.num_blocks, load.num_free_blocks, load.block_size) == (1000, 750, 16)
        assert load.num_preempted == 3
        assert load.decode_tokens_per_s > 0
        assert load.decode_step_s > 0
        for stream in streams:
            await client.send(stream, Abort())
            await stream.read_all()
        engine.behave("queueing")  # by others, whom this node does not know
        async with asyncio.timeout(10):
            while (await wait_report(client)).loads[0].num_waiting != 7:
                pass


async def wait_report(client: GatewayClient) -> NodeReport:
    """A report that was made after all that has happened."""
    await asyncio.sleep(0.3)
    while not client.reports.empty():
        client.reports.get_nowait()
    return await asyncio.wait_for(client.reports.get(), 5)


def test_a_key_that_others_can_read_is_refused_at_the_start(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("open")
    key.chmod(0o644)
    engine = EngineProcess("vllm")
    upstream = engine.write_upstream(api_key_file=key)
    node = start_node(tmp_path, "node-1", upstream, is_awaited=False)
    assert node.process is not None
    assert node.process.wait(60) != 0
    assert "can be read by others" in (node.folder / "node.log").read_text()
