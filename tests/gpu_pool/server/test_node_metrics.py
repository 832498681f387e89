"""A node's metrics, read over a real port, and what its meter makes of times."""

import itertools
from pathlib import Path

import aiohttp

from contracts.histogram import GAP_BOUNDS_S, Times
from contracts.ids import ModelName
from contracts.inference import Usage
from contracts.sections import MetricsSettings
from gpu_pool.server.stream_meter import NodeMeter
from tests.fixtures.double_node import run_double_node
from tests.fixtures.gateway_client import GatewayClient, continue_text
from tests.fixtures.node_process import MODEL


async def read(port: int) -> str:
    """The text of `/metrics`."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200
        return await response.text()


async def test_requests_are_counted_and_timed_and_nobody_is_named(
    tmp_path: Path, checkpoint: Path
) -> None:
    settings = MetricsSettings(port=0)
    async with run_double_node(tmp_path, checkpoint, metrics=settings) as node:
        port = node.server.metrics.number
        assert "hearth_node_requests_total{" not in await read(port)
        async with GatewayClient(node.address) as client:
            await client.generate(continue_text(MODEL, "Hello", max_tokens=5, ignore_eos=True))
            await client.generate(continue_text(MODEL, "Hello", max_tokens=10**9))
        text = await read(port)
    label = f'model="{MODEL}"'
    assert f'hearth_node_requests_total{{end="length",{label}}} 1.0' in text
    assert text.count("hearth_node_requests_total{") == 2  # the other one was refused
    assert f'hearth_node_tokens_total{{kind="completion",{label}}} 5.0' in text
    for name in ("queue", "first_token"):
        assert f"hearth_node_{name}_seconds_count{{{label}}} 1.0" in text
    assert f"hearth_node_model_ready{{{label}}} 1.0" in text
    assert f"hearth_node_kv_blocks{{{label}}}" in text
    assert f"hearth_node_preemptions_total{{{label}}} 0.0" in text
    assert "Hello" not in text


async def test_without_a_setting_nothing_listens(tmp_path: Path, checkpoint: Path) -> None:
    async with run_double_node(tmp_path, checkpoint, is_ready=False) as node:
        assert node.server.metrics.number == 0


def test_times_run_from_the_requests_last_byte() -> None:
    ticks = iter([10.0, 10.5, 12.0, 12.5, 14.5])
    meter = NodeMeter(lambda: next(ticks))
    stream = meter.open(ModelName("@hearth/tests/a"))
    stream.note_accepted()
    for _ in range(3):
        stream.note_tokens()
    stream.note_end("stop", Usage(7, 4, 3))
    (counts,) = meter.counts.values()
    assert (counts.queue.total_s, counts.first_token.total_s) == (0.5, 2.0)
    assert counts.gaps.total_s == 2.5
    assert sum(counts.gaps.counts) == 2
    assert (counts.ends, counts.tokens) == ({"stop": 1}, [7, 4, 3])


def test_buckets_are_cumulative_and_end_with_everything() -> None:
    times = Times(GAP_BOUNDS_S)
    for seconds in (0.001, 0.002, 0.3, 99.0):
        times.observe(seconds)
    buckets = times.to_buckets()
    assert buckets[0] == ("0.002", 2)
    assert buckets[-1] == ("+Inf", 4)
    assert all(before[1] <= after[1] for before, after in itertools.pairwise(buckets))
