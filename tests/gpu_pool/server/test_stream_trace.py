"""What a node tells of a request that its gateway traces, through a gateway and a real core."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, ModelName, NodeId, RequestId
from contracts.inference import CountTokensRequest, TextPrompt, Usage
from contracts.sections import TracingSettings
from contracts.tracing import TraceContext, pack_trace
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.server.stream_meter import NodeMeter
from gpu_pool.server.stream_trace import NOT_TRACED, NodeTracer
from migrations.upgrade import upgrade_database
from telemetry.spans import NO_SPANS, Span
from tests.fixtures.double_node import run_double_node
from tests.fixtures.otlp_receiver import run_collector
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import run_gateway, wait_until

S = 1_000_000_000
PARENT = TraceContext(5, 6)
MODEL = ModelName("@hearth/tests/double")
REQUEST = CountTokensRequest(model=ModelName("@a/b"), prompt=TextPrompt(text="Hi"))


class Kept:
    """A sink that keeps what it takes."""

    is_on, num_sent, num_lost = True, 0, 0

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def take(self, spans: list[Span]) -> None:
        self.spans += spans

    async def close(self) -> None: ...


def create_grant(trace: bytes) -> Grant:
    """A grant that is part of a trace, or of none."""
    return Grant(
        RequestId("r"), 1, AccountId("a" * 32), b"s" * 32, ModelName("@a/b"), None, 0,
        RetentionClass.STANDARD, 0, 100, trace=trace,
    )  # fmt: skip


def test_the_stretches_of_a_request_follow_each_other() -> None:
    sink, ticks = Kept(), iter([10.0, 13.0, 14.0, 15.0, 19.0])
    tracer = NodeTracer(sink, "node-1", lambda: 100 * S)  # type: ignore[arg-type]
    meter = NodeMeter(ticks.__next__, tracer)
    stream = meter.open(REQUEST.model, tracer.begin(create_grant(pack_trace(PARENT)), REQUEST))
    stream.note_accepted(2.0)
    stream.note_tokens()
    stream.note_tokens()
    stream.note_end("stop", Usage(3, 2, 2))
    whole, *parts = sink.spans
    assert (whole.trace_id, whole.parent_id) == (PARENT.trace_id, PARENT.span_id)
    assert [(one.name, one.start_ns // S, one.end_ns // S) for one in parts] == [
        ("wake", 100, 102),
        ("queue", 102, 103),
        ("prefill", 103, 104),
        ("decode", 104, 109),
    ]
    assert {one.parent_id for one in parts} == {whole.span_id}
    assert len({one.span_id for one in sink.spans}) == 5


def test_nodes_follow_their_gateway_and_nobody_else() -> None:
    on = NodeTracer(Kept(), "n", lambda: 0)  # type: ignore[arg-type]
    off = NodeTracer(NO_SPANS, "n", lambda: 0)
    for tracer, trace in ((on, b""), (on, b"x" * 23), (off, pack_trace(PARENT))):
        assert tracer.begin(create_grant(trace), REQUEST) is NOT_TRACED
    assert on.begin(create_grant(pack_trace(PARENT)), REQUEST) is not NOT_TRACED


@dataclass
class Address:
    """Where a gateway finds a node."""

    node_id: NodeId
    url: str
    pair_key: bytes


async def test_a_trace_goes_from_the_gateway_into_the_node(tmp_path: Path) -> None:
    checkpoint = write_random_checkpoint(tmp_path / "checkpoint")
    template = tmp_path / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    with run_collector() as collector:
        tracing = TracingSettings(endpoint=collector.url)
        models = (ServedModelSettings(name=MODEL, path=checkpoint),)
        changes = {"tracing": tracing, "models": models}
        async with run_double_node(tmp_path, checkpoint, **changes) as node:
            address = Address(
                node.settings.node_id,
                node.address.url.replace("http", "ws"),
                node.address.pair_key,
            )
            section = {"endpoint": collector.url}
            async with run_gateway(
                tmp_path, template, [address], gateway_id=node.address.gateway_id, tracing=section
            ) as gateway:
                body = {"prompt": "Hi", "max_tokens": 4, "stream": True, "ignore_eos": True}
                assert (await gateway.run(body, MODEL)).status == 200
                await wait_until(lambda: len(collector.spans) >= 9)
    by_name = {(span.service, span.name): span for span in collector.spans}
    of_node = {name for service, name in by_name if service == "hearth-node"}
    assert of_node - {"wake"} == {f"chat {MODEL}", "queue", "prefill", "decode"}
    served = by_name["hearth-node", f"chat {MODEL}"]
    assert served.parent_id == by_name["hearth-gateway", "attempt"].span_id
    assert len({span.trace_id for span in collector.spans}) == 1
    assert served.attributes["gen_ai.usage.output_tokens"] == 4
    assert served.attributes["gen_ai.response.finish_reasons"] == ["length"]
