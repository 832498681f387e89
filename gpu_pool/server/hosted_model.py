"""What a node needs of every model it has, whatever the model does.

Read next: `served_model` (generates text), `served_encoder` (encodes it), `request_start`.
"""

from typing import Protocol

from contracts.errors import ServiceError
from contracts.fleet import ModelCard
from gpu_pool.server.hosted_core import HostedCore


class HostedModel(Protocol):
    """A model that requests can name."""

    @property
    def core(self) -> HostedCore:
        """The way to its engine core."""
        ...

    def describe(self) -> ModelCard:
        """The model as clients may see it."""
        ...

    async def close(self) -> None:
        """Ends what runs beside the core."""
        ...


class RunningRequest(Protocol):
    """One request on its way through the node; its last event is `Finished` or `Failed`."""

    def abort(self) -> None:
        """Ends early, with an event that says what was consumed."""
        ...

    def cancel(self) -> None:
        """Ends early without any event: nobody is there to read it."""
        ...

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        ...
