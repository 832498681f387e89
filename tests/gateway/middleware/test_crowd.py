"""Who only holds connections leaves places to who asks something."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.middleware.crowd import choose_leavers
from tests.gateway.raw_http import Reader, Writer, connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream

BODY = {"prompt": "Hi"}
LIVE = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
NUM_PLACES = 12
LIMITS = {"max_connections": NUM_PLACES, "keep_alive_s": 60, "header_timeout_s": 60}
HOSTS = ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", ""]
HABITS = {
    "says nothing": b"",
    "begins a request": b"POST / HTTP/1.1\r\nhost: x\r\n",
    "asks once, and stays": LIVE,
    "is refused, and stays": b"nonsense\r\n\r\n",
}


@dataclass(frozen=True)
class Guest:
    """A connection as the rule sees it."""

    host: str
    unused_since_s: float | None


guests = st.lists(
    st.builds(Guest, st.sampled_from(HOSTS), st.none() | st.integers(0, 9).map(float)), max_size=200
)


@given(guests, st.integers(1, 20))
def test_no_more_go_than_have_to_and_none_that_is_served(
    crowd: list[Guest], num_too_many: int
) -> None:
    leavers = choose_leavers(crowd, num_too_many)
    unused = [guest for guest in crowd if guest.unused_since_s is not None]
    assert len(leavers) == min(max(num_too_many, len(unused) // 64), len(unused))
    assert Counter(leavers) <= Counter(unused)


@given(guests, st.integers(1, 20))
def test_no_network_gives_up_what_leaves_it_less_than_another_has(
    crowd: list[Guest], num_too_many: int
) -> None:
    def count(these: Iterable[Guest]) -> Counter[str]:
        return Counter(
            "2001:db8::/64" if guest.host.startswith("2001:db8::") else guest.host
            for guest in these
            if guest.unused_since_s is not None
        )

    leavers = choose_leavers(crowd, num_too_many)
    left = count(crowd)
    left.subtract(count(leavers))
    for network in count(leavers):
        assert left[network] >= max(left.values()) - 1


@given(st.lists(st.integers(0, 99), min_size=2, max_size=200))
def test_of_one_network_those_go_that_have_waited_longest(since_s: list[int]) -> None:
    crowd = [Guest("10.0.0.1", float(time_s)) for time_s in since_s]
    leavers = choose_leavers(crowd, len(crowd) // 2)
    stay = Counter(crowd) - Counter(leavers)
    assert max(guest.unused_since_s or 0 for guest in leavers) <= min(
        guest.unused_since_s or 0 for guest in stay
    )


@pytest.fixture
async def small(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway with room for few."""
    async with run_gateway(tmp_path, database_template, [node], limits=LIMITS) as gateway:
        yield gateway


async def _hold(
    stack: AsyncExitStack, gateway: RunningGateway, habit: bytes, num_connections: int
) -> None:
    """Opens so many, and leaves them there."""
    for _ in range(num_connections):
        _, writer = await stack.enter_async_context(connect(gateway))
        writer.write(habit)
        await writer.drain()
    await asyncio.sleep(0.1)


async def _ask(reader: Reader, writer: Writer) -> int:
    """The status of one more request; 0 where the connection is gone."""
    try:
        writer.write(LIVE)
        return await read_status(reader)
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS.keys())
async def test_who_only_holds_connections_leaves_places_and_takes_nobodys(
    small: RunningGateway, habit: bytes
) -> None:
    async with AsyncExitStack() as stack:
        early = await stack.enter_async_context(connect(small, "127.0.0.2"))
        assert await _ask(*early) == 200
        await _hold(stack, small, habit, NUM_PLACES * 3)
        newcomer = await stack.enter_async_context(connect(small, "127.0.0.3"))
        assert await _ask(*newcomer) == 200
        assert await _ask(*early) == 200


@pytest.mark.parametrize("habit", HABITS.values(), ids=HABITS.keys())
async def test_without_the_rule_nobody_else_gets_a_place(
    small: RunningGateway, habit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr("gateway.middleware.crowd.choose_leavers", lambda *_: [])
    async with AsyncExitStack() as stack:
        await _hold(stack, small, habit, NUM_PLACES)
        newcomer = await stack.enter_async_context(connect(small, "127.0.0.3"))
        assert await _ask(*newcomer) == 429


async def test_a_request_under_way_never_gives_way(
    small: RunningGateway, node: ScriptedNode
) -> None:
    release = asyncio.Event()

    async def wait(stream: ScriptedStream) -> None:
        await release.wait()
        await stream.answer("Hello")

    node.script = wait
    async with AsyncExitStack() as stack:
        clients: list[tuple[Reader, Writer]] = []
        for _ in range(NUM_PLACES):
            client = await stack.enter_async_context(connect(small))
            client[1].write(format_request(small, BODY))
            clients.append(client)
            await wait_until(lambda: len(node.streams) == len(clients))
        await _hold(stack, small, b"", NUM_PLACES)
        assert await _ask(*await stack.enter_async_context(connect(small))) == 429
        release.set()
        assert [await read_status(reader) for reader, _ in clients] == [200] * NUM_PLACES
        assert await _ask(*await stack.enter_async_context(connect(small))) == 200


async def test_an_answer_that_was_sent_gets_there(small: RunningGateway) -> None:
    async with AsyncExitStack() as stack:
        readers: list[Reader] = []
        for _ in range(NUM_PLACES * 2):
            reader, writer = await stack.enter_async_context(connect(small))
            writer.write(LIVE)
            readers.append(reader)
            await asyncio.sleep(0.01)
        assert [await read_status(reader) for reader in readers] == [200] * len(readers)
