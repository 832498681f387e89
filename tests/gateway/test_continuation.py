"""A node that is lost in the middle of an answer: another goes on, and nobody sees the seam."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import (
    InvalidRequest,
    InvariantBroken,
    PoolSaturated,
    ServiceError,
    StreamBroken,
)
from contracts.ids import NodeId
from contracts.inference import (
    RESUMPTION,
    Accepted,
    Delta,
    Finished,
    FinishReason,
    Resumption,
    Usage,
)
from gateway.errors import find_row
from gateway.routing.fleet import Fleet
from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import (
    Reply,
    RunningGateway,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import Script, ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_money import wait_for_records
from tests.gateway.test_usage_of_failures import read_tokens

STREAM: dict[str, Any] = {"prompt": "Hi", "stream": True}
SAMPLED = STREAM | {"temperature": 0.7}


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    """Two nodes, the first of which is chosen first."""
    async with run_node("node-1", "weur") as first, run_node("node-2", "weur") as second:
        yield [first, second]


@pytest.fixture
async def pair(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway before both nodes, which loses patience soon."""
    routing = {"resume_patience_s": 0.5}
    async with run_gateway(tmp_path, database_template, nodes, routing=routing) as gateway:

        async def have_reported() -> bool:
            reply = await gateway.send(
                "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
            )
            return all(node["region"] for node in reply.json["result"])

        await wait_until_async(have_reported)
        yield gateway


@pytest.fixture
def blamed(monkeypatch: pytest.MonkeyPatch) -> list[NodeId]:
    """The nodes whose failures are counted, in order."""
    found: list[NodeId] = []
    note = Fleet.note_failure

    def note_failure(fleet: Fleet, node_id: NodeId, owner: int = 0) -> None:
        found.append(node_id)
        note(fleet, node_id, owner)

    monkeypatch.setattr(Fleet, "note_failure", note_failure)
    return found


def begin_and_lose(node: ScriptedNode, error: ServiceError | Finished | None = None) -> Script:
    """A node that says `Hal` and is gone, or fails, or gives up."""

    async def script(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 4))
        await asyncio.sleep(0.2)  # the client has been told 200 then
        await stream.put(Delta("Ha", (11,)))
        await stream.put(Delta("l", (12, 13)))
        if error is None:
            node.drop_connections()
        elif isinstance(error, ServiceError):
            await stream.fail(error)
        else:
            await stream.put(error)

    return script


async def go_on(stream: ScriptedStream) -> None:
    """A node that knows the rest; it counts the whole answer."""
    await stream.put(Accepted(7, 0))
    await stream.put(Delta("lo", (14,)))
    await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 4)))


def read_text(reply: Reply) -> str:
    """The text of a stream that must be complete."""
    assert reply.status == 200
    assert reply.events[-1] == "[DONE]", reply.events
    return "".join(event.get("response", "") for event in reply.events[:-1])


GIVEN_UP = Finished(FinishReason.ABORTED, Usage(7, 4, 3))


@pytest.mark.parametrize(
    "error",
    [None, StreamBroken("The engine died."), GIVEN_UP],
    ids=["gone", "failed", "gave up"],
)
async def test_another_node_goes_on_and_the_client_pays_for_one_answer(
    pair: RunningGateway, nodes: list[ScriptedNode], error: ServiceError | Finished | None
) -> None:
    nodes[0].script, nodes[1].script = begin_and_lose(nodes[0], error), go_on
    reply = await pair.run(SAMPLED)
    assert read_text(reply) == "Hallo"
    usage = [event["usage"] for event in reply.events[:-1] if event.get("usage")][-1]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 4)
    (first,), (second,) = nodes[0].streams, nodes[1].streams
    assert first.request.resumption is None
    assert second.request.resumption == Resumption(token_ids=(11, 12, 13), num_text_chars=3)
    assert first.request.sampling == second.request.sampling
    assert first.request.sampling.seed is not None  # drawn by the gateway, for both
    assert second.request.prompt == first.request.prompt
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.grant.deadline_unix_ms == second.grant.deadline_unix_ms
    await wait_until_async(lambda: has_tokens(pair, {"prompt": 14, "completion": 4}))


async def has_tokens(gateway: RunningGateway, wanted: dict[str, int]) -> bool:
    """True when the nodes are known to have computed so much."""
    return all([await read_tokens(gateway, kind) == count for kind, count in wanted.items()])


