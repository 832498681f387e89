"""What a node needs of every model it has, whatever the model does.

Read next: `served_model` (generates text), `served_encoder` (encodes it), `request_start`.
"""

from typing import Protocol

from contracts.errors import ServiceError
from contracts.fleet import ModelCard, ModelLoad
from gpu_pool.server.core_supervisor import CoreSupervisor


class HostedModel(Protocol):
    """A model that requests can name."""

    @property
    def supervisor(self) -> CoreSupervisor:
        """What keeps its engine core alive."""
        ...

    @property
    def is_ready(self) -> bool:
        """True while requests can start at once."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it has failed for good, for operators; None while it is served or may yet be."""
        ...

    def describe(self) -> ModelCard:
        """The model as clients may see it."""
        ...

    def measure_load(self) -> ModelLoad:
        """How busy it is."""
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
