"""What an engine of others sends harms at most the answer that it belongs to.

Bytes that no HTTP server would send on purpose, figures that lie, and more at once than was agreed.
Read next: `tests.fixtures.scripted_engine`.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.codec import encode_request
from contracts.grant import RetentionClass, seal_grant
from contracts.inference import (
    CountTokensRequest,
    Delta,
    Failed,
    Finished,
    FinishReason,
    SchemaConstraint,
    TokensCounted,
    Usage,
)
from contracts.wire import Abort, Open, encode_frame
from gpu_pool.server.upstream.engine_metrics import read_metrics
from gpu_pool.server.upstream.traits import TRAITS
from gpu_pool.upstream_settings import EngineKind
from tests.fixtures.fleet_node import FleetNode
from tests.fixtures.gateway_client import (
    MANY,
    GatewayClient,
    Stream,
    ask,
    failure_code,
    join_text,
)
from tests.fixtures.node_process import fetch_status, wait_until
from tests.fixtures.scripted_engine import (
    GOOD,
    HEAD,
    ScriptedEngine,
    event_of,
    page,
    page_of,
    run_scripted_engine,
    say,
    stream_of,
)
from tests.gpu_pool.server.upstream.conftest import address_of, start_node


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@asynccontextmanager
async def run_pair(
    folder: Path, stack: ExitStack, **options: str
) -> AsyncGenerator[tuple[ScriptedEngine, FleetNode, GatewayClient]]:
    """An engine, a node in front of it, and a gateway's end."""
    async with run_scripted_engine() as engine:
        upstream = engine.write_upstream(**options)
        node = await asyncio.to_thread(start_node, folder, "node-1", upstream)
        stack.callback(node.reap)
        async with GatewayClient(address_of(node)) as client:
            yield engine, node, client


async def wait_status(node: FleetNode, status: int, timeout_s: float = 20) -> None:
    """Until the node is ready, or is not."""
    url = address_of(node).url + "/health/ready"
    await wait_until(lambda: fetch_status(url) == status, timeout_s=timeout_s)


BROKEN = {
    "an id beyond the wire": event_of(say("x", token_ids=[2**70])),
    "an id just beyond": event_of(say("x", token_ids=[2**31])),
    "a negative id": event_of(say("x", token_ids=[-1])),
    "scores without end": event_of(
        say("x", logprobs={"tokens": [""] * 5000, "token_logprobs": [0] * 5000})
    ),
    "half a character": b'data: {"choices":[{"index":0,"delta":{"content":"\xc3"}}]}\n\n',
    "a lone surrogate": b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}\n\n',
    "a number that is none": b'data: {"choices":[{"logprobs":{"content":[{"token":"x",'
    b'"logprob":1e999}]}}]}\n\n',
}
WHOLE = {
    "a byte order mark": HEAD + b"\xef\xbb\xbf" + b"".join(GOOD),
    "no spaces and other ends of lines": HEAD
    + b"".join(GOOD).replace(b"data: ", b"data:").replace(b"\n", b"\r\n"),
    "comments and other fields": HEAD + b": hi\n\n" + b"event: x\nid: 3\nretry: 5\n".join(GOOD),
    "nothing but the end of the connection": HEAD.replace(b"1.1", b"1.0") + b"".join(GOOD),
    "words after the end": stream_of(*GOOD[:2], event_of(say("more")), GOOD[2]),
}


async def test_odd_events_break_their_own_answer_alone(tmp_path: Path, stack: ExitStack) -> None:
    async with run_pair(tmp_path, stack) as (engine, _, client):
        engine.hold = asyncio.Event()
        other = await client.open(ask(client.address.model, "other"))
        await wait_until(lambda: engine.num_open == 1)
        held, engine.hold = engine.hold, None
        for what, event in BROKEN.items():
            engine.stream = stream_of(event, *GOOD)
            events = await client.generate(ask(client.address.model))
            assert failure_code(events) == "stream_broken", what
        for what, stream in WHOLE.items():
            engine.stream = stream
            events = await client.generate(ask(client.address.model))
            assert join_text(events) == "Hello world", what
            assert isinstance(events[-1], Finished), what
        held.set()
        assert isinstance((await other.read_all())[-1], Finished)
    with pytest.raises(OverflowError):  # the control: it would have ended the gateway's connection
        encode_frame([(1, 0, Delta("x", (2**70,)))])


