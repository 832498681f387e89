"""Nodes that take requests and say nothing more, and nodes that are merely slow to say it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from contracts.errors import DeadlineExceeded, ServiceError, StreamBroken
from contracts.ids import NodeId
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from gateway.attempt_watch import AttemptWatch
from gateway.routing.route_plan import Rejection
from gateway.sources import Sources
from gateway.upstream.node_stream import NodeStream
from tests.gateway.routing.fleet_words import NEED, create_fleet, create_load, create_report
from tests.gateway.running_gateway import run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import are_known
from tests.gateway.test_failover import list_up

A = NodeId("a")
OWNER = 5
LATE = DeadlineExceeded("The request took longer than it may.")


class Owner:
    """A connection that wants nothing."""

    def note(self, _listener: object) -> None:
        pass

    def send_credit(self, _stream: NodeStream, _num_deltas: int) -> None:
        pass

    def send_abort(self, _stream: NodeStream) -> None:
        pass


class Scene:
    """Two nodes and one attempt at the first, looked at four times a second."""

    def __init__(self, **load: Any) -> None:
        self.now_s = 0.0
        sources = Sources(lambda: self.now_s, lambda: self.now_s, lambda bits: 0)
        self.fleet = create_fleet("a", "b", sources=sources)
        self.watch = AttemptWatch(self.fleet, sources)
        self.load = load
        self.report()
        plan = self.fleet.plan(NEED)
        assert plan.node_id == A
        self.stream = NodeStream(cast("Any", Owner()), A, 1, 1, 0.0)
        self.watch.add(self.stream, plan, OWNER)

    def report(self) -> None:
        for node_id in ("a", "b"):
            load = create_load(**self.load)
            self.fleet.record_report(replace(create_report(node_id), loads=(load,)))

    def pass_time(self, seconds: float, *, reports: bool = True) -> None:
        for quarter in range(int(4 * seconds)):
            self.now_s += 0.25
            if reports and quarter % 4 == 3:
                self.report()
            self.watch.sweep()

    @property
    def num_failures(self) -> int:
        own = self.fleet.health._by_owner.get(OWNER)  # type: ignore[reportPrivateUsage]
        return 0 if own is None else own.by_node[A].num_in_a_row


def accept(scene: Scene, *, has_begun: bool = True) -> None:
    scene.stream.push(Accepted(7, 0))
    if has_begun:
        scene.stream.push(Delta("a", (1,)))
    scene.stream.take_now()


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_node_that_says_that_it_has_nothing_to_do_has_forgotten_what_it_took(
    has_begun: bool,
) -> None:
    scene = Scene()
    accept(scene, has_begun=has_begun)
    scene.pass_time(4)
    assert scene.num_failures == 0
    scene.pass_time(4)
    assert scene.num_failures == 1
    scene.pass_time(100)
    assert not scene.watch.end(scene.stream, LATE)  # it is counted once
    assert scene.num_failures == 1


@pytest.mark.parametrize(
    "load", [{"running": 1}, {"waiting": 1}, {"num_coming": 1}], ids=["runs", "waits", "comes"]
)
def test_a_node_that_has_something_to_do_may_be_slow(load: dict[str, int]) -> None:
    scene = Scene(**load)
    accept(scene)
    scene.pass_time(50)
    assert scene.num_failures == 0
    assert not scene.watch.end(scene.stream, LATE)


def test_what_comes_now_and_then_is_not_forgotten() -> None:
    scene = Scene()
    accept(scene)
    for token_id in range(20):
        scene.pass_time(4)
        scene.stream.push(Delta("", (token_id,)))
        scene.stream.take_now()
    assert scene.num_failures == 0


def test_a_short_deadline_is_evidence_only_with_reports_since() -> None:
    for seconds, is_failure in ((1, False), (2, False), (4, True)):
        scene = Scene()
        accept(scene)
        scene.pass_time(seconds)
        assert scene.watch.end(scene.stream, LATE) is is_failure
    scene = Scene()
    accept(scene)
    scene.pass_time(50, reports=False)
    assert not scene.watch.end(scene.stream, LATE)


@pytest.mark.parametrize(
    ("load", "writes", "is_failure"),
    [
        ({"running": 5}, True, False),
        ({"running": 5}, False, False),
        ({}, True, False),
        ({"waiting": 3}, False, False),
        ({}, False, True),
    ],
    ids=["runs and writes", "runs", "writes", "waits", "control: has nothing to do"],
)
def test_many_reports_since_the_last_look_are_no_evidence_by_themselves(
    load: dict[str, int], writes: bool, is_failure: bool
) -> None:
    scene = Scene(**load)
    accept(scene)
    scene.pass_time(1)
    for _ in range(4):  # before anybody looks again
        scene.now_s += 0.1
        scene.report()
    if writes:
        scene.stream.push(Delta("b", (2,)))
    assert scene.watch.end(scene.stream, LATE) is is_failure


def test_silence_before_the_deadline_is_a_failure_when_it_is_long() -> None:
    for seconds, is_failure in ((50, False), (70, True)):
        scene = Scene(running=1)
        accept(scene)
        scene.pass_time(seconds)
        assert scene.watch.end(scene.stream, LATE) is is_failure


def test_a_prompt_may_take_as_long_as_it_does() -> None:
    scene = Scene(running=1, num_queued_tokens=100_000)
    accept(scene, has_begun=False)
    for _ in range(20):
        scene.pass_time(30)
        scene.load["num_queued_tokens"] -= 4096
        scene.report()
    scene.pass_time(1)
    assert not scene.watch.end(scene.stream, LATE)
    scene = Scene(running=1, num_queued_tokens=100_000)  # the control: nothing is computed
    accept(scene, has_begun=False)
    scene.pass_time(600)
    assert scene.watch.end(scene.stream, LATE)


async def test_an_answer_in_one_piece_is_silent_until_its_end() -> None:
    scene = Scene(running=1)
    accept(scene)
    task = asyncio.create_task(scene.stream.take_all())
    await asyncio.sleep(0)
    scene.pass_time(100)
    assert not scene.watch.end(scene.stream, LATE)
    task.cancel()


def test_a_reader_that_takes_nothing_makes_no_node_silent() -> None:
    scene = Scene()
    accept(scene)
    for token_id in range(40):
        scene.stream.push(Delta("a", (token_id,)))
    scene.pass_time(100)
    assert scene.num_failures == 0
    assert not scene.watch.end(scene.stream, LATE)


def test_what_waits_at_a_node_untaken_is_no_failure_of_this_kind() -> None:
    scene = Scene()
    scene.pass_time(100)
    assert scene.num_failures == 0
    assert not scene.watch.end(scene.stream, LATE)


@pytest.mark.parametrize(("error", "is_failure"), [(None, False), (StreamBroken("x"), True)])
def test_other_ends_count_as_they_are(error: ServiceError | None, is_failure: bool) -> None:
    scene = Scene()
    accept(scene)
    assert scene.watch.end(scene.stream, error) is is_failure


def test_each_answer_that_begins_makes_room_for_one_more_on_probation() -> None:
    scene = Scene(running=1)
    health = scene.fleet.health
    health.note_gone(A)
    health.note_sent(A)
    assert health.list_troubled(0.0) == {A: Rejection.ON_PROBATION}
    scene.stream.push(Accepted(7, 0))
    scene.pass_time(1)
    assert A in health.list_troubled(0.0)  # it has not begun
    scene.stream.push(Delta("a", (1,)))
    scene.pass_time(1)
    assert A not in health.list_troubled(0.0)
    health.note_sent(A)
    scene.stream.push(Delta("b", (2,)))
    scene.pass_time(1)
    assert A in health.list_troubled(0.0)  # once of each


def test_an_answer_that_goes_on_has_not_begun_where_it_goes() -> None:
    scene = Scene(running=1)
    health = scene.fleet.health
    health.note_gone(A)
    health.note_sent(A)
    before = NodeStream(cast("Any", Owner()), NodeId("b"), 1, 1, 0.0)
    before.push(Delta("abc", (1, 2, 3)))
    scene.stream.resume(before)
    scene.stream.push(Accepted(7, 0))
    scene.pass_time(1)
    assert A in health.list_troubled(0.0)
    scene.stream.push(Delta("d", (4,)))
    scene.pass_time(1)
    assert A not in health.list_troubled(0.0)


async def hang(stream: ScriptedStream) -> None:
    """An engine that stops in mid-stream, behind a node that reports that it is idle."""
    await stream.put(Accepted(7, 0))
    await stream.put(Delta("a", (1,)))
    await stream.aborted.wait()


async def test_a_node_that_swallows_what_it_takes_is_left_alone(
    tmp_path: Path, database_template: Path
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(run_node(f"node-{n}", "weur")) for n in range(3)]
        nodes[0].script = hang
        for node in nodes[1:]:
            node.num_running = 4  # some load, as nodes in use have: the other looks best
        limits = {"request_deadline_s": 1.5}
        gateway = await stack.enter_async_context(
            run_gateway(tmp_path, database_template, nodes, limits=limits)
        )
        await wait_until_async(lambda: are_known(gateway, 3))
        nums_swallowed: list[int] = []
        for _ in range(2):
            asked = [gateway.run({"prompt": f"Hi {n}", "stream": True}) for n in range(10)]
            replies = await asyncio.gather(*asked)
            nums_swallowed.append(sum(reply.events[-1] != "[DONE]" for reply in replies))
        assert nums_swallowed[0] >= 5  # it looks best
        assert nums_swallowed[1] <= 2  # it is on probation


def hold(node: ScriptedNode, num_places: int) -> None:
    """A node with so many places, whose answers last."""
    node.max_running = num_places
    under_way = 0

    def change(by: int) -> None:
        nonlocal under_way
        under_way += by
        node.num_running = min(under_way, num_places)
        node.num_waiting = under_way - node.num_running

    async def answer(stream: ScriptedStream) -> None:
        change(1)
        await stream.put(Accepted(7, 0))
        for token_id in range(40):
            await stream.put(Delta("a", (token_id,)))
            await asyncio.sleep(0.1)
        change(-1)
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 40)))

    node.script = answer


async def test_long_answers_do_not_hold_a_node_that_came_back_to_a_few(
    tmp_path: Path, database_template: Path
) -> None:
    options = {"routing": {"max_waiting_per_model": 1}, "queue": {"max_wait_s": 2}}
    async with run_node("node-1", "weur") as back, run_node("node-2", "weur") as other:
        nodes = [back, other]
        hold(back, 8)
        hold(other, 2)
        async with run_gateway(tmp_path, database_template, nodes, **options) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            back.drop_connections()
            await asyncio.sleep(0.3)

            async def is_back() -> bool:
                return len(await list_up(gateway)) == 2

            await wait_until_async(is_back)
            await asyncio.sleep(0.3)
            asked = [gateway.run({"prompt": f"Hi {n}", "stream": True}) for n in range(10)]
            replies = await asyncio.gather(*asked)
            assert [reply.status for reply in replies] == [200] * 10
            assert len(back.streams) > 4
