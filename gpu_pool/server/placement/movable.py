"""What the keeper needs of a model: where it is, what it takes, and the ways to move it.

Read next: `keeper` (who asks), `gpu_pool.server.hosted_core` (who answers).
"""

from typing import Protocol

from contracts.ids import ModelName
from contracts.placement import ServiceClass, Tier
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.remote.fetched_weights import WeightFiles


class Movable(Protocol):
    """A model whose weights can be moved."""

    @property
    def name(self) -> ModelName:
        """As clients know it."""
        ...

    @property
    def service_class(self) -> ServiceClass:
        """How much its first tokens may be delayed."""
        ...

    @property
    def tier(self) -> Tier:
        """Where memory is held for it; `disk` once it has failed for good, `remote` while its files
        are to be fetched.
        """
        ...

    @property
    def weights_at(self) -> Tier:
        """Where its weights are: farther than `tier` while they are on their way to the device.

        Of one that is stuck: where it takes memory besides, or `tier` again.
        """
        ...

    @property
    def is_stuck(self) -> bool:
        """True while something is left of an engine that was killed: it takes its memory and cannot
        be moved or brought.
        """
        ...

    @property
    def failure(self) -> str | None:
        """Why it has failed for good; it is not brought anywhere then."""
        ...

    @property
    def size(self) -> ModelSize:
        """What it takes, as far as that is known."""
        ...

    @property
    def loaded_ratio(self) -> float:
        """How much of its files its engine has read that is being started."""
        ...

    @property
    def files(self) -> WeightFiles:
        """Its weights on this node's disk."""
        ...

    @property
    def is_busy(self) -> bool:
        """True while it holds requests that it will answer where it is."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait for it to come."""
        ...

    @property
    def last_used_unix_ms(self) -> int:
        """When a request last came or went."""
        ...

    def set_leaving(self, *, is_leaving: bool) -> None:
        """Lets further requests wait, so that those under way are the last; or takes it back."""
        ...

    async def move_to(self, tier: Tier) -> None:
        """Returns when it is there, or nearer because requests have come or it is stuck. From
        `remote` it goes to `disk` and no further.

        Raises: `ModelCold`, `ModelFailed` when it cannot be brought to the device;
        `FetchRefusedError`, `OSError` when its files cannot be fetched.
        """
        ...