async def test_an_answer_of_several_choices_ends_with_a_clean_error(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script, nodes[1].script = begin_and_lose(nodes[0]), go_on
    message = {"role": "user", "content": "Hi"}
    body = {"model": nodes[0].models[0], "messages": [message], "stream": True}
    reply = await pair.chat(body | {"n": 2})
    assert nodes[1].streams == []
    assert reply.events[-1]["error"]["message"].endswith(".")
    await pair.wait_until_ready()
    await pair.chat(body)  # the control: a single choice is resumed
    assert len(nodes[1].streams) == 1


async def test_half_an_answer_of_an_engine_of_others_ends_with_a_clean_error(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    """Its text did not come from tokens that we know: another node would not find the seam."""
    broken = begin_and_lose(nodes[0], StreamBroken("The engine died."))

    async def break_or_go_on(stream: ScriptedStream) -> None:
        await (broken(stream) if stream.request.resumption is None else go_on(stream))

    for node in nodes:
        node.script, node.engine = break_or_go_on, "vllm"
        await node.send_report()
    reply = await pair.run(STREAM)
    assert reply.events[-1]["errors"][0]["code"] == 7502
    assert "".join(event.get("response", "") for event in reply.events[:-1]) == "Hal"
    assert sum(len(node.streams) for node in nodes) == 1
    await wait_until_async(lambda: has_tokens(pair, {"prompt": 7, "completion": 3}))
    for node in nodes:
        node.engine = ""
        await node.send_report()
    assert read_text(await pair.run(STREAM)) == "Hallo"  # the control: tokens of our own engine


async def test_what_no_other_node_could_do_better_ends_the_answer(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script = begin_and_lose(nodes[0], InvalidRequest("Not this way."))
    reply = await pair.run(STREAM)
    assert reply.events[-1] != "[DONE]"
    assert nodes[1].streams == []


async def test_without_another_node_the_answer_ends_with_an_error_and_is_paid_as_far_as_it_came(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def lose_for_good(stream: ScriptedStream) -> None:
        nodes[0].is_draining = nodes[1].is_draining = True  # also when the gateway is back
        await nodes[1].send_report()
        await begin_and_lose(nodes[0])(stream)

    nodes[0].script = lose_for_good
    reply = await pair.run(STREAM)
    assert [event.get("response") for event in reply.events[:2]] == ["Ha", "l"]
    assert reply.events[-1]["errors"][0]["code"] == 7502
    await wait_until_async(lambda: has_tokens(pair, {"prompt": 7, "completion": 3}))


@pytest.mark.parametrize("num_choices", [1, 2], ids=["one goes on", "several end"])
async def test_a_node_that_breaks_off_answers_is_left_alone(
    pair: RunningGateway, nodes: list[ScriptedNode], num_choices: int
) -> None:
    """Also where nobody can go on: those are no successes, which would prove it to be well."""

    async def answer(stream: ScriptedStream) -> None:
        is_begun = stream.request.resumption is not None
        await (go_on(stream) if is_begun else stream.answer("Hallo"))

    nodes[0].script = begin_and_lose(nodes[0], StreamBroken("The engine died."))
    nodes[1].script = answer
    message = {"role": "user", "content": "Hi"}
    body = {"model": nodes[0].models[0], "messages": [message], "stream": True, "n": num_choices}
    replies = [await pair.chat(body) for _ in range(30)]
    num_whole = sum(reply.events[-1] == "[DONE]" for reply in replies)
    assert 5 <= len(nodes[0].streams) < 15  # its breaker counts them
    assert num_whole == (30 if num_choices == 1 else 30 - len(nodes[0].streams))


async def test_a_node_that_cannot_go_on_is_followed_by_one_that_can(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def refuse_once(stream: ScriptedStream) -> None:
        if len(nodes[1].streams) == 1:
            await stream.fail(PoolSaturated("Full."))
        else:
            await go_on(stream)

    async def break_or_go_on(stream: ScriptedStream) -> None:
        script = begin_and_lose(nodes[0], StreamBroken("Gone."))
        await (script(stream) if stream.request.resumption is None else go_on(stream))

    nodes[0].script, nodes[1].script = break_or_go_on, refuse_once
    assert read_text(await pair.run(STREAM)) == "Hallo"
    assert [stream.attempt for stream in nodes[1].streams] == [2]
    assert [stream.attempt for stream in nodes[0].streams] == [1, 3]


async def test_a_late_word_of_the_lost_node_reaches_nobody(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    late = asyncio.Event()

    async def thaw(stream: ScriptedStream) -> None:
        await begin_and_lose(nodes[0], StreamBroken("Frozen."))(stream)
        await late.wait()
        await stream.put(Delta("LATE", (99,)))

    async def go_on_slowly(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        late.set()
        await asyncio.sleep(0.2)
        await stream.put(Delta("lo", (14,)))
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 4)))

    nodes[0].script, nodes[1].script = thaw, go_on_slowly
    assert read_text(await pair.run(STREAM)) == "Hallo"


async def test_a_client_that_leaves_after_the_seam_aborts_the_second_node(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def hold(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("lo", (14,)))
        await stream.confirm_abort(4)

    nodes[0].script, nodes[1].script = begin_and_lose(nodes[0]), hold
    async with connect(pair) as (reader, writer):
        writer.write(format_request(pair, STREAM))
        await reader.readuntil(b'"lo"')
        assert not nodes[1].streams[0].aborted.is_set()
    await wait_until(nodes[1].streams[0].aborted.is_set, timeout_s=20)


async def test_an_account_bound_to_a_region_is_never_continued_elsewhere(
    tmp_path: Path, database_template: Path
) -> None:
    routing = {"resume_patience_s": 0.3}
    async with run_node("node-1", "weur") as home, run_node("node-2", "enam") as abroad:
        nodes = [home, abroad]
        async with run_gateway(tmp_path, database_template, nodes, routing=routing) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            bound = await gateway.add_tenant(regions=["weur"])
            home.script = begin_and_lose(home, StreamBroken("Gone."))
            abroad.script = go_on
            reply = await gateway.run(STREAM, tenant=bound)
            assert abroad.streams == []
            assert reply.events[-1]["errors"][0]["code"] == 7502
            assert all(stream.grant.regions == ("weur",) for stream in home.streams)
            assert read_text(await gateway.run(STREAM)) == "Hallo"  # the control


async def are_known(gateway: RunningGateway, count: int) -> bool:
    """True when so many nodes have said where they are."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    return sum(bool(node["region"]) for node in reply.json["result"]) == count


async def test_headers_narrow_the_regions_and_explain_the_choice(
    tmp_path: Path, database_template: Path
) -> None:
    async with (
        run_node("node-1", "weur") as home,
        run_node("node-2", "enam") as abroad,
        run_gateway(tmp_path, database_template, [home, abroad]) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 2))
        path = gateway.account_path(f"/ai/run/{home.models[0]}")

        async def ask(**headers: str) -> Reply:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await gateway.send("POST", path, b'{"prompt": "Hi"}', headers=named)

        there = await ask(x_hearth_regions="enam", x_hearth_explain="1")
        assert (there.status, there.headers["x-hearth-region"]) == (200, "enam")
        assert "residency=1" in there.headers["x-hearth-explain"]
        assert abroad.streams[0].grant.regions == ("enam",)
        plain = await ask()
        assert "x-hearth-explain" not in plain.headers
        assert plain.headers["x-hearth-region"] == "weur"
        lawful = await ask(x_hearth_jurisdictions="eu")
        assert lawful.status == 200
        refused = await ask(x_hearth_jurisdictions="us", x_hearth_explain="1")
        assert (refused.status, refused.code) == (403, 7403)
        assert refused.headers["x-hearth-explain"] == "pick=none; residency=2"
        assert "x-hearth-explain" not in (await ask(x_hearth_jurisdictions="us")).headers


async def test_whose_requests_may_not_enter_is_refused_before_the_body_is_read(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    entry = {"name": "enam", "jurisdiction": "us", "latency_ms": 80, "entry": "https://us.example"}
    routing = {"strict_entry": True, "regions": [entry]}
    options: dict[str, Any] = {"routing": routing, "region": "weur"}
    async with run_gateway(tmp_path, database_template, [node], **options) as gateway:
        await gateway.add_tenant(regions=["enam"])
        bound = gateway.tenants[-1]
        async with connect(gateway) as (reader, writer):
            head = (
                f"POST {gateway.account_path('/ai/run/x', bound)} HTTP/1.1\r\nhost: x\r\n"
                f"authorization: Bearer {bound.api_token}\r\ncontent-length: 5000\r\n\r\n"
            )
            writer.write(head.encode())  # and not a byte of the body
            answer = await asyncio.wait_for(reader.readuntil(b"}]"), 20)
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"https://us.example" in answer
        assert (await gateway.run({"prompt": "Hi"})).status == 200  # the control


@pytest.mark.parametrize("counts", [(7, 0, 3), (7, 0, -3), (7, 9, 3), (7, 0, 2**40)])
async def test_counts_that_no_answer_has_end_their_own_stream_only(
    pair: RunningGateway, nodes: list[ScriptedNode], counts: tuple[int, ...]
) -> None:
    async def lie(stream: ScriptedStream) -> None:
        told: Any = (2, "stop", counts)
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (11, 12, 13)))
        await stream.put(told)

    for node in nodes:
        node.script = lie
    hellos = [node.num_hellos for node in nodes]
    reply = await asyncio.wait_for(pair.run(STREAM), 30)
    assert reply.status == (200 if counts == (7, 0, 3) else 502)
    assert [node.num_hellos for node in nodes] == hellos  # the connections stand


@pytest.mark.parametrize("has_begun", [False, True])
async def test_who_leaves_while_the_answer_waits_to_go_on_pays_for_what_has_come(
    pair: RunningGateway, nodes: list[ScriptedNode], has_begun: bool
) -> None:
    """A node that has not begun knows nothing of what came from another; one that has is right."""

    async def lose(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await asyncio.sleep(0.1)
        for number in range(50):
            await stream.put(Delta(f"w{number} ", (number,)))
        await asyncio.sleep(0.3)
        await stream.fail(StreamBroken("The engine died."))

    async def wait_for_a_place(stream: ScriptedStream) -> None:
        if has_begun:
            await stream.put(Accepted(7, 0))
        await stream.aborted.wait()
        usage = Usage(7, 0, 51) if has_begun else Usage(0, 0, 0)
        await stream.put(Finished(FinishReason.ABORTED, usage))

    nodes[0].script, nodes[1].script = lose, wait_for_a_place
    async with connect(pair) as (reader, writer):
        writer.write(format_request(pair, STREAM | {"max_tokens": 200}))
        await reader.readuntil(b"w49 ")
        await wait_until(lambda: bool(nodes[1].streams))
    (record,) = await wait_for_records(pair, 1)
    assert record.tokens.num_output == (51 if has_begun else 50)
    assert record.tokens.num_uncached + record.tokens.num_cached == 7


@pytest.mark.parametrize("token_id", [-1, -(10**9), 2**32, 2**40])
async def test_token_ids_beyond_the_wire_are_the_fault_of_the_node_that_says_them(
    pair: RunningGateway,
    nodes: list[ScriptedNode],
    blamed: list[NodeId],
    token_id: int,
) -> None:
    async def lie(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Ha", (11,)))
        await asyncio.sleep(0.2)
        await stream.put(Delta("?", (token_id,)))
        await stream.fail(StreamBroken("The engine died."))

    nodes[0].script, nodes[1].script = lie, go_on
    assert read_text(await pair.run(STREAM)) == "Halo"
    assert blamed == [nodes[0].node_id]
    (second,) = nodes[1].streams
    assert second.request.resumption == Resumption(token_ids=(11,), num_text_chars=2)


@pytest.mark.parametrize(
    ("error", "num_blamed"),
    [
        (InvalidRequest("Outside the vocabulary.", param=RESUMPTION), 1),
        (InvariantBroken("The node failed to prepare this request."), 2),
    ],
    ids=["what another has said", "control: its own fault"],
)
async def test_who_cannot_go_on_from_what_another_has_said_is_not_to_blame(
    pair: RunningGateway,
    nodes: list[ScriptedNode],
    blamed: list[NodeId],
    error: ServiceError,
    num_blamed: int,
) -> None:
    """And neither is the client, who has said none of it."""

    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(error)

    nodes[0].script = begin_and_lose(nodes[0], StreamBroken("The engine died."))
    nodes[1].script = refuse
    reply = await pair.run(STREAM)
    code = find_row(StreamBroken("") if num_blamed == 1 else error).code
    assert reply.events[-1]["errors"][0]["code"] == code
    assert blamed == [node.node_id for node in nodes][:num_blamed]
    assert [len(node.streams) for node in nodes] == [1, 1]