@pytest.mark.parametrize("is_one_frame", [True, False])
async def test_no_more_requests_are_sent_than_the_engine_may_have(
    tmp_path: Path, stack: ExitStack, is_one_frame: bool
) -> None:
    async with run_pair(tmp_path, stack, max_running="7") as (engine, _, client):
        engine.hold = asyncio.Event()
        if is_one_frame:
            streams = await open_together(client, 300)
        else:
            streams = [await client.open(ask(client.address.model)) for _ in range(300)]
        refused = [stream for stream in streams if await is_refused(stream)]
        assert len(refused) == 293
        engine.hold.set()
        served = [stream for stream in streams if stream not in refused]
        ends = [(await stream.read_all())[-1] for stream in served]
        assert all(isinstance(end, Finished) for end in ends)
        assert engine.most_open == 7  # as many as were allowed, so that the limit was reached
        again = await client.generate(ask(client.address.model))
        assert isinstance(again[-1], Finished)  # all room has been given back


async def open_together(client: GatewayClient, count: int) -> list[Stream]:
    """Requests that come in one frame."""
    body, frame = encode_request(ask(client.address.model)), []
    streams = [client.expect(client.draw_stream_id()) for _ in range(count)]
    for stream in streams:
        sealed = seal_grant(client.create_grant(), client.connection_key)
        frame.append((stream.stream_id, 0, Open(sealed, len(body), MANY, body)))
    await client.send_frame(encode_frame(frame))
    return streams


async def is_refused(stream: Stream) -> bool:
    """Whether the stream is over before the engine has said a word."""
    try:
        event = await stream.next(0.5)
    except TimeoutError:
        return False
    assert isinstance(event, Failed)
    assert event.error.code == "pool_saturated"
    return True


async def test_who_leaves_at_once_leaves_no_room_taken(tmp_path: Path, stack: ExitStack) -> None:
    async with run_pair(tmp_path, stack, max_running="3") as (engine, node, client):
        engine.hold = asyncio.Event()
        for _ in range(5):
            async with GatewayClient(client.address) as passing:
                await open_together(passing, 20)
        await wait_until(lambda: engine.num_open == 0)
        await asyncio.sleep(0.5)  # the node's tasks end a little after their connections
        engine.hold = None
        for _ in range(5):
            assert isinstance((await client.generate(ask(client.address.model)))[-1], Finished)
        assert "never awaited" not in (node.folder / "node.log").read_text()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_who_leaves_while_the_prompt_is_computed_has_it_to_pay(
    tmp_path: Path, stack: ExitStack, *, is_taken: bool
) -> None:
    """Nobody knows its length yet: a token for four bytes. Not yet taken up, it costs nothing."""
    async with run_pair(tmp_path, stack) as (engine, _, client):
        engine.hold, engine.first = asyncio.Event(), HEAD if is_taken else b""
        stream = await client.open(ask(client.address.model, "x" * 400))
        await wait_until(lambda: engine.num_open == 1)
        await asyncio.sleep(0.3)  # the head has come, if it comes
        await client.send(stream, Abort())
        last = (await stream.read_all())[-1]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.ABORTED
        assert last.usage == Usage(101 if is_taken else 0, 0, 0)
        await wait_until(lambda: engine.num_open == 0)


async def test_the_engines_key_is_in_no_refusal(tmp_path: Path, stack: ExitStack) -> None:
    key = tmp_path / "key"
    key.write_text("open-sesame\n")
    key.chmod(0o600)
    async with run_pair(tmp_path, stack, api_key_file=f'"{key}"') as (engine, node, client):
        words = {"message": "Bearer open-sesame may not do this", "code": 400}
        for answer in (page_of({"error": words}, 400), stream_of(event_of(error=words))):
            engine.stream = answer
            (failed,) = await client.generate(ask(client.address.model))
            assert isinstance(failed, Failed)
            assert failed.error.message == "Bearer … may not do this"
        engine.trial = lambda body: page(b"Bearer open-sesame\n\x1b[31m is out of date", 402)
        engine.stream = b""
        await client.generate(ask(client.address.model))  # cut off, so that it is tried out again
        await wait_status(node, 503)
    assert "open-sesame" not in (node.folder / "node.log").read_text()


async def test_prompts_are_counted_only_where_they_may_go(tmp_path: Path, stack: ExitStack) -> None:
    async with run_pair(tmp_path, stack) as (engine, _, client):
        engine.pages["/tokenize"] = page_of({"count": 5})
        prompt = ask(client.address.model, "secret").prompt
        request = CountTokensRequest(model=client.address.model, prompt=prompt)
        refused = await client.generate(request, retention=RetentionClass.NONE)
        assert failure_code(refused) == "no_endpoint"
        assert "secret" not in str(engine.trials)
        counted = await client.generate(request)  # the control
        assert counted[0] == TokensCounted(5)


