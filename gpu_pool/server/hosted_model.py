"""What a node needs of every model it has, whatever the model does.

Read next: `served_model` (generates text), `served_encoder` (encodes it), `request_start`.
"""

from typing import Protocol

from contracts.errors import ServiceError
from contracts.fleet import ModelCard
from contracts.kv_transfer import KvImport, KvRelease, KvStop, KvTicket
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

    @property
    def cold_s(self) -> float:
        """How long it has waited for its model to come to the device, once it is being computed."""
        ...

    def abort(self) -> None:
        """Ends early, with an event that says what was consumed."""
        ...

    def cancel(self) -> None:
        """Ends early without any event: nobody is there to read it."""
        ...

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        ...

    def move_blocks(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """What the gateway says of its KV blocks; `ticket` came with it. Must not raise."""
        ...
