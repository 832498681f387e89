"""What is known of the models of a node: where each is or goes, and what the planner wants of it.

Owns the figures that room is found by and reports are made of; moves nothing.
Read next: `room`, `keeper`.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from contracts.errors import UnsupportedFeature
from contracts.ids import ModelName
from contracts.placement import (
    MemoryUse,
    ModelPlacement,
    PlacementPlan,
    PlacementTarget,
    ServiceClass,
    Tier,
)
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.placement.movable import Movable
from gpu_pool.server.placement.move_times import MoveTimes
from gpu_pool.server.placement.room import (
    MemoryBudget,
    Room,
    Standing,
    by_precedence,
    find_place_below,
    find_room,
    find_room_beside,
)


@dataclass(slots=True, eq=False)
class KeptModel:
    """One model and what is being done with it."""

    model: Movable
    going_to: Tier | None = None
    coming: asyncio.Task[None] | None = None
    """One wake for all who wait."""
    asked_by: set[ModelName] = field(default_factory=set)
    """Who waits for it to be done with its work and to leave."""
    num_wakes: int = 0
    times: MoveTimes = field(default_factory=MoveTimes)

    @property
    def is_awaited(self) -> bool:
        """True while it is about to come to the device."""
        return self.coming is not None and not self.coming.done()

    @property
    def is_expected(self) -> bool:
        """True while it has not served all for whom it came."""
        return self.model.num_waiting > 0 and not self.asked_by


class PlacementBooks:
    """All models of one node."""

    def __init__(self, budget: MemoryBudget) -> None:
        """No models, no plan."""
        self.budget = budget
        self._models: dict[ModelName, KeptModel] = {}
        self._targets: dict[ModelName, PlacementTarget] = {}
        self._ranks: dict[ModelName, int] = {}
        self._plan_number = -1
        self._claimants: list[KeptModel] = []
        """Who has waited for too long, whoever did so first."""

    def __iter__(self) -> Iterator[KeptModel]:
        """In the order of the settings."""
        return iter(self._models.values())

    def check_size(self, size: ModelSize) -> None:
        """Raises: `UnsupportedFeature` for a model that fits on no empty device of this budget."""
        needed, budget = size.weights_bytes + size.kv_bytes, self.budget.device_bytes
        if budget is not None and needed > budget:
            raise UnsupportedFeature(
                f"Its weights ({size.weights_bytes:,} bytes) and KV memory ({size.kv_bytes:,} "
                f"bytes) exceed `placement.device_bytes`, which is {budget:,}."
            )

    def add(self, model: Movable) -> None:
        """A model more."""
        self._models[model.name] = KeptModel(model)

    def find(self, name: ModelName) -> KeptModel | None:
        """A model by its name."""
        return self._models.get(name)

    def take_plan(self, plan: PlacementPlan) -> bool:
        """Keeps what is wanted from now on; False for a plan that a newer one has overtaken."""
        if plan.number <= self._plan_number:
            return False
        self._plan_number = plan.number
        self._targets = {target.name: target for target in plan.targets}
        self._ranks = {name: rank for rank, name in enumerate(plan.eviction_order)}
        return True

    def is_current(self, plan: PlacementPlan) -> bool:
        """True until there is a newer one."""
        return plan.number == self._plan_number

    def ask_to_leave(self, names: Iterable[ModelName], newcomer: KeptModel) -> bool:
        """These take no further requests as long as `newcomer` waits for them; others may again.

        One that has just come is not asked before those are served for whom it came. True when
        somebody is asked who was not before.
        """
        self.let_stay(newcomer, but=names)
        asked = [
            kept
            for kept in map(self._models.__getitem__, names)
            if newcomer.model.name not in kept.asked_by and not kept.is_expected
        ]
        for kept in asked:
            kept.asked_by.add(newcomer.model.name)
            kept.model.set_leaving(is_leaving=True)
        return bool(asked)

    def let_stay(self, newcomer: KeptModel, but: Iterable[ModelName] = ()) -> None:
        """`newcomer` waits for nobody any more, `but` for these."""
        for kept in self:
            if newcomer.model.name in kept.asked_by and kept.model.name not in but:
                kept.asked_by.discard(newcomer.model.name)
                kept.model.set_leaving(is_leaving=bool(kept.asked_by))

    def is_coming(self, name: ModelName) -> bool:
        """True while a model is on its way to the device."""
        kept = self._models.get(name)
        return kept is not None and kept.going_to is Tier.GPU

    def is_pinned(self, model: Movable) -> bool:
        """True for what never goes for another model."""
        target = self._targets.get(model.name)
        is_pinned = target is not None and target.is_pinned
        return is_pinned or model.service_class is ServiceClass.ALWAYS_HOT

    def find_room(self, newcomer: KeptModel) -> Room:
        """What has to happen before `newcomer` fits on the device."""
        return find_room(self._list_others(newcomer), self._stand(newcomer), self.budget)

    def find_room_in_turn(self, newcomer: KeptModel) -> Room:
        """As `find_room`, beside what the first claimant waits for, if that is another model."""
        first = self._claimants[0] if self._claimants else newcomer
        if first is newcomer or first.model.tier is Tier.GPU:
            return self.find_room(newcomer)
        claimant = self._stand(first)
        others = [self._stand(kept) for kept in self if kept not in (newcomer, first)]
        return find_room_beside([*others, claimant], self._stand(newcomer), claimant, self.budget)

    def claim(self, newcomer: KeptModel) -> bool:
        """Nobody who comes later gets what `newcomer` waits for, as soon as it is the first to have
        claimed anything. False when it has claimed that before.
        """
        if newcomer in self._claimants:
            return False
        self._claimants.append(newcomer)
        return True

    def has_claim(self, newcomer: KeptModel) -> bool:
        """True when what it waits for is kept for it."""
        return bool(self._claimants) and self._claimants[0] is newcomer

    def end_wait(self, newcomer: KeptModel) -> None:
        """`newcomer` has its room or wants none: it claims nothing and waits for nobody."""
        if newcomer in self._claimants:
            self._claimants.remove(newcomer)
        self.let_stay(newcomer)

    def find_place_below(self, leaving: KeptModel) -> Tier:
        """How far a model goes that leaves the device without any need."""
        return find_place_below(self._stand(leaving), self._list_others(leaving), self.budget)

    def measure_disk(self) -> int:
        """What files take that can be fetched again. Units: bytes."""
        return sum(kept.model.files.disk_bytes for kept in self)

    def find_removable(
        self, newcomer: KeptModel, kept_back: Collection[ModelName]
    ) -> KeptModel | None:
        """Whose files go first for `newcomer`'s; None: nobody's.

        First those of models that are on disk alone, then, where requests wait for `newcomer`,
        those of idle ones that would have to leave memory, too: each in the order in which models
        make room elsewhere.
        """
        tiers = {Tier.DISK, Tier.REMOTE}
        if newcomer.model.num_waiting:
            tiers |= {Tier.HOST, Tier.GPU}
        free = [
            kept
            for kept in self
            if kept is not newcomer
            and kept.model.tier in tiers
            and kept.model.files.disk_bytes
            and kept.model.name not in kept_back
            and not (kept.is_awaited or self.is_pinned(kept.model) or self._stand(kept).is_busy)
        ]
        return min(
            free,
            key=lambda kept: (
                kept.model.tier in (Tier.GPU, Tier.HOST),
                by_precedence(self._stand(kept)),
            ),
            default=None,
        )

    def estimate_wake_s(self, name: ModelName) -> float:
        """Until requests of the model can start that come now. Units: seconds."""
        kept = self._models[name]
        before = kept.model.weights_at
        if before is Tier.GPU and kept.asked_by:  # it will leave first
            before = Tier.HOST
        return kept.times.estimate(before, kept.model.size.weights_bytes)

    def describe(self) -> tuple[ModelPlacement, ...]:
        """Where each model is."""
        return tuple(map(self._describe, self))

    def measure(self) -> MemoryUse:
        """What all models take together."""
        standings = [self._stand(kept) for kept in self]
        return MemoryUse(
            device_budget_bytes=self.budget.device_bytes or 0,
            device_used_bytes=sum(one.device_bytes for one in standings),
            host_budget_bytes=self.budget.host_bytes or 0,
            host_used_bytes=sum(one.host_bytes for one in standings),
            disk_budget_bytes=self.budget.disk_bytes or 0,
            disk_used_bytes=self.measure_disk(),
        )

    def _list_others(self, but: KeptModel) -> list[Standing]:
        """All models but one."""
        return [self._stand(kept) for kept in self if kept is not but]

    def _stand(self, kept: KeptModel) -> Standing:
        """A model at this moment."""
        model, size = kept.model, kept.model.size
        is_moving = kept.going_to is not None
        # One that is about to come must not lose what it comes from; if it is on the device yet,
        # it is leaving, and those who wait for it have to wait for that, too.
        is_coming = kept.is_awaited and model.tier is not Tier.GPU
        return Standing(
            name=model.name,
            tier=kept.going_to or model.tier,
            weights_bytes=size.weights_bytes,
            kv_bytes=size.kv_bytes,
            is_pinned=self.is_pinned(model) or model.is_stuck,
            is_busy=is_moving or is_coming or kept.is_expected or model.is_busy or model.is_stuck,
            rank=self._ranks.get(model.name, -1),
            last_used_ms=model.last_used_unix_ms,
            being_left=_find_left(kept),
        )

    def _describe(self, kept: KeptModel) -> ModelPlacement:
        """Where a model is."""
        model, size = kept.model, kept.model.size
        return ModelPlacement(
            name=model.name,
            tier=model.tier,
            weights_bytes=size.weights_bytes,
            kv_bytes=size.kv_bytes,
            fetched_bytes=model.files.disk_bytes if model.tier is Tier.REMOTE else 0,
            loaded_ratio=round(model.loaded_ratio, 3),
            is_moving=kept.going_to is not None,
            is_pinned=self.is_pinned(model),
            service_class=model.service_class,
            wake_s=round(self.estimate_wake_s(model.name), 3),
            num_waiting=model.num_waiting,
            num_wakes=kept.num_wakes,
            last_wake_s=round(kept.times.last_s, 3),
            last_used_unix_ms=model.last_used_unix_ms,
        )


def _find_left(kept: KeptModel) -> Tier | None:
    """The tier that a model takes memory of beside the one where it is or goes.

    On its way to the device it is what it comes from, on its way out all that it holds yet.
    """
    if kept.model.is_stuck or kept.going_to is Tier.GPU:
        return kept.model.weights_at
    return kept.model.tier if kept.going_to is not None else None