async def test_zero_is_no_count(tmp_path: Path, stack: ExitStack) -> None:
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    async with run_pair(tmp_path, stack) as (engine, _, client):
        engine.stream = stream_of(*[event_of(say("w "))] * 5, GOOD[1], event_of(usage=nothing))
        last = (await client.generate(ask(client.address.model)))[-1]
        assert isinstance(last, Finished)
        assert last.usage == Usage(2, 0, 6)
        engine.stream = stream_of(*GOOD)  # the control: what is told counts
        last = (await client.generate(ask(client.address.model)))[-1]
        assert isinstance(last, Finished)
        assert last.usage == Usage(3, 0, 2)


async def test_metrics_without_end_are_not_read_and_cost_nothing_else(
    tmp_path: Path, stack: ExitStack
) -> None:
    async with run_pair(tmp_path, stack) as (engine, _, client):
        name = b"vllm:num_requests_running"
        for text in (
            name + b'{a="' + b'\\"' * 1_900_000 + b'"} 1\n',
            (name + b" 9e99\n") * 130_000,
            b"# more than a page\n" * 300_000,
            name + b" \xff\n",
        ):
            engine.pages["/metrics"] = page(text)
            for _ in range(3):
                await asyncio.sleep(0.2)
                events = await client.generate(ask(client.address.model))
                assert isinstance(events[-1], Finished)


def test_what_is_no_metric_in_order_is_refused_before_it_is_parsed() -> None:
    names = TRAITS[EngineKind.VLLM].metrics
    assert names is not None
    for text in (
        f'{names.num_running}{{a="' + '\\"' * 3000 + '"} 1\n',
        f"{names.num_running} 1\n" * 20_000,
    ):
        with pytest.raises(ValueError, match="more than"):
            read_metrics(text, names, "x")
    load = read_metrics(f"{names.num_running} 9e99\n" * 1000, names, "x")  # the control
    assert load is not None
    assert load.num_running == 2**31


def refuse_salts(body: dict[str, Any]) -> bytes:
    """As servers do that refuse every field they do not know."""
    if "cache_salt" in body:
        return page_of({"error": {"message": "Unrecognized request argument"}}, 400)
    return page_of({"choices": []})


async def test_an_engine_that_refuses_every_salt_has_not_read_one(
    tmp_path: Path, stack: ExitStack
) -> None:
    async with run_pair(tmp_path, stack) as (engine, node, client):
        engine.trial = refuse_salts
        engine.pages["/health"] = page(b"", 500)
        await wait_status(node, 503)
        del engine.pages["/health"]  # it is back, as something else
        events = await client.generate(ask(client.address.model))
        assert failure_code(events) == "model_cold"
        log, words = node.folder / "node.log", "refuses a request with a salt"
        await wait_until(lambda: words in log.read_text())
        engine.trial = None  # the control
        await wait_status(node, 200)


async def test_an_answer_that_breaks_off_brings_the_trial_forward(
    tmp_path: Path, stack: ExitStack
) -> None:
    """An engine that was started anew between two looks would be known a minute later else."""
    async with run_pair(tmp_path, stack) as (engine, node, client):
        engine.trial = lambda body: page_of({"choices": []})  # reads no salts
        await asyncio.sleep(1.5)
        assert isinstance((await client.generate(ask(client.address.model)))[-1], Finished)
        engine.stream = HEAD
        assert failure_code(await client.generate(ask(client.address.model))) == "stream_broken"
        await wait_status(node, 503)
        assert "does not read `cache_salt`" in (node.folder / "node.log").read_text()


async def test_a_full_engine_is_not_taken_for_another(tmp_path: Path, stack: ExitStack) -> None:
    async with run_pair(tmp_path, stack) as (engine, node, client):
        num_before = len(engine.trials)
        engine.trial = lambda body: page(b"", 503)
        engine.stream = HEAD
        await client.generate(ask(client.address.model))
        # The control: it was asked, and more than once.
        await wait_until(lambda: len(engine.trials) >= num_before + 3, timeout_s=20)
        assert all(trial["cache_salt"] == 0 for trial in engine.trials[num_before:])
        engine.stream = stream_of(*GOOD)
        assert isinstance((await client.generate(ask(client.address.model)))[-1], Finished)
        assert fetch_status(address_of(node).url + "/health/live") == 200


async def test_a_constraint_adds_no_fields(tmp_path: Path, stack: ExitStack) -> None:
    async with run_pair(tmp_path, stack) as (engine, _, client):
        plain = ask(client.address.model)
        for schema in ('{"type":"object"}, "model": "x"', '{"a": 1e999}', '{"a":' * 5000):
            request = msgspec.structs.replace(plain, constraint=SchemaConstraint(schema=schema))
            assert failure_code(await client.generate(request)) == "invalid_request"
        assert engine.bodies == []
        request = msgspec.structs.replace(plain, constraint=SchemaConstraint(schema='{"b": 2}'))
        assert isinstance((await client.generate(request))[-1], Finished)  # the control
        assert engine.bodies[0]["response_format"]["json_schema"]["schema"] == {"b": 2}
