"""Keeps the models of a node within its memory and brings those to the device that are asked for.

Owns the moves and their order: one wake serves all who wait, and a model at work has its turn
before it must go. One that is slow to leave, or does not, keeps its memory in the books and holds
up only who waits for it. Between the planner's plans it goes on alone. Must not know requests.
Read next: `books`, `room`, `gpu_pool.server.hosted_core` (who asks).
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Final

import structlog

from contracts.errors import ModelCold, ModelFailed, ServiceError
from contracts.ids import ModelName
from contracts.placement import PlacementPlan, ServiceClass, Tier
from gpu_pool.room_settings import PlacementSettings
from gpu_pool.server.placement.books import KeptModel, PlacementBooks
from gpu_pool.server.placement.disk_room import DiskRoom
from gpu_pool.server.placement.movable import Movable
from gpu_pool.server.placement.room import MemoryBudget, Room

_DEPTH: Final = {Tier.GPU: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}
_RETRY_S: Final = 0.05
"""After a model did not move."""
_LEAVE_S: Final = 5.0
"""So long a model that leaves is awaited before others may look for room beside it."""
_TURNS_BEFORE_CLAIM: Final = 2
"""So many turns of those at work a newcomer waits before its room is kept for it."""


class PlacementKeeper:
    """The models of one node. Used by one event loop."""

    def __init__(
        self,
        budget: MemoryBudget,
        turn_s: float,
        monotonic_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`turn_s` is how long a busy model stays when another waits for its room.

        `on_change` is called after each move.
        """
        self.books: Final = PlacementBooks(budget)
        self._turn_s = turn_s
        self._monotonic_s = monotonic_s
        self._on_change = on_change
        self._disk = DiskRoom(self.books, monotonic_s, self._put_to_disk)
        self._room = asyncio.Lock()
        """Held while models are moved to make room, and not while one is awaited that is at work or
        slow to leave: others may need less, or somebody else's."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    def start(self) -> None:
        """Brings the models that fit to the device, those first that are always to be hot."""
        for kept in sorted(self.books, key=_by_urgency):
            if kept.model.tier is Tier.REMOTE:
                if self.books.is_pinned(kept.model):  # others are fetched when they are asked for
                    kept.coming = self._run(self._bring(kept))
            elif self.books.find_room(kept).is_there:
                kept.going_to = Tier.GPU
                kept.coming = self._run(self._come(kept))

    async def stop(self) -> None:
        """Nothing is moved any more."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def note_change(self) -> None:
        """A model became idle or is no longer waited for: who needs room looks again."""
        self._changed.set()
        self._changed.clear()

    async def bring(self, name: ModelName) -> None:
        """Returns when the model is on the device. Many may wait; each may give up.

        Raises: `ModelCold`, `ModelFailed`.
        """
        kept = self.books.find(name)
        assert kept is not None, "every model of the node is in the books"
        if not kept.is_awaited:
            kept.coming = self._run(self._bring(kept))
        assert kept.coming is not None
        await asyncio.shield(kept.coming)

    def follow(self, plan: PlacementPlan) -> None:
        """Does what the planner asks, as far as requests allow; older plans are passed over."""
        if self.books.take_plan(plan):
            self._run(self._settle(plan))

    # -- towards the device ----------------------------------------------------------------------

    async def _bring(self, kept: KeptModel) -> None:
        """One wake. Raises: `ModelCold`, `ModelFailed`."""
        if kept.model.tier is Tier.REMOTE:  # nobody leaves the device for what is not on disk yet
            await self._fetch(kept)
        began_s = self._monotonic_s()
        try:
            while not await self._try_place(kept):
                if kept.going_to is None:
                    await self._press(kept, self._monotonic_s() - began_s)
                else:  # it was sent away before somebody asked for it
                    await self._wait_change(None)
        finally:
            self.books.end_wait(kept)
            self.note_change()
        if kept.going_to is Tier.GPU:
            await self._come(kept)

    async def _press(self, kept: KeptModel, waited_s: float) -> None:
        """Returns when it is time to look again for the room of a model that waits.

        Those at work have their turn, and are asked to leave then. That alone helps none that needs
        the room of several: as one leaves, another comes that needs less. Who has waited for a
        second turn claims what it waits for.
        """
        claims_after_s = _TURNS_BEFORE_CLAIM * self._turn_s
        if waited_s < self._turn_s:
            await self._wait_change(self._turn_s - waited_s)
        elif waited_s >= claims_after_s and kept.model.num_waiting and self.books.claim(kept):
            self._log.info("a model claims its room", model=kept.model.name, waited_s=waited_s)
        elif not self.books.ask_to_leave(self.books.find_room_in_turn(kept).awaited, kept):
            left_s = claims_after_s - waited_s
            await self._wait_change(left_s if left_s > 0 else None)

    async def _fetch(self, kept: KeptModel) -> None:
        """Brings a model's files to the disk. Raises: `ModelCold`, `ModelFailed`."""
        kept.going_to = Tier.DISK
        self._on_change()
        try:
            await self._disk.fetch(kept)
        finally:
            kept.going_to = None
            self._tell()

    async def _try_place(self, kept: KeptModel) -> bool:
        """True when the model stays on the device, or its room there is kept for it; False while
        somebody has to be waited for, who may be others' business meanwhile.

        Raises: `ModelCold` when there can be no room, `ModelFailed`.
        """
        async with self._room:
            while kept.model.tier is not Tier.GPU or kept.going_to or kept.model.is_stuck:
                if kept.model.is_stuck:
                    raise ModelCold("The model's engine was stopped and has not gone yet.")
                if kept.going_to is not None:
                    return False
                if kept.model.failure is not None:
                    raise ModelFailed("The model failed to load.")
                room = self.books.find_room_in_turn(kept)
                if not room.is_possible:
                    raise _refuse(kept.model, self.books.budget)
                if room.is_there:
                    kept.going_to = Tier.GPU
                    return True
                if (room.awaited or room.is_claimed) and not kept.model.num_waiting:
                    raise ModelCold("The models on the device are at work.")  # but a plan's wish
                if not room.moves or (room.awaited and not self.books.has_claim(kept)):
                    return False
                move = room.moves[0]  # others may be at work by the time this one is over
                await self._send_away(self._get(move.name), move.tier)
            return not kept.asked_by

    async def _come(self, kept: KeptModel) -> None:
        """The move itself, for which there is room. Raises: `ModelCold`, `ModelFailed`."""
        before, began_s = kept.model.tier, self._monotonic_s()
        self._log.info("a model comes to the device", model=kept.model.name, tier=before)
        try:
            await kept.model.move_to(Tier.GPU)
        finally:
            kept.going_to = None
            self._tell()
        kept.num_wakes += 1
        kept.times.note(before, self._monotonic_s() - began_s)
        if not self.books.find_room(kept).is_there:
            await self._settle_size(kept)

    async def _settle_size(self, kept: KeptModel) -> None:
        """Makes room for what turned out larger than its files tell, or sends it away again.

        It takes no further requests before that is settled; those that came as soon as it was there
        end first. Raises: `ModelCold`, `ModelFailed`.
        """
        self._log.warning("a model is larger than expected", model=kept.model.name)
        try:
            while not await self._try_settle(kept):
                await self._wait_change(None)
        finally:
            kept.model.set_leaving(is_leaving=bool(kept.asked_by))

    async def _try_settle(self, kept: KeptModel) -> bool:
        """True when it may stay, False while it has to go and is at work.

        Raises: `ModelCold`, `ModelFailed` when it has gone.
        """
        kept.model.set_leaving(is_leaving=True)
        async with self._room:
            while not (room := self.books.find_room(kept)).is_there:
                if room.moves and not room.awaited:
                    move = room.moves[0]
                    await self._send_away(self._get(move.name), move.tier)
                elif kept.model.is_busy or room == Room():  # somebody is on the way out
                    return False
                else:
                    await self._send_away(kept, Tier.DISK)
                    raise _refuse(kept.model, self.books.budget)
        return True

    # -- away from it ----------------------------------------------------------------------------

    async def _send_away(self, kept: KeptModel, tier: Tier) -> None:
        """One move away, awaited for a while. It goes on after that, and the books know."""
        kept.going_to = tier
        leaving = self._run(self._leave(kept, tier))
        await asyncio.wait((leaving,), timeout=_LEAVE_S)
        if leaving.done():
            await leaving
        else:
            self._log.warning(
                "a model is slow to leave: who needs nothing of it goes on", model=kept.model.name
            )

    async def _leave(self, kept: KeptModel, tier: Tier) -> None:
        """The move itself; a model that does not go is told in the log, and asked again, unless
        nothing can move it. One that a request has come for just now stays.
        """
        began_s, is_busy = self._monotonic_s(), kept.model.is_busy
        try:
            if not is_busy:
                await kept.model.move_to(tier)
        finally:
            kept.going_to = None
            self._tell()
        if is_busy:
            return
        if kept.model.is_stuck:
            self._log.error("a model's memory stays taken", model=kept.model.name)
            return
        if _DEPTH[kept.model.tier] < _DEPTH[tier]:
            self._log.warning("a model did not leave", model=kept.model.name)
            await asyncio.sleep(_RETRY_S)
            return
        self._log.info(
            "a model left the device" if tier is Tier.HOST else "a model went to disk",
            model=kept.model.name,
            seconds=round(self._monotonic_s() - began_s, 3),
        )

    async def _put_to_disk(self, kept: KeptModel) -> None:
        """Takes a model out of all memory, unless it has become busy."""
        async with self._room:
            is_free = kept.going_to is None and not kept.is_awaited and not kept.model.is_busy
            if is_free and kept.model.tier in (Tier.GPU, Tier.HOST):
                await self._send_away(kept, Tier.DISK)

    # -- the planner's wishes --------------------------------------------------------------------

    async def _settle(self, plan: PlacementPlan) -> None:
        """Moves what is wanted elsewhere, away first: that makes room."""
        for target in plan.targets:
            kept = self.books.find(target.name)
            if kept is not None:
                async with self._room:
                    if self.books.is_current(plan) and self._may_go(kept, target.tier):
                        await self._send_away(kept, self._choose_depth(kept, target.tier))
        for target in plan.targets:
            kept = self.books.find(target.name)
            is_wanted = target.tier is Tier.GPU and self.books.is_current(plan)
            if kept is not None and is_wanted and kept.model.tier is not Tier.GPU:
                with contextlib.suppress(ServiceError):  # requests matter more than plans
                    await self.bring(target.name)

    def _may_go(self, kept: KeptModel, tier: Tier) -> bool:
        """True when a model is nearer than it should be and nobody needs it there."""
        model = kept.model
        is_still = kept.going_to is None and not kept.is_awaited and not model.is_stuck
        is_free = is_still and not model.is_busy
        is_nearer = _DEPTH[model.tier] < min(_DEPTH[tier], _DEPTH[Tier.DISK])
        return is_free and is_nearer and not self.books.is_pinned(model)

    def _choose_depth(self, kept: KeptModel, tier: Tier) -> Tier:
        """`tier`, or disk where the host's memory is full."""
        if tier is Tier.HOST and kept.model.tier is Tier.GPU:
            return self.books.find_place_below(kept)
        return Tier.DISK

    # -- around it -------------------------------------------------------------------------------

    def _get(self, name: ModelName) -> KeptModel:
        """A model that the books have named."""
        kept = self.books.find(name)
        assert kept is not None
        return kept

    def _tell(self) -> None:
        """Something has moved."""
        self.note_change()
        self._on_change()

    async def _wait_change(self, timeout_s: float | None) -> None:
        """Returns at the next change, or after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """A task that `stop` ends; what it throws is for those who wait for it, if any."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        """A task is over."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ServiceError):
            self._log.error("a move failed", exc_info=error)


def create_keeper(
    settings: PlacementSettings | None,
    monotonic_s: Callable[[], float],
    on_change: Callable[[], None],
    shared_bytes: int = 0,
) -> PlacementKeeper:
    """What keeps models within the node's memory; without settings nothing bounds them.

    `shared_bytes` of the device are KV memory of no one model.
    """
    if settings is None:
        return PlacementKeeper(MemoryBudget(), 0.0, monotonic_s, on_change)
    device_bytes = settings.device_bytes - shared_bytes
    budget = MemoryBudget(device_bytes, settings.host_bytes, settings.disk_bytes)
    return PlacementKeeper(budget, settings.turn_s, monotonic_s, on_change)


def _by_urgency(kept: KeptModel) -> bool:
    """What is always to be hot comes first."""
    return kept.model.service_class is not ServiceClass.ALWAYS_HOT


def _refuse(model: Movable, budget: MemoryBudget) -> ServiceError:
    """Why a model cannot come."""
    if model.size.weights_bytes + model.size.kv_bytes > (budget.device_bytes or 0):
        return ModelFailed("The model does not fit on this node's device.")
    return ModelCold("The model has no room beside those that always stay on this node's device.")
