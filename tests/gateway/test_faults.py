"""A fault at every place where a request waits: afterwards the books are right and nothing is held.

The request's own coroutine is driven by hand: at its n-th wait it is cancelled or an error is
raised there, for every n that there is.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import text

from contracts.errors import StoreUnavailable
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from contracts.usage import Outcome, UsageRecord, to_token_counts
from gateway.request_path import RequestPath
from gateway.upstream.connection import NodeConnection
from gateway.upstream.node_stream import NodeStream
from tests.fixtures.redis_server import needs_redis, run_redis
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream
from tests.gateway.test_money import list_records, set_limits

STREAM = {"prompt": "Hi", "stream": True, "max_tokens": 20}
WHOLE = {"prompt": "Hi", "max_tokens": 20}


class FaultAt:
    """Awaits a coroutine and strikes where it waits for the `strike`-th time; 0: never."""

    def __init__(self, work: Coroutine[Any, Any, None], strike: int, fault: type[BaseException]):
        self.num_waits = 0
        self.usage: Usage | None = None
        """What the gateway had received when it was struck."""
        self.streams: list[NodeStream] = []
        self._work = work
        self._strike = strike
        self._fault = fault

    def __await__(self) -> Generator[Any, Any, None]:
        with contextlib.suppress(StopIteration):
            waited_for = self._work.send(None)
            while True:
                self.num_waits += 1
                if self.num_waits == self._strike:
                    self.usage = self.streams[-1].read_usage() if self.streams else None
                    if isinstance(waited_for, asyncio.Future):
                        waited_for.cancel()  # as a task does
                    waited_for = self._work.throw(self._fault("a fault"))
                    continue
                try:
                    value = yield waited_for
                except BaseException as error:
                    waited_for = self._work.throw(error)
                else:
                    waited_for = self._work.send(value)


class Striker:
    """Makes the next request one with a fault."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.strike = 0
        self.fault: type[BaseException] = asyncio.CancelledError
        self.last: FaultAt | None = None
        serve, open_stream = RequestPath.serve, NodeConnection.open

        async def struck(*args: Any) -> None:
            self.last = FaultAt(serve(*args), self.strike, self.fault)
            await self.last

        def noted(*args: Any) -> NodeStream:
            stream = open_stream(*args)
            if self.last is not None:
                self.last.streams.append(stream)
            return stream

        monkeypatch.setattr(RequestPath, "serve", struck)
        monkeypatch.setattr(NodeConnection, "open", noted)


async def speak(stream: ScriptedStream) -> None:
    """Three frames, so that a stream is waited for at its beginning and in its middle."""
    await stream.put(Accepted(7, 0))
    await stream.put(Delta("a", (1,)))
    await asyncio.sleep(0.02)
    await stream.put(Delta("b", (2, 3)))
    await asyncio.sleep(0.02)
    await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 3)))


@pytest.fixture(params=["local", pytest.param("redis", marks=needs_redis)])
async def limited(
    request: pytest.FixtureRequest, tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway that waits for all it can: limits and budgets of every kind, and the disk."""
    sections: dict[str, Any] = {
        "journal": {"folder": str(tmp_path / "journal"), "flush_s": 0.05, "fsync": True}
    }
    with contextlib.ExitStack() as servers:
        if request.param == "redis":
            server = servers.enter_context(run_redis(tmp_path))
            sections["shared_limits"] = {"url": server.url, "budget_s": 10.0}
        async with run_gateway(tmp_path, database_template, [node], **sections) as gateway:
            await set_limits(
                gateway,
                concurrent_streams=1,
                requests_per_min=10**6,
                tokens_per_min=10**9,
                neurons_per_day=10**6,
                spend_nano_per_month=10**12,
            )
            node.script = speak
            yield gateway


async def forget_slices(gateway: RunningGateway) -> None:
    """The next request has to lease its budgets first."""
    books = gateway.gateway._bookkeeping
    await books.writer.flush()
    await gateway.tenancy.drop_budgets(books.journal.boot)
    books.parts.slices._slices.clear()


async def assert_nothing_is_held(gateway: RunningGateway) -> None:
    """No place, no lease, no part of a budget; and slices are as large as the database says."""
    books = gateway.gateway._bookkeeping
    slices = books.parts.slices._slices
    assert not books.books.list_limited()
    assert not books.books.open_usage.num_open
    assert not any(one.held for one in slices.values())

    async def agree() -> bool:  # a lease whose request has gone may still be under way
        if any(one.lock.locked() for one in slices.values()):
            return False
        await books.writer.flush()
        async with gateway.tenancy.directory._database.read() as connection:
            rows = await connection.execute(text("SELECT remaining FROM budget_slices"))
            remaining = sorted(row.remaining for row in rows)
        return remaining == sorted(one.left for one in slices.values() if one.valid_until_ms)

    await wait_until_async(agree, 20)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_whatever_happens_at_any_wait_the_books_are_right(
    limited: RunningGateway,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, object],
) -> None:
    striker = Striker(monkeypatch)

    async def run(strike: int, fault: type[BaseException]) -> FaultAt:
        striker.strike, striker.fault, striker.last = strike, fault, None
        with contextlib.suppress(aiohttp.ClientError):
            await asyncio.wait_for(limited.run(body), 60)
        await wait_until(lambda: striker.last is not None)
        assert striker.last is not None
        return striker.last

    await forget_slices(limited)
    unharmed = await run(0, asyncio.CancelledError)
    assert unharmed.num_waits >= 4  # budget, node, disk at least
    num_records = len(await list_records(limited))
    assert num_records == 1
    num_struck = num_received = 0
    for fault in (asyncio.CancelledError, RuntimeError, StoreUnavailable):
        for strike in range(1, unharmed.num_waits + 1):
            await forget_slices(limited)
            struck = await run(strike, fault)
            await assert_nothing_is_held(limited)
            records = await list_records(limited)
            num_struck += struck.num_waits >= strike  # it may have waited less often this time
            new = sorted(records, key=_by_age)[num_records:]
            if not new:
                assert struck.usage is None, (fault, strike)
                continue
            (record,) = new
            num_received += 1
            num_records += 1
            # A request that has survived the fault has all of its answer, any other what had come.
            is_whole = record.outcome is Outcome.COMPLETE
            expected = Usage(7, 0, 3) if is_whole else struck.usage
            assert expected is not None, (fault, strike)
            assert record.tokens == to_token_counts(expected), (fault, strike)
    assert num_struck > 6
    assert num_received > 3
    striker.strike = 0

    async def is_served() -> bool:  # the only place is free: none of them has kept it
        return (await limited.run(body)).status == 200

    await wait_until_async(is_served, 20)


def _by_age(record: UsageRecord) -> str:
    """Request ids grow with time."""
    return record.request_id
