"""A hosted model's way to its engine core, the same whatever the model does.

Owns when a request gets to the core and how long it waits for that, and what is said of the model's
load; must not know texts or streams. Read next: `core_supervisor`, `placement.keeper`,
`served_model` and `served_encoder` (the two kinds that stand on it).
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from contracts.errors import ModelCold, PoolSaturated
from contracts.fleet import ModelLoad
from contracts.grant import Grant
from contracts.ids import ModelName
from contracts.kv_transfer import KvEndpoint
from contracts.placement import ServiceClass, Tier
from gpu_pool.engine.messages import CoreReady, KvTiers
from gpu_pool.server.core_supervisor import CoreSupervisor
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.remote.fetched_weights import WeightFiles

_DEFAULT_BLOCK_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is said about a model besides what its checkpoint says."""

    name: ModelName
    description: str
    created_unix_s: int
    service_class: ServiceClass
    expected_size: ModelSize
    """What it will take, until its core has said what it takes."""
    expected_adapter_rank: int = 0
    """The same of the largest rank of an adapter."""


@dataclass(frozen=True, slots=True)
class ColdLimits:
    """What requests may expect of a model that is not on the device."""

    max_wait_s: float
    max_waiting: int
    """Of one model."""


class HostedCore:
    """One model's core, as requests see it; the keeper moves it."""

    def __init__(
        self,
        facts: ModelFacts,
        supervisor: CoreSupervisor,
        keeper: PlacementKeeper,
        limits: ColdLimits,
        unix_ms: Callable[[], int],
        files: WeightFiles,
    ) -> None:
        """Nothing is started. The keeper is to have this in its books before requests come."""
        self.facts: Final = facts
        self.supervisor: Final = supervisor
        self._keeper = keeper
        self._limits = limits
        self._unix_ms = unix_ms
        self.files: Final = files
        self._num_preparing = 0
        self._is_leaving = False
        self.num_waiting = 0
        """Requests that wait for the model to come."""
        self.last_used_unix_ms = 0

    @property
    def client(self) -> EngineClient | None:
        """The way to the core, None when that is to be waited for."""
        return None if self._is_leaving else self.supervisor.client

    @property
    def is_ready(self) -> bool:
        """True while requests can start at once."""
        return self.client is not None

    @property
    def is_loading(self) -> bool:
        """True while its first load or a restart is under way; one that was ready once and is not
        on the device comes when asked for.
        """
        is_first_load = self.ready is None and self._keeper.books.is_coming(self.name)
        return is_first_load or self.supervisor.is_restarting

    @property
    def failure(self) -> str | None:
        """Why it has failed for good, for operators; None while it is served or may yet be."""
        return self.supervisor.failure

    @property
    def ready(self) -> CoreReady | None:
        """What the core said of itself when it last came up; None before it ever did."""
        return self.supervisor.ready

    @property
    def revision(self) -> str:
        """Of the weights; empty until they were loaded once."""
        return self.ready.model_revision if self.ready else ""

    @property
    def kv_endpoint(self) -> KvEndpoint | None:
        """What other nodes have to know to exchange KV blocks with it; None while they cannot."""
        client, ready = self.client, self.ready
        if client is None or not client.can_move or ready is None or ready.kv_facts is None:
            return None
        facts = ready.kv_facts
        return KvEndpoint(
            model=self.facts.name,
            engine=facts.engine,
            incarnation=facts.incarnation,
            layout=facts.layout,
            block_size=facts.block_size,
            bytes_per_token=facts.bytes_per_token,
        )

    def find_client(self, *, reject_if_busy: bool) -> EngineClient | None:
        """The way to the core, None when that is to be waited for.

        Raises: `ModelCold` when it would have to be and the request does not want to.
        """
        self.last_used_unix_ms = self._unix_ms()
        client = self.client
        if client is None and reject_if_busy:
            wake_s = self._keeper.books.estimate_wake_s(self.facts.name)
            raise ModelCold(
                "The model is not loaded on this node at the moment.", retry_after_s=wake_s
            )
        return client

    async def wait_client(self, grant: Grant) -> EngineClient:
        """The way to the core, within the grant's deadline and this node's patience.

        Raises: `ModelCold`, `ModelFailed`, `PoolSaturated`.
        """
        if self.client is not None:
            return self.client
        if self.num_waiting >= self._limits.max_waiting:
            raise PoolSaturated("Too many requests wait for this model to be loaded.")
        left_s = self.find_left_ms(grant) / 1000
        self.num_waiting += 1
        try:
            async with asyncio.timeout(min(left_s, self._limits.max_wait_s)):
                return await self._wait_client()
        except TimeoutError:
            raise ModelCold("The model is still being loaded on this node.") from None
        finally:
            self.num_waiting -= 1
            self._keeper.note_change()

    def find_left_ms(self, grant: Grant) -> int:
        """How long the grant still holds."""
        return grant.deadline_unix_ms - self._unix_ms()

    async def _wait_client(self) -> EngineClient:
        """The way to the core, as soon as it is there."""
        while (client := self.client) is None:
            await self._keeper.bring(self.facts.name)
            await self.supervisor.wait_started()
        return client

    @contextmanager
    def preparing(self) -> Generator[None]:
        """Keeps the model on the device while a request that came for it gets ready."""
        self._num_preparing += 1
        try:
            yield
        finally:
            self._num_preparing -= 1
            self._keeper.note_change()

    # -- as the keeper sees it -------------------------------------------------------------------

    @property
    def name(self) -> ModelName:
        """As clients know it."""
        return self.facts.name

    @property
    def service_class(self) -> ServiceClass:
        """How much its first tokens may be delayed."""
        return self.facts.service_class

    @property
    def tier(self) -> Tier:
        """Where memory is held for it, or whether its files are to be fetched."""
        place = self.supervisor.place
        return Tier.REMOTE if place is Tier.DISK and not self.files.are_here else place

    @property
    def weights_at(self) -> Tier:
        """Where its weights are, which are read or woken yet while it is on its way."""
        return Tier.REMOTE if self.tier is Tier.REMOTE else self.supervisor.weights_at

    @property
    def is_stuck(self) -> bool:
        """True while its core was killed and has not gone."""
        return self.supervisor.is_stuck

    @property
    def size(self) -> ModelSize:
        """What it takes, as far as that is known."""
        ready = self.ready
        if ready is None or not ready.weights_bytes:
            return self.facts.expected_size
        return ModelSize(ready.weights_bytes, ready.kv_bytes + ready.adapter_bytes)

    @property
    def loaded_ratio(self) -> float:
        """How much of its files its engine has read that is being started."""
        return self.supervisor.loaded_ratio

    @property
    def is_busy(self) -> bool:
        """True while it holds requests that it will answer where it is."""
        is_expected = self._num_preparing > 0 and not self._is_leaving
        return is_expected or self.supervisor.num_sequences > 0

    def set_leaving(self, *, is_leaving: bool) -> None:
        """Lets further requests wait, so that those under way are the last; or takes it back."""
        self._is_leaving = is_leaving

    async def move_to(self, tier: Tier) -> None:
        """Returns when it is there, or nearer because it would not sleep.

        Raises: as `Movable` has it.
        """
        if not self.files.are_here:
            assert tier is Tier.DISK, "weights are fetched before they are loaded"
            await self.files.fetch()
            return
        await self.supervisor.move_to(tier)

    # -- as the node runs it and tells of it -----------------------------------------------------

    @property
    def kv_tiers(self) -> KvTiers:
        """What the tiers of the core that runs came to."""
        return self.supervisor.kv_tiers

    async def run(self) -> None:
        """Keeps the core alive while it is wanted, until cancelled or it has failed for good."""
        await self.supervisor.run()

    def measure_load(self) -> ModelLoad:
        """How busy it is."""
        load = self.supervisor.load
        return ModelLoad(
            name=self.facts.name,
            is_ready=self.is_ready,
            num_running=load.num_running,
            num_waiting=load.num_waiting + self.num_waiting,
            num_blocks=load.num_blocks,
            num_free_blocks=load.num_free_blocks,
            block_size=(self.ready.block_size if self.ready else 0) or _DEFAULT_BLOCK_SIZE,
            num_queued_tokens=load.num_queued_tokens,
            prefill_tokens_per_s=round(load.prefill_per_s, 1),
            decode_tokens_per_s=round(load.decode_per_s, 1),
            decode_step_s=round(load.decode_step_s, 6),
            max_running=self.ready.max_running if self.ready else 0,
            num_hung=self.supervisor.num_hung,
            num_coming=load.num_coming,
            num_preempted=load.num_preempted,
        )
