"""When a node says how busy it is: at once where that matters, else as often as gateways ask."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from contracts.fleet import NodeReport
from contracts.inference import Accepted, Finished
from contracts.prefix_keys import pack_keys, unpack_keys
from contracts.wire import Abort
from tests.fixtures.double_node import run_double_node
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.node_process import MODEL

LONG = ask(MODEL, max_tokens=3500, ignore_eos=True)
SELDOM_MS = 3_600_000


async def hear_all(client: GatewayClient, quiet_s: float = 0.05) -> NodeReport:
    """The last report of all that have come, once no other has for so long; there is one."""
    report = await asyncio.wait_for(client.reports.get(), 5)
    with contextlib.suppress(TimeoutError):
        while True:
            report = await asyncio.wait_for(client.reports.get(), quiet_s)
    return report


async def test_a_model_that_becomes_idle_is_reported_without_waiting_for_the_next_second(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_pool.server.node_status.REPORT_INTERVAL_S", 3600)
    async with (
        run_double_node(tmp_path, checkpoint, "--step-s", "0.01") as node,
        GatewayClient(node.address, report_ms=SELDOM_MS) as client,
    ):
        before = await hear_all(client, 0.3)  # that the model has come may be told twice
        streams = [await client.open(LONG) for _ in range(3)]
        for stream in streams:
            assert isinstance(await stream.next(), Accepted)
        # The control: without a change that matters nothing is said.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reports.get(), 0.3)
        for stream in streams:
            await client.send(stream, Abort())
        report = await asyncio.wait_for(client.reports.get(), 5)
        assert all(load.decode_step_s > 0 for load in report.loads)
        unmeasured = {"prefill_tokens_per_s": 0.0, "decode_tokens_per_s": 0.0, "decode_step_s": 0.0}
        loads = tuple(msgspec.structs.replace(load, **unmeasured) for load in report.loads)
        assert loads == before.loads  # nothing runs or waits, and every block is free


async def test_reports_of_a_model_that_is_idle_again_and_again_are_few(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_pool.server.node_status.REPORT_INTERVAL_S", 3600)
    monkeypatch.setattr("gpu_pool.server.node_status.SHORTEST_INTERVAL_S", 3600)
    async with (
        run_double_node(tmp_path, checkpoint) as node,
        GatewayClient(node.address, report_ms=SELDOM_MS) as client,
    ):
        await hear_all(client)
        for _ in range(20):
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)
        assert client.reports.qsize() <= 1


async def test_a_gateway_that_wants_to_hears_sooner_how_busy_a_node_is(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_pool.server.node_status.REPORT_INTERVAL_S", 3600)
    async with (
        run_double_node(tmp_path, checkpoint, "--step-s", "0.01") as node,
        GatewayClient(node.address, report_ms=0) as eager,
        GatewayClient(node.address, report_ms=SELDOM_MS) as other,
    ):
        await hear_all(eager, 0.6)
        await hear_all(other)
        stream = await other.open(LONG, session=5, prefixes=pack_keys((7,)))
        for _ in range(4):
            report = await asyncio.wait_for(eager.reports.get(), 5)
            assert (report.sessions, report.prefixes) == ((), b"")  # for these is more time
        assert report.loads[0].num_running == 1
        assert other.reports.empty()  # the control
        await other.send(stream, Abort())
        report = await asyncio.wait_for(other.reports.get(), 5)
        while report.loads[0].num_running:
            report = await asyncio.wait_for(other.reports.get(), 5)
        assert (report.sessions, unpack_keys(report.prefixes)) == ((5,), (7,))
