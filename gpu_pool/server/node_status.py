"""What this node says of itself, to gateways and to health checks.

Owns the report and who receives it; must not know connections beyond a function to call.
Read next: `contracts.fleet`, `wire.connection`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from contracts.fleet import ModelLoad, NodeReport, create_failed_model
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.placement import PlacementPlan
from gpu_pool.engine.messages import KvTiers
from gpu_pool.server.held_role import HeldRole
from gpu_pool.server.hosted_model import HostedModel, ModelEngine
from gpu_pool.server.placement.books import PlacementBooks
from gpu_pool.server.placement.room import MemoryBudget
from gpu_pool.server.recent_prefixes import RecentPrefixes
from gpu_pool.server.recent_sessions import RecentSessions
from gpu_pool.server.stream_meter import NodeMeter
from gpu_pool.server.stream_trace import NO_TRACER, NodeTracer

REPORT_INTERVAL_S: Final = 1.0
LOAD_INTERVAL_S: Final = 0.25
"""Between two looks at whether who wants more reports than that should have one."""
SHORTEST_INTERVAL_S: Final = 0.1
"""Between two reports, whatever happens."""

Receiver = Callable[[NodeReport], None]


@dataclass(slots=True)
class _Listener:
    """How often somebody wants to hear of the node's load, when that was, and what."""

    every_s: float
    told_s: float
    loads: tuple[ModelLoad, ...] = ()


class Readiness(StrEnum):
    """How far a model is, or the node as a whole."""

    LOADING = "loading"
    READY = "ready"
    STANDBY = "standby"
    """Not on the device: a request brings it there."""
    FAILED = "failed"
    """For good: nothing happens until the node is started again."""
    DRAINING = "draining"


