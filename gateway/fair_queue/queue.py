"""The queue in front of the nodes: a request waits here while every node it may go to is full.

It leaves when a node has room, is told to go when it has waited too long or can never be served,
and is forgotten at once when its client leaves. Nodes are offered one by one as they have news, and
each request that goes counts there before the next is looked at: nobody stampedes. So at all times
no request waits that a node in order with room could take, and whoever comes may try the nodes
first without overtaking anybody. Owns time and tasks; must not know HTTP or what is asked.
Read next: `gateway.fair_queue.model_queue`, `gateway.routing.room`, `gateway.forwarding`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from contracts.errors import (
    CapacityError,
    NoEndpoint,
    PoolSaturated,
    ServiceError,
    ServiceStopping,
)
from contracts.ids import ModelName, NodeId
from contracts.inference import Usage
from gateway.fair_queue.crowd import Crowd, CrowdBounds
from gateway.fair_queue.model_queue import ModelQueue
from gateway.fair_queue.queue_meter import QueueEnd, QueueMeter
from gateway.fair_queue.waiter import Waiter, weigh_usage
from gateway.request_context import Asker
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import RoutePlan
from gateway.settings import QueueSettings
from gateway.sources import Sources

SWEEP_S: Final = 0.1
_BUSY: Final = "Capacity temporarily exceeded, please try again."
_LATE: Final = "No place became free in time, please try again."


class FairQueue:
    """All requests of this gateway that wait for a node; belongs to one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        settings: QueueSettings,
        meter: QueueMeter,
        sources: Sources,
        create_queue: Callable[[CrowdBounds, float], ModelQueue] = ModelQueue,
    ) -> None:
        """Nobody waits. `fleet` tells this from now on when a node may have room."""
        self.max_wait_s: Final = settings.max_wait_s
        self._fleet = fleet
        self._bounds = CrowdBounds(settings.max_requests, settings.max_tokens, settings.max_bytes)
        self._crowd = Crowd(self._bounds)
        self._queues: dict[ModelName, ModelQueue] = {}
        """Of models that somebody waits for."""
        self._answers: dict[Waiter, asyncio.Future[RoutePlan]] = {}
        self._meter = meter
        self._sources = sources
        self._create_queue = create_queue
        self._ending: ServiceError | None = None
        fleet.on_news = self._offer
        meter.watch(self.count_by_model, self._crowd)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._answers)

    def count_by_model(self) -> dict[str, float]:
        """How many wait for each model that some do."""
        return {str(model): queue.crowd.num_requests for model, queue in self._queues.items()}

    async def wait(self, waiter: Waiter, asker: Asker) -> RoutePlan:
        """The node for a request, where it counts from then on.

        Raises: `PoolSaturated` when there is no room in the queue, when another request needs it
        more, or none at a node comes in time; `ServiceStopping`; what makes it hopeless.
        """
        answer = self._join(waiter)
        began_s = self._sources.monotonic_s()
        asker.watch(lambda: self._fail(waiter, NoEndpoint("The client has left."), QueueEnd.LEFT))
        try:
            plan = await answer
        except asyncio.CancelledError:
            if waiter in self._answers:
                self._leave(waiter, QueueEnd.LEFT)
            elif not answer.cancelled() and answer.exception() is None:
                self._fleet.release(answer.result())  # nobody will go there
            raise
        self._meter.count_wait(waiter.need.model, self._sources.monotonic_s() - began_s)
        return plan

    def refuse(self, waiter: Waiter) -> PoolSaturated:
        """The error of a request that finds no room and does not wait, with when to come back."""
        self._meter.count_end(QueueEnd.BUSY)
        return self._create_refusal(waiter, _BUSY)

    def correct(self, waiter: Waiter, usage: Usage | None) -> None:
        """The request has ended at its node with `usage`; None: it came to nothing there."""
        queue = self._queues.get(waiter.need.model)
        if queue is None:
            return
        num_tokens = 0 if usage is None else weigh_usage(usage)
        queue.correct(waiter.account_id, num_tokens - waiter.num_tokens)

    def end(self) -> None:
        """This process stops: nobody waits any more."""
        error = ServiceStopping("This gateway is stopping, please try again.", retry_after_s=1)
        self._ending = error
        for waiter in list(self._answers):
            self._fail(waiter, error, QueueEnd.STOPPED)

    async def run(self) -> None:
        """Looks after everybody several times a second, for ever."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """Sends away whoever has waited too long or in vain, and sees what only time has changed:
        breakers that have closed, nodes of the last resort.
        """
        now_s = self._sources.monotonic_s()
        for waiter in [one for one in self._answers if one.until_s <= now_s]:
            self._fail(waiter, self._create_refusal(waiter, _LATE), QueueEnd.LATE)
        for queue in list(self._queues.values()):
            self._place_where_possible(queue)

    # -- in and out ------------------------------------------------------------------------------

    def _join(self, waiter: Waiter) -> asyncio.Future[RoutePlan]:
        """Lets a request wait, in the place of others if need be. Raises: as `wait`."""
        if self._ending is not None:
            raise self._ending
        model, now_s = waiter.need.model, self._sources.monotonic_s()
        queue = self._queues.get(model) or self._create_queue(self._bounds, now_s)
        for crowd in (queue.crowd, self._crowd):
            displaced = crowd.find_room(waiter)
            if displaced is None:
                self._meter.count_end(QueueEnd.FULL)
                raise self._create_refusal(waiter, _BUSY)
            for other in displaced:
                self._fail(other, self._create_refusal(other, _BUSY), QueueEnd.DISPLACED)
        self._queues[model] = queue
        queue.join(waiter)
        self._crowd.add(waiter)
        answer = self._answers[waiter] = asyncio.get_running_loop().create_future()
        return answer

    def _leave(self, waiter: Waiter, end: QueueEnd) -> asyncio.Future[RoutePlan]:
        """The request waits no more; what it waited on."""
        self._meter.count_end(end)
        queue = self._queues[waiter.need.model]
        queue.leave(waiter)
        self._crowd.remove(waiter)
        if not queue.crowd.num_requests:
            del self._queues[waiter.need.model]
        return self._answers.pop(waiter)

    def _fail(self, waiter: Waiter, error: ServiceError, end: QueueEnd) -> None:
        """Ends a wait with an error, if it is not over."""
        if waiter in self._answers:
            answer = self._leave(waiter, end)
            if not answer.done():
                answer.set_exception(error)

    def _create_refusal(self, waiter: Waiter, message: str) -> PoolSaturated:
        """Why a request does not wait, or no longer, and when it should come back."""
        queue = self._queues.get(waiter.need.model)
        now_s = self._sources.monotonic_s()
        wait_s = None if queue is None else queue.estimate_wait_s(waiter.num_tokens, now_s)
        return PoolSaturated(message, retry_after_s=wait_s)

    # -- nodes -----------------------------------------------------------------------------------

    def _offer(self, node_id: NodeId) -> None:
        """A node has news: it gets whoever is next, one by one, until it has no room."""
        if not self._answers:
            return
        node = self._fleet.find(node_id)
        if node is None or node.region is None:
            return
        region = node.region
        for model in [model for model in self._queues if model in node.loads]:
            while (queue := self._queues.get(model)) is not None:
                waiter = queue.find_next(
                    lambda regions: regions is None or region in regions,
                    lambda waiter: self._takes(node_id, node.num_reports, waiter),
                )
                if waiter is None or not self._place(queue, waiter, node_id):
                    break

    def _takes(self, node_id: NodeId, num_reports: int, waiter: Waiter) -> bool:
        """True when the node has room for a request that it has not just refused."""
        is_refused = waiter.refused.get(node_id) == num_reports
        return not is_refused and self._fleet.takes(node_id, waiter.need)

    def _place(self, queue: ModelQueue, waiter: Waiter, node_id: NodeId | None) -> bool:
        """Sends a request to a node, or to the best one; False when that is not to be."""
        need = waiter.need
        refused = {
            other
            for other, count in waiter.refused.items()
            if (node := self._fleet.find(other)) is not None and node.num_reports == count
        }
        if refused:
            need = msgspec.structs.replace(need, tried=need.tried | refused)
        try:
            plan = self._fleet.plan(need, node_id)
        except CapacityError:
            return False
        except ServiceError as error:  # the model has gone, or the regions that the law allows
            self._fail(waiter, error, QueueEnd.HOPELESS)
            return True
        queue.charge(waiter, self._sources.monotonic_s())
        answer = self._leave(waiter, QueueEnd.PLACED)
        if answer.done():  # its task is being cancelled
            self._fleet.release(plan)
        else:
            answer.set_result(plan)
        return True

    def _place_where_possible(self, queue: ModelQueue) -> None:
        """Offers all nodes at once, and whatever is the last resort, in the order of turns."""
        stuck: set[object] = set()

        def find_next() -> Waiter | None:
            return next((one for one in queue.walk() if _find_kind(one) not in stuck), None)

        while (waiter := find_next()) is not None:
            if not self._place(queue, waiter, None):
                stuck.add(_find_kind(waiter))


def _find_kind(waiter: Waiter) -> object:
    """What decides where a request may go: those of one kind find room together or not at all."""
    need = waiter.need
    refused = frozenset(waiter.refused.items())
    return need.allowed_regions, need.may_wait, need.revision, need.tried, refused
