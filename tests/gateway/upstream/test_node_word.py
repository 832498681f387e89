"""A node that says very much of itself, over a real socket, and what that takes of the loop."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from contracts.fleet import MAX_REPORT_BYTES, MAX_SESSIONS, ModelFeature, NodeReport
from contracts.ids import ModelName
from contracts.placement import ModelPlacement, Tier
from contracts.prefix_keys import MAX_TOLD_BYTES
from contracts.wire import CONNECTION_STREAM, MAX_FRAME_BYTES, FromNode, Report, encode_frame
from gateway.upstream import connection, node_word
from gateway.upstream.node_word import LEAST, MOST_AT_ONCE, ReportAllowance, ReportExcess
from tests.gateway.routing import fleet_words
from tests.gateway.running_gateway import wait_until
from tests.gateway.scripted_node import ScriptedNode
from tests.gateway.upstream.test_link import run_link

NODE = "node-1"
MANY = MOST_AT_ONCE // LEAST * 4
"""Messages, which nobody reads in the time of a test."""


def create_report(num_bytes: int) -> Report:
    """A report of exactly `num_bytes` as it is sent, most of them in a card."""
    empty = replace(fleet_words.create_report(NODE), loads=())
    (card,) = empty.models
    size = len(msgspec.msgpack.encode(Report(replace(empty, models=(long(card, 1 << 16),)))))
    return Report(replace(empty, models=(long(card, (1 << 16) + num_bytes - size),)))


def long(card: Any, num_bytes: int) -> Any:
    """The card with a description of so many bytes."""
    return replace(card, description="x" * num_bytes)


def create_small() -> Report:
    """The shortest that a node can send."""
    return Report(replace(fleet_words.create_report(NODE), models=(), loads=()))


def pack(*messages: FromNode) -> bytes:
    """A frame of what a node says of itself."""
    return encode_frame([(CONNECTION_STREAM, 0, message) for message in messages])


class Meter:
    """Counts what is decoded between two turns of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = 0
        self.of_turn: Counter[int] = Counter()

        def watch(name: str, measure: Callable[[Any], int]) -> None:
            decode = getattr(connection, name)

            def count(data: Any) -> Any:
                self.of_turn[self._turn] += measure(data)
                return decode(data)

            monkeypatch.setattr(connection, name, count)

        watch("decode_frame_from_node", len)
        watch("decode_from_node", lambda entry: len(entry.message))

    async def run(self) -> None:
        """Somebody else who wants a turn, for ever."""
        while True:
            self._turn += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def run_meter(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Meter]:
    """A meter that runs until the end of the block."""
    meter = Meter(monkeypatch)
    task = asyncio.create_task(meter.run())
    try:
        yield meter
    finally:
        task.cancel()


async def flood(node: ScriptedNode, frame: bytes, num_frames: int) -> None:
    """The node says `frame` again and again, until nobody listens."""
    socket = node.sockets[0]
    with contextlib.suppress(ConnectionError):
        for _ in range(num_frames):
            await socket.send_bytes(frame)
            if socket.closed:
                return


