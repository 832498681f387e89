"""Traces of requests: from the client's ids over the gateway's steps to the nodes', and what is in
none of them.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import PoolSaturated
from contracts.tracing import unpack_trace
from tests.fixtures.otlp_receiver import Collector, ReceivedSpan, run_black_hole, run_collector
from tests.gateway.running_gateway import Reply, RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-00"
CANARY = "CANARY7f3A9c"
HEADERS = (
    *("tracestate", "baggage", "user_agent", "x_session_affinity", "cookie", "referer"),
    *("x_forwarded_for", "x_request_id", "cf_aig_authorization", "cf_aig_metadata"),
)
BODY = {"prompt": f"Say {CANARY}", "user": CANARY}


@asynccontextmanager
async def run_traced(
    folder: Path, template: Path, nodes: list[ScriptedNode], **tracing: Any
) -> AsyncGenerator[tuple[RunningGateway, Collector]]:
    """A gateway that traces to a collector of its own."""
    with run_collector() as collector:
        section = {"endpoint": collector.url, **tracing}
        async with run_gateway(folder, template, nodes, tracing=section) as gateway:
            yield gateway, collector


async def run(gateway: RunningGateway, body: Any = BODY, **headers: str) -> Reply:
    """An inference request with further headers."""
    path = gateway.account_path(f"/ai/run/{MODEL}")
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.send("POST", path, msgspec.json.encode(body), headers=sent)


async def collect(collector: Collector, count: int) -> list[ReceivedSpan]:
    """All spans, once there are so many."""
    await wait_until(lambda: len(collector.spans) >= count)
    return collector.spans


async def test_a_request_is_told_from_the_clients_span_to_the_nodes(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async with run_traced(tmp_path, database_template, [node]) as (gateway, collector):
        reply = await run(gateway, BODY | {"stream": True}, traceparent=PARENT)
        assert reply.status == 200
        spans = await collect(collector, 5)
    whole, *parts = spans
    assert {span.trace_id for span in spans} == {TRACE}
    assert (whole.name, whole.kind, whole.parent_id) == (f"chat {MODEL}", 2, SPAN)
    assert whole.attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert whole.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "hearth",
        "gen_ai.request.model": MODEL,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 2,
        "http.request.method": "POST",
        "http.route": "/client/v4/accounts/{account_id}/ai/run/{model:path}",
        "http.response.status_code": 200,
        "hearth.request_id": reply.headers["x-request-id"],
        "hearth.request.attempts": 1,
        "hearth.node.id": "node-1",
        "hearth.region": "weur",
    }
    assert {span.name for span in parts} == {"admission", "routing", "settlement", "attempt"}
    assert {span.parent_id for span in parts} == {whole.span_id}
    assert all(whole.start_ns <= one.start_ns <= one.end_ns <= whole.end_ns for one in parts)
    (attempt,) = collector.find("attempt")
    assert attempt.kind == 3
    carried = unpack_trace(node.streams[0].grant.trace)
    assert carried is not None
    assert f"{carried.trace_id:032x}" == TRACE
    assert f"{carried.span_id:016x}" == attempt.span_id


async def test_a_node_that_refuses_is_an_attempt_of_its_own(
    tmp_path: Path, database_template: Path
) -> None:
    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(PoolSaturated("Full."))

    async with run_node("node-1") as first, run_node("node-2") as second:
        first.script = refuse
        second.num_running = 50  # the first one is asked first
        async with run_traced(tmp_path, database_template, [first, second]) as (gateway, collector):
            await wait_until(lambda: bool(first.num_hellos and second.num_hellos))
            await gateway.wait_until_ready()
            while not first.streams:
                assert (await run(gateway)).status == 200
            spans = await collect(collector, 7)
    attempts = sorted(
        (span for span in spans if span.name == "attempt" and span.trace_id),
        key=lambda span: span.start_ns,
    )
    failed = next(span for span in attempts if span.is_error)
    assert failed.attributes["error.type"] == "pool_saturated"
    assert failed.attributes["hearth.node.id"] == "node-1"
    (again,) = (s for s in attempts if s.trace_id == failed.trace_id and not s.is_error)
    assert again.attributes["hearth.node.id"] == "node-2"
    assert again.attributes["hearth.attempt.number"] == 2


async def test_refusals_are_told_and_nothing_of_anybody_is(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async def repeat(stream: ScriptedStream) -> None:
        await stream.answer(CANARY)

    node.script = repeat
    async with run_traced(tmp_path, database_template, [node]) as (gateway, collector):
        odd = dict.fromkeys(HEADERS, CANARY)
        for body in (BODY, BODY | {"stream": True}, {"prompt": CANARY, "max_tokens": -1}):
            await run(gateway, body, **odd)
        path = gateway.account_path(f"/ai/run/@{CANARY}/x")
        await gateway.send("POST", path, b'{"prompt": "Hi"}')
        path = gateway.account_path(f"/ai/run/{MODEL}")
        await gateway.send("POST", path, b"{", api_token=CANARY)
        spans = await collect(collector, 13)
        known = [gateway.tenant.account_id, gateway.tenant.api_token, gateway.operator, CANARY]
    told = b"".join(collector.bodies)
    assert not [secret for secret in known if secret.encode() in told]
    assert MODEL.encode() in told  # the control
    statuses = sorted(s.attributes["http.response.status_code"] for s in spans if s.kind == 2)
    assert statuses == [200, 200, 400, 401, 404]


async def test_ids_of_another_form_begin_a_trace_of_our_own(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    values = (PARENT.replace("00-4", "ff-4"), "nonsense", f"00-{TRACE}", PARENT + "-more")
    async with run_traced(tmp_path, database_template, [node]) as (gateway, collector):
        for value in values:
            assert (await run(gateway, traceparent=value)).status == 200
        spans = await collect(collector, 20)
    traces = {span.trace_id for span in spans}
    assert len(traces) == len(values)
    assert TRACE not in traces
    assert not [span for span in spans if span.kind == 2 and span.parent_id]


async def test_clients_do_not_say_what_is_sampled(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async with run_traced(tmp_path, database_template, [node], sample_share=0.0) as (gateway, seen):
        await run(gateway, traceparent=PARENT[:-1] + "1")
    assert seen.spans == []
    assert node.streams[0].grant.trace == b""


async def test_a_collector_that_never_answers_holds_up_nobody(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    with run_black_hole() as url:
        section = {"endpoint": url, "timeout_s": 60.0, "flush_s": 0.1, "max_waiting": 64}
        async with run_gateway(tmp_path, database_template, [node], tracing=section) as gateway:
            for _ in range(40):
                assert (await run(gateway)).status == 200
            metrics = await gateway.send(
                "GET", "/metrics", api_token=gateway.operator, origin=gateway.admin
            )
            lines = metrics.body.decode().splitlines()
        # It has stopped in spite of the 60 seconds.
    (lost,) = (
        line for line in lines if line.startswith('hearth_gateway_spans_total{outcome="lost"}')
    )
    assert 0 < float(lost.split()[1]) < 200
