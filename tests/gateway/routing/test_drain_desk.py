"""What a gateway does with drains: they hold while the store is away, and empty nodes in time."""

import asyncio

import pytest

from contracts.errors import NotFound, StoreUnavailable
from contracts.fleet_view import NodeDrain
from contracts.ids import NodeId, RegionId
from gateway.routing.drain_desk import DrainDesk
from gateway.routing.fleet import Fleet
from gateway.routing.snapshots import Vouched
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import create_fleet, create_report

A, B = NodeId("a"), NodeId("b")


class Store:
    """Drains, or none to be had."""

    def __init__(self) -> None:
        self.drains: list[NodeDrain] = []
        self.is_away = False
        self.is_open = asyncio.Event()
        """Unless it is, answers are on their way."""
        self.is_open.set()

    async def list_node_drains(self) -> list[NodeDrain]:
        if self.is_away:
            raise StoreUnavailable("away")
        drains = self.drains
        await self.is_open.wait()
        return drains


class Scene:
    """Two nodes, a store, a clock that is set, and what was moved."""

    def __init__(self) -> None:
        self.unix_s = 1000.0
        sources = Sources(lambda: 0.0, lambda: self.unix_s, lambda bits: 0)
        self.fleet: Fleet = create_fleet("a", "b", sources=sources)
        for name in ("a", "b"):
            self.fleet.record_report(create_report(name))
        self.store = Store()
        self.moved: list[NodeId] = []
        self.desk = DrainDesk(self.fleet, self.store, self._move, sources)

    def _move(self, node_id: NodeId) -> int:
        self.moved.append(node_id)
        return 1

    @property
    def drained(self) -> list[NodeId]:
        return [node.node_id for node in self.fleet.roster.snapshots if node.is_drained]


async def test_drains_outlast_the_store_s_absence_and_the_node_s_own_reports() -> None:
    scene = Scene()
    scene.store.drains = [NodeDrain(node_id=A, begun_unix_s=1000)]
    await scene.desk.refresh()
    assert scene.drained == [A]
    scene.store.is_away = True
    with pytest.raises(StoreUnavailable):
        await scene.desk.refresh()
    scene.fleet.record_report(create_report("a"))
    scene.fleet.record_link_lost(A)
    scene.fleet.record_report(create_report("a"))
    assert scene.drained == [A]
    scene.store.is_away, scene.store.drains = False, []
    await scene.desk.refresh()
    assert scene.drained == []


async def test_what_is_read_while_a_drain_begins_or_ends_undoes_neither() -> None:
    scene = Scene()
    drain = NodeDrain(node_id=A, begun_unix_s=1000)
    scene.store.is_open.clear()
    reading = asyncio.create_task(scene.desk.refresh())
    await asyncio.sleep(0)
    scene.store.drains = [drain]
    scene.desk.note(drain)
    scene.store.is_open.set()
    await reading
    assert scene.drained == [A]
    scene.store.is_open.clear()
    reading = asyncio.create_task(scene.desk.refresh())
    await asyncio.sleep(0)
    scene.store.drains = []
    scene.desk.forget(A)
    scene.store.is_open.set()
    await reading
    assert scene.drained == []
    scene.store.drains = [drain]
    await scene.desk.refresh()  # the control: what another gateway has written is read
    assert scene.drained == [A]


def test_a_drained_node_that_goes_away_is_not_put_on_probation_another_is() -> None:
    scene = Scene()
    scene.desk.note(NodeDrain(node_id=A, begun_unix_s=1000))
    for node_id in (A, B):
        scene.fleet.record_link_lost(node_id)
    assert scene.fleet.health.list_concerned() == {B}


def test_streams_are_moved_once_their_time_is_over_and_never_without_one() -> None:
    scene = Scene()
    scene.desk.note(NodeDrain(node_id=A, begun_unix_s=1000, move_after_s=30))
    scene.desk.note(NodeDrain(node_id=B, begun_unix_s=1000))
    scene.desk.move_overdue()
    scene.unix_s = 1030.0
    scene.desk.move_overdue()
    assert scene.moved == [A]
    scene.desk.forget(A)
    scene.desk.move_overdue()
    assert scene.moved == [A]
    assert scene.drained == [B]


def test_a_node_that_is_not_configured_cannot_be_drained() -> None:
    scene = Scene()
    scene.desk.require_node(A)
    with pytest.raises(NotFound):
        scene.desk.require_node(NodeId("c"))


def test_an_enrolled_node_that_is_away_can_be_drained_before_it_is_back() -> None:
    scene = Scene()
    vouched = Vouched(RegionId("weur"), "eu")
    scene.fleet.expect({NodeId("c"): vouched})
    scene.desk.require_node(NodeId("c"))
    scene.desk.note(NodeDrain(node_id=NodeId("c"), begun_unix_s=1000))
    scene.fleet.admit(NodeId("c"), vouched)
    assert scene.drained == ["c"]
    scene.fleet.dismiss(NodeId("c"))
    scene.fleet.expect({})
    with pytest.raises(NotFound):  # the control: it is not enrolled any more
        scene.desk.require_node(NodeId("c"))
