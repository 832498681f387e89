"""A hosted model's way to its engine core, the same whatever the model does.

Owns when a request gets to the core and how long it waits for that, and what is said of the model's
load; must not know texts or streams. Read next: `core_supervisor`, `served_model` and
`served_encoder` (the two kinds that stand on it).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts.errors import ModelCold
from contracts.fleet import ModelLoad
from contracts.grant import Grant
from contracts.ids import ModelName
from gpu_pool.engine.messages import CoreReady
from gpu_pool.server.core_supervisor import CoreSupervisor
from gpu_pool.server.engine_client import EngineClient

_DEFAULT_BLOCK_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is said about a model besides what its checkpoint says."""

    name: ModelName
    description: str
    created_unix_s: int


class HostedCore:
    """One model's core, as requests see it."""

    def __init__(
        self,
        facts: ModelFacts,
        supervisor: CoreSupervisor,
        max_cold_wait_s: float,
        unix_ms: Callable[[], int],
    ) -> None:
        """`max_cold_wait_s` bounds the wait for a core that is coming up."""
        self.facts: Final = facts
        self.supervisor: Final = supervisor
        self._max_cold_wait_s = max_cold_wait_s
        self._unix_ms = unix_ms

    @property
    def is_ready(self) -> bool:
        """True while requests can start at once."""
        return self.supervisor.client is not None

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

    def find_client(self, *, reject_if_busy: bool) -> EngineClient | None:
        """The way to the core, None when that is to be waited for.

        Raises: `ModelCold` when it would have to be and the request does not want to.
        """
        client = self.supervisor.client
        if client is None and reject_if_busy:
            raise ModelCold("The model is not loaded on this node at the moment.")
        return client

    async def wait_client(self, grant: Grant) -> EngineClient:
        """The way to the core, within the grant's deadline and this node's patience.

        Raises: `ModelCold`, `ModelFailed`.
        """
        left_s = (grant.deadline_unix_ms - self._unix_ms()) / 1000
        return await self.supervisor.wait_ready(min(left_s, self._max_cold_wait_s))

    def measure_load(self) -> ModelLoad:
        """How busy it is."""
        load = self.supervisor.load
        return ModelLoad(
            name=self.facts.name,
            is_ready=self.is_ready,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            num_blocks=load.num_blocks,
            num_free_blocks=load.num_free_blocks,
            block_size=(self.ready.block_size if self.ready else 0) or _DEFAULT_BLOCK_SIZE,
            num_queued_tokens=load.num_queued_tokens,
            prefill_tokens_per_s=round(load.prefill_per_s, 1),
            decode_tokens_per_s=round(load.decode_per_s, 1),
        )
