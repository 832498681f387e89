"""A queue before a fleet on a clock that stands still until it is told: short words for tests."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from contracts.errors import ServiceError
from contracts.fair_order import FairOrder
from contracts.ids import AccountId, RegionId
from gateway.fair_queue.crowd import CrowdBounds
from gateway.fair_queue.model_queue import ModelQueue
from gateway.fair_queue.queue import FairQueue
from gateway.fair_queue.queue_meter import QueueMeter
from gateway.fair_queue.waiter import Waiter
from gateway.routing.route_plan import RouteNeed, RoutePlan
from gateway.settings import QueueSettings
from gateway.sources import Sources
from gateway.telemetry import Telemetry
from tests.gateway.routing.fleet_words import (
    BOUNDS,
    MODEL,
    create_fleet,
    create_load,
    create_report,
)

MAX_WAITING = BOUNDS.max_waiting_per_model
FULL_RUNNING = 4


def name_account(letter: str) -> AccountId:
    """An account."""
    return AccountId(letter * 32)


def list_allowed(regions: Sequence[str]) -> tuple[RegionId, ...] | None:
    """What an account's rules say that names these; none are no rules."""
    return tuple(RegionId(region) for region in regions) or None


class FirstComeFirst(FairOrder):
    """The order that fairness is compared with: nobody's service counts."""

    def read(self, account_id: AccountId) -> int:
        """The same for all, so that age decides."""
        return 0


@dataclass
class Client:
    """Somebody who waits."""

    headers: Sequence[tuple[bytes, bytes]] = ()
    is_lost: bool = False
    on_lost: Callable[[], None] | None = None

    def watch(self, on_lost: Callable[[], None]) -> None:
        self.on_lost = on_lost
        if self.is_lost:
            on_lost()

    def leave(self) -> None:
        """Closes the connection."""
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()


@dataclass
class Asked:
    """A request, and what has become of it."""

    waiter: Waiter
    client: Client
    task: asyncio.Task[RoutePlan]
    asked_s: float
    ended_s: list[float] = field(default_factory=list[float])

    @property
    def plan(self) -> RoutePlan:
        """Where it went."""
        return self.task.result()

    @property
    def is_placed(self) -> bool:
        """True once it has a node."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    @property
    def error(self) -> BaseException | None:
        """Why it has none; None while it may get one."""
        return self.task.exception() if self.task.done() else None

    @property
    def waited_s(self) -> float:
        """From its coming to its end."""
        return self.ended_s[0] - self.asked_s


class World:
    """Nodes `a` (in weur) and `b` (in enam), both full, and a queue before them."""

    def __init__(
        self,
        *,
        create_order: Callable[[], FairOrder] = FairOrder,
        **settings: int | float,
    ) -> None:
        self.now_s = 0.0
        sources = Sources(lambda: self.now_s, lambda: self.now_s, lambda bits: 0)
        self.fleet = create_fleet("a", "b", sources=sources)
        self.telemetry = Telemetry()

        def create_queue(bounds: CrowdBounds, now_s: float) -> ModelQueue:
            return ModelQueue(bounds, now_s, create_order)

        self.queue = FairQueue(
            self.fleet,
            msgspec.convert(settings, QueueSettings),
            QueueMeter(self.telemetry),
            sources,
            create_queue,
        )
        for node_id in ("a", "b"):
            self.report(node_id)

    def report(self, node_id: str, waiting: int = MAX_WAITING, running: int = FULL_RUNNING) -> None:
        """The node says how it is; full, unless it says otherwise."""
        load = create_load(running=running, waiting=waiting, max_running=FULL_RUNNING)
        report = create_report(node_id, "weur" if node_id == "a" else "enam")
        self.fleet.record_report(msgspec.structs.replace(report, loads=(load,)))

    def ask(
        self,
        letter: str = "1",
        *regions: str,
        priority: int = 0,
        num_tokens: int = 100,
        num_bytes: int = 100,
        max_wait_s: float = 60.0,
        need: RouteNeed | None = None,
    ) -> Asked:
        """A request of an account comes and waits."""
        waiter = Waiter(
            need or RouteNeed(MODEL, list_allowed(regions)),
            name_account(letter),
            priority,
            num_tokens,
            num_bytes,
            self.now_s,
            self.now_s + max_wait_s,
        )
        client = Client()
        task = asyncio.ensure_future(self.queue.wait(waiter, client))
        asked = Asked(waiter, client, task, self.now_s)
        task.add_done_callback(lambda task: asked.ended_s.append(self.now_s))
        return asked

    def find_end_count(self, end: str) -> float:
        """How many requests have come to an end of this kind, as metrics say."""
        for family in self.telemetry.collect():
            if family.name == "hearth_gateway_queue_ends":
                return next(s.value for s in family.samples if s.labels == {"end": end})
        raise AssertionError("no such metric")


async def settle() -> None:
    """Lets every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def refusal_of(asked: Asked) -> ServiceError:
    """The error that a request ends with."""
    await settle()
    error = asked.error
    assert isinstance(error, ServiceError)
    return error
