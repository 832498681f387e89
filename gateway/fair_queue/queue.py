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
from contracts.ids import ModelName, NodeId, RegionId
from contracts.inference import Usage
from gateway.fair_queue.crowd import Crowd, CrowdBounds
from gateway.fair_queue.model_queue import ModelQueue
from gateway.fair_queue.queue_meter import QueueEnd, QueueMeter
from gateway.fair_queue.waiter import Waiter, weigh_usage
from gateway.request_context import Asker
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import NodeSnapshot, RouteNeed, RoutePlan, is_lawful
from gateway.settings import QueueSettings
from gateway.sources import Sources

SWEEP_S: Final = 0.1
_MAX_KINDS: Final = 32
"""Of requests that look at all nodes in one sweep, in vain."""
_MAX_LOOKS: Final = 4096
"""At nodes by those: in a large fleet fewer kinds, so that answers under way need not wait."""
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
        """How many wait for each model that nodes offer; nobody is a number, too."""
        counts = dict.fromkeys((str(card.name) for card in self._fleet.roster.list_models()), 0.0)
        return counts | {model: queue.crowd.num_requests for model, queue in self._queues.items()}

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
                self.correct(waiter, None)
                self._fleet.give_back(answer.result())  # nobody will go there
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
        if queue is not None:
            queue.correct(waiter, 0 if usage is None else weigh_usage(usage))

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
        num_left = count_kinds(len(self._fleet.roster.snapshots))
        for model in list(self._queues):
            if not num_left:
                break
            queue = self._queues.pop(model)
            self._queues[model] = queue  # the others come first the next time
            num_left = self._place_where_possible(queue, num_left)

    # -- in and out ------------------------------------------------------------------------------

    def _join(self, waiter: Waiter) -> asyncio.Future[RoutePlan]:
        """Lets a request wait, in the place of others if need be. Raises: as `wait`."""
        if self._ending is not None:
            raise self._ending
        model, now_s = waiter.need.model, self._sources.monotonic_s()
        queue = self._queues.get(model) or self._create_queue(self._bounds, now_s)
        displaced: list[Waiter] = []
        for crowd in (queue.crowd, self._crowd):
            more = crowd.find_room(waiter, displaced)
            if more is None:  # and nobody has given way for nothing
                self._meter.count_end(QueueEnd.FULL)
                raise self._create_refusal(waiter, _BUSY)
            displaced += more
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
        node = self._fleet.roster.find(node_id)
        if node is None or node.region is None:
            return
        for model in [model for model in self._queues if model in node.loads]:
            anybody, stuck = RouteNeed(model, None), set[object]()
            while (queue := self._queues.get(model)) is not None:
                if not self._fleet.takes(node_id, anybody):  # why look at all who wait
                    break
                waiter = self._find_next(queue, node, stuck)
                if waiter is None or not self._place(queue, waiter, node_id):
                    break

    def _find_next(
        self, queue: ModelQueue, node: NodeSnapshot, stuck: set[object]
    ) -> Waiter | None:
        """Whose turn it is at a node."""
        return queue.find_next(
            lambda regions: regions is None or node.region in regions,
            lambda waiter: self._takes(node, waiter, stuck),
        )

    def _takes(self, node: NodeSnapshot, waiter: Waiter, stuck: set[object]) -> bool:
        """True when the node has room for a request that it has not just refused.

        `stuck` are the kinds of those that found none there: nobody asks again for each of a
        thousand that are alike. The law is asked of each.
        """
        need, node_id = waiter.need, node.node_id
        if node_id in need.tried or waiter.refused.get(node_id) == node.num_reports:
            return False
        if not is_lawful(node, need):
            return False
        kind = _list_demands(need), self._fleet.health.find_loner(need)
        if kind in stuck:
            return False
        takes = self._fleet.takes(node_id, need)
        if not takes:
            stuck.add(kind)
        return takes

    def _place(self, queue: ModelQueue, waiter: Waiter, node_id: NodeId | None) -> bool:
        """Sends a request to a node, or to the best one; False when that is not to be."""
        need = self._find_need(waiter)
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
            queue.correct(waiter, 0)
            self._fleet.give_back(plan)
        else:
            answer.set_result(plan)
        return True

    def _place_where_possible(self, queue: ModelQueue, num_left: int) -> int:
        """Offers all nodes at once, and whatever is the last resort, in the order of turns.

        Of a kind, the first that finds no room speaks for all. Clients can make up many kinds: of
        more than `num_left` the others are looked at the next time. Returns what is left of that.
        """
        regions = frozenset(node.region for node in self._fleet.roster.snapshots)
        laws = frozenset(node.jurisdiction for node in self._fleet.roster.snapshots)
        stuck = queue.stuck

        def place_next() -> bool:
            """True when one has left: those that stay have another order then."""
            nonlocal num_left
            for waiter in queue.walk():
                need = self._find_need(waiter)
                loner = self._fleet.health.find_loner(need)
                kind = _find_kind(need, regions, laws), loner
                if kind in stuck:
                    continue
                if not num_left or self._place(queue, waiter, None):
                    return num_left > 0
                stuck.add(kind)
                num_left -= 1
            stuck.clear()
            return False

        while place_next():
            pass
        return num_left

    def _find_need(self, waiter: Waiter) -> RouteNeed:
        """What the request needs now, where nodes have refused it that have not reported since."""
        need = waiter.need
        if not waiter.refused:
            return need
        refused = {
            other
            for other, count in waiter.refused.items()
            if (node := self._fleet.roster.find(other)) is not None and node.num_reports == count
        }
        return msgspec.structs.replace(need, tried=need.tried | refused)


def count_kinds(num_nodes: int) -> int:
    """How many kinds of requests may look at so many nodes in one sweep."""
    return max(min(_MAX_KINDS, _MAX_LOOKS // max(num_nodes, 1)), 1)


def _find_kind(
    need: RouteNeed, regions: frozenset[RegionId | None], laws: frozenset[str]
) -> object:
    """What decides where a request may go: those of one kind find room together or not at all.

    `regions` and `laws` are those that there are: clients can name any others.
    """
    allowed = need.allowed_regions
    lawful = None if allowed is None else (not allowed, regions.intersection(allowed))
    if need.jurisdictions is not None:
        lawful = lawful, laws & need.jurisdictions
    return lawful, need.may_wait, _list_demands(need), need.tried


def _list_demands(need: RouteNeed) -> object:
    """What a node with room may lack that takes other requests: all that `find_rejection` looks at,
    but for the law and who has been tried, which are looked at by themselves; and what of that it
    may have refused lately.
    """
    rank = 0 if need.adapter is None else need.adapter.rank
    demands = rank, need.revision, need.num_prompts, need.has_bad_words, need.min_context
    return *demands, need.rejects_busy, need.leaves_nothing, need.kind
