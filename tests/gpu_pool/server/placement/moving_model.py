"""A model of no bytes at all that moves as it is told, and the node's memory around it."""

import asyncio
from collections.abc import Callable

from contracts.errors import ModelCold
from contracts.ids import ModelName
from contracts.placement import ServiceClass, Tier
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.remote.fetched_weights import OwnWeights, WeightFiles

TEN_BYTES = ModelSize(10, 0)


class MovingModel:
    """Counts its moves; requests are held with `hold` and waited for with `ask`."""

    def __init__(
        self,
        keeper: PlacementKeeper,
        name: str,
        size: ModelSize = TEN_BYTES,
        service_class: ServiceClass = ServiceClass.BEST_EFFORT,
        move_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name = ModelName(name)
        self.size = size
        self.service_class = service_class
        self.tier = Tier.DISK
        self.failure: str | None = None
        self.num_waiting = 0
        self.num_held = 0
        self.loaded_ratio = 0.0
        self.last_used_unix_ms = 0
        self.moves: list[Tier] = []
        self.files: WeightFiles = OwnWeights()
        self.refusals = 0
        """How often it will fail to come."""
        self.is_stuck = False
        """Its engine was killed and is there yet; `release` lets it go."""
        self.will_stick = False
        """When it is to leave next."""
        self.num_vain = 0
        """How often it was to move while it was stuck."""
        self.grows_to: ModelSize | None = None
        """What it will be found to take once it is there."""
        self._beside: Tier | None = None
        self._is_leaving = False
        self._target = Tier.DISK
        self._keeper = keeper
        self._move_s = move_s
        keeper.books.add(self)

    @property
    def weights_at(self) -> Tier:
        return self._beside or self.tier

    @property
    def is_busy(self) -> bool:
        return self.num_held > 0

    @property
    def is_open(self) -> bool:
        return self.tier is self._target is Tier.GPU and not self._is_leaving

    def set_leaving(self, *, is_leaving: bool) -> None:
        self._is_leaving = is_leaving

    async def move_to(self, tier: Tier) -> None:
        if self.tier is Tier.REMOTE:
            assert tier is Tier.DISK, "it is loaded without its files"
            self.moves.append(tier)
            await self.files.fetch()
            self.tier = Tier.DISK
            return
        assert tier is Tier.GPU or not self.num_held, "a model with requests was moved away"
        self.num_vain += self.is_stuck
        assert not self.is_stuck, "nothing can move it"
        if tier is Tier.GPU and self.refusals:
            self.refusals -= 1
            raise ModelCold("It does not start.")
        self._target = tier
        await asyncio.sleep(self._move_s())
        if tier is not Tier.GPU and self.will_stick:
            self.will_stick, self.is_stuck = False, True
            self._beside = Tier.HOST if tier is Tier.HOST else None
            return
        self.moves.append(tier)
        self.tier = tier
        if tier is Tier.GPU and self.grows_to is not None:
            self.size, self.grows_to = self.grows_to, None

    async def ask(self) -> None:
        """Waits until it is there, then holds a request."""
        self.num_waiting += 1
        try:
            while not self.is_open:
                await self._keeper.bring(self.name)
        finally:
            self.num_waiting -= 1
            self._keeper.note_change()
        self.num_held += 1

    def release(self) -> None:
        """Nothing is left of an engine that was stuck."""
        self.is_stuck, self._beside = False, None
        self.tier = Tier.DISK
        self._keeper.note_change()

    def end(self) -> None:
        """One request is over."""
        self.num_held -= 1
        self._keeper.note_change()