def create_attacks() -> dict[str, tuple[bytes, int, str]]:
    """Frames by what they try, how many of them, and what the log calls that."""
    large, small = create_report(MAX_REPORT_BYTES - 64), create_small()
    tiny = len(msgspec.msgpack.encode(small)) + 3
    unreadable = msgspec.msgpack.encode([(CONNECTION_STREAM, 0, [4])] * MANY)
    whole = pack(create_report(MAX_FRAME_BYTES - 64))
    some = pack(*[small] * ((MAX_REPORT_BYTES - 64) // tiny))
    most = pack(*[small] * ((MAX_FRAME_BYTES - 64) // tiny))
    return {
        "one that fills a frame": (whole, 4, "report_too_large"),
        "large ones, many in a frame": (pack(*[large] * 10), 4, "reports_too_many"),
        "a large one in each frame": (pack(large), 100, "reports_too_many"),
        "small ones, many in a small frame": (some, 20, "reports_too_many"),
        "small ones, many in a large frame": (most, 2, "reports_too_many"),
        "what nobody can read": (unreadable, 2, "reports_too_many"),
    }


ATTACKS = create_attacks()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("is_control", [False, True], ids=["ours", "control"])
async def test_a_node_that_floods_us_takes_little_of_each_turn_and_is_cut_off(
    node: ScriptedNode, monkeypatch: pytest.MonkeyPatch, attack: str, *, is_control: bool
) -> None:
    frame, num_frames, event = ATTACKS[attack]
    node.reports = False
    if is_control:
        monkeypatch.setattr(node_word, "MAX_REPORT_BYTES", 1 << 40)
        monkeypatch.setattr(node_word, "MOST_AT_ONCE", 1 << 40)
    with capture_logs() as lines:
        async with run_link(node) as (link, listener), run_meter(monkeypatch) as meter:
            await wait_until(lambda: link.is_up and node.num_hellos == 1)
            await flood(node, frame, num_frames)
            if is_control:
                await wait_until(lambda: meter.of_turn.total() >= num_frames * (len(frame) - 64))
            else:
                await wait_until(lambda: bool(listener.losses))
            num_heard = len(listener.reports)
    named = [line for line in lines if line["event"] == event]
    num_heard += sum(line["event"] == "connection_message_malformed" for line in lines)
    is_too_much = (
        max(meter.of_turn.values(), default=0) > 2 * MAX_REPORT_BYTES
        or meter.of_turn.total() > 4 * MOST_AT_ONCE
        or num_heard > MANY
    )
    assert is_too_much is is_control
    if not is_control:
        assert named[0]["node_id"] == NODE


async def test_a_report_as_large_as_may_be_is_heard_and_a_larger_one_until_it_is_smaller(
    node: ScriptedNode,
) -> None:
    node.reports = False
    async with run_link(node) as (link, listener):
        await wait_until(lambda: link.is_up and node.num_hellos == 1)
        for beside in ((), (create_report(MAX_REPORT_BYTES),)):  # in a frame alone, and not
            listener.reports.clear()
            await node.sockets[0].send_bytes(pack(create_report(MAX_REPORT_BYTES), *beside))
            await wait_until(lambda: bool(listener.reports))
        assert link.is_up
        with capture_logs() as lines:
            await node.sockets[0].send_bytes(pack(create_report(MAX_REPORT_BYTES + 1)))
            await wait_until(lambda: bool(listener.losses))
        (line,) = [line for line in lines if line["event"] == "report_too_large"]
        assert (line["node_id"], line["log_level"]) == (NODE, "error")
        assert (line["num_bytes"], line["max_bytes"]) == (MAX_REPORT_BYTES + 1, MAX_REPORT_BYTES)
        listener.reports.clear()
        await wait_until(lambda: link.is_up and node.num_hellos == 2)
        await node.send_report()
        await wait_until(lambda: bool(listener.reports))


def test_nodes_of_three_hundred_models_may_say_all_that_can_be_said() -> None:
    names = [ModelName(f"@hearth/models/one-of-many-{place:04}") for place in range(300)]
    card = replace(
        fleet_words.create_card(),
        revision="a" * 64,
        description="A model that answers. " * 4,
        features=tuple(ModelFeature),
        created_unix_s=1_700_000_000,
        max_adapter_rank=64,
    )
    report: NodeReport = replace(
        fleet_words.create_report(NODE),
        models=tuple(replace(card, name=name) for name in names),
        loads=tuple(fleet_words.create_load(name, max_running=256) for name in names),
        placements=tuple(
            ModelPlacement(name=name, tier=Tier.HOST, weights_bytes=1 << 34, kv_bytes=1 << 34)
            for name in names
        ),
        kv_endpoints=tuple(fleet_words.create_endpoint(NODE, model=name) for name in names),
        sessions=tuple(range(2**63, 2**63 + MAX_SESSIONS)),
        prefixes=bytes(MAX_TOLD_BYTES),
    )
    assert len(msgspec.msgpack.encode(Report(report))) < MAX_REPORT_BYTES


def test_the_largest_reports_may_come_four_times_a_second_and_what_piled_up_at_once() -> None:
    allowance = ReportAllowance(0.0)
    for count in range(400):
        allowance.take(MAX_REPORT_BYTES, count / 4)
    allowance.take(0, 200.0)
    for _ in range(40):  # ten seconds in which nobody read them
        allowance.take(96 * 1024, 200.0)
    taken = 0
    with contextlib.suppress(ReportExcess):
        while taken < 400:  # the control: twice as often
            allowance.take(MAX_REPORT_BYTES, 300.0 + taken / 8)
            taken += 1
    assert 0 < taken < 40