class ModelState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model, for whoever watches the node: why it has failed is told to gateways alone."""

    name: ModelName
    state: Readiness
    engine: str = ""
    """Whose engine computes it, such as `vllm`; empty, and left out: our own."""


def create_boot_id(randomness: bytes) -> BootId:
    """The id of one life of a node, from at least 16 random bytes."""
    return BootId(randomness.hex())


class NodeStatus:
    """The state of the node as a whole."""

    def __init__(
        self,
        node_id: NodeId,
        boot_id: BootId,
        region: RegionId,
        jurisdiction: str,
        monotonic_s: Callable[[], float],
        role: HeldRole | None = None,
        tracer: NodeTracer = NO_TRACER,
    ) -> None:
        """A node without models; `serve` names them."""
        self.meter: Final = NodeMeter(monotonic_s, tracer)
        """Counts the requests of its models."""
        self.sessions: Final = RecentSessions(monotonic_s)
        """Whose requests have come."""
        self.prefixes: Final = RecentPrefixes(monotonic_s)
        """Of their prompts."""
        self.node_id: Final = node_id
        self.boot_id: Final = boot_id
        self.region: Final = region
        self.jurisdiction: Final = jurisdiction
        self._role = role or HeldRole()
        self._models: Mapping[ModelName, HostedModel] = {}
        self._refused: Mapping[ModelName, str] = {}
        self._books = PlacementBooks(MemoryBudget())
        self._listeners: dict[Receiver, _Listener] = {}
        self._is_draining = False
        self._published_s = float("-inf")
        self._pending: asyncio.TimerHandle | None = None

    @property
    def is_draining(self) -> bool:
        """True once no new streams are taken."""
        return self._is_draining

    @property
    def readiness(self) -> Readiness:
        """`ready` while every model that has not failed can serve or be woken, and there is one."""
        if self._is_draining:
            return Readiness.DRAINING
        states = {model.state for model in self.list_states()}
        if Readiness.LOADING in states:
            return Readiness.LOADING
        can_serve = not states.isdisjoint({Readiness.READY, Readiness.STANDBY})
        return Readiness.READY if can_serve else Readiness.FAILED

    def serve(
        self,
        models: Mapping[ModelName, HostedModel],
        refused: Mapping[ModelName, str],
        books: PlacementBooks,
    ) -> None:
        """Names the models of this node, and those that cannot be served with the reason.

        `books` say where the former are.
        """
        self._models = models
        self._refused = refused
        self._books = books

    def list_states(self) -> tuple[ModelState, ...]:
        """How far each model is."""
        served = (self._describe(name, model) for name, model in self._models.items())
        refused = (ModelState(name=name, state=Readiness.FAILED) for name in self._refused)
        return (*served, *refused)

    def list_kv_tiers(self) -> dict[ModelName, KvTiers]:
        """What the KV tiers of each model came to."""
        return {name: model.core.kv_tiers for name, model in self._models.items()}

    def find_model(self, name: ModelName) -> HostedModel | None:
        """The model of that name, if this node serves it."""
        return self._models.get(name)

    def start_draining(self) -> None:
        """Announces that the node is going away."""
        self._is_draining = True
        self.publish()

    def follow(self, plan: PlacementPlan) -> None:
        """Takes the role that a plan gives this node, or tells of the one that it suggests.

        What is under way is not touched: gateways route what comes by the next report.
        """
        if self._role.take_plan(plan):
            self.publish_soon()

    def subscribe(self, receiver: Receiver, every_s: float = REPORT_INTERVAL_S) -> None:
        """Calls `receiver` with a report now and with every one that follows; while the node is
        busy, about every `every_s`.
        """
        self._listeners[receiver] = _Listener(every_s, asyncio.get_running_loop().time())
        report = self.create_report()
        receiver(msgspec.structs.replace(report, prefixes=self.prefixes.pack_all()))

    def unsubscribe(self, receiver: Receiver) -> None:
        """Ends `subscribe`."""
        self._listeners.pop(receiver, None)

    def publish_soon(self) -> None:
        """Sends a report to everyone, at once unless there has just been one.

        For what should not wait for the next second: a model that came or went, or became idle.
        """
        if self._pending is None:
            loop = asyncio.get_running_loop()
            wait_s = self._published_s + SHORTEST_INTERVAL_S - loop.time()
            if wait_s <= 0:
                self.publish()
            else:
                self._pending = loop.call_later(wait_s, self.publish)

    def publish(self) -> None:
        """Sends a report to everyone."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._published_s = asyncio.get_running_loop().time()
        self._tell(self.create_report(), tuple(self._listeners))

    async def run(self) -> None:
        """Publishes about once a second, and in between for those who want more, until cancelled.

        What is told between has neither sessions nor prompts: those are news for a while.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(LOAD_INTERVAL_S, REPORT_INTERVAL_S))
            now_s = loop.time()
            if now_s - self._published_s >= REPORT_INTERVAL_S - LOAD_INTERVAL_S / 2:
                self.publish()
                continue
            loads = self._measure_loads()
            due = [
                receiver
                for receiver, listener in self._listeners.items()
                if now_s - listener.told_s >= listener.every_s - LOAD_INTERVAL_S / 2
                and listener.loads != loads
            ]
            if due:
                self._tell(self._describe_state(), due)

    def create_report(self) -> NodeReport:
        """The node at this moment, with whose requests have lately come."""
        return msgspec.structs.replace(
            self._describe_state(),
            sessions=self.sessions.list_recent(),
            prefixes=self.prefixes.pack_news(),
        )

    def _tell(self, report: NodeReport, receivers: Iterable[Receiver]) -> None:
        """Sends a report."""
        now_s = asyncio.get_running_loop().time()
        for receiver in receivers:
            listener = self._listeners[receiver]
            listener.told_s, listener.loads = now_s, report.loads
            receiver(report)

    def _measure_loads(self) -> tuple[ModelLoad, ...]:
        """How busy each model is that has not failed for good."""
        models = self._models.values()
        return tuple(model.core.measure_load() for model in models if model.core.failure is None)

    def _describe_state(self) -> NodeReport:
        """The node at this moment. What has failed for good is not on offer."""
        models = [model for model in self._models.values() if model.core.failure is None]
        failures = {name: model.core.failure for name, model in self._models.items()} | dict(
            self._refused
        )
        endpoints = tuple(
            endpoint for model in models if (endpoint := model.core.kv_endpoint) is not None
        )
        return NodeReport(
            node_id=self.node_id,
            boot_id=self.boot_id,
            region=self.region,
            jurisdiction=self.jurisdiction,
            is_draining=self._is_draining,
            models=tuple(model.describe() for model in models),
            loads=self._measure_loads(),
            failed=tuple(
                create_failed_model(name, reason)
                for name, reason in failures.items()
                if reason is not None
            ),
            placements=self._books.describe(),
            memory=self._books.measure(),
            role=self._role.current,
            roles=self._role.may_take if endpoints else (),  # without them no prompt leaves it
            suggested_role=self._role.suggested,
            kv_endpoints=endpoints,
        )

    def _describe(self, name: ModelName, model: HostedModel) -> ModelState:
        """How far `model` is."""
        return ModelState(
            name=name, state=_find_readiness(model.core), engine=model.describe().engine
        )


def _find_readiness(engine: ModelEngine) -> Readiness:
    """How far a model is."""
    if engine.failure is not None:
        return Readiness.FAILED
    if engine.is_ready:
        return Readiness.READY
    return Readiness.LOADING if engine.is_loading else Readiness.STANDBY
