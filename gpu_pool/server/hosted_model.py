"""What a node needs of every model it has, whatever the model does.

Read next: `served_model` (generates text), `served_encoder` (encodes it), `upstream.upstream_model`
(an engine of others does), `request_start`.
"""

from typing import Protocol

from contracts.adapters import AdapterPiece
from contracts.errors import ServiceError
from contracts.fleet import ModelCard, ModelLoad
from contracts.kv_transfer import KvEndpoint, KvImport, KvRelease, KvStop, KvTicket
from gpu_pool.engine.messages import KvTiers


class ModelEngine(Protocol):
    """What computes a model, as the node sees it: a core of our own, or an engine of others."""

    @property
    def is_ready(self) -> bool:
        """True while requests can start at once."""
        ...

    @property
    def is_loading(self) -> bool:
        """True while it is expected to be ready soon, without anybody asking for it."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it is not on offer, for operators; None while it is served or may yet be."""
        ...

    @property
    def kv_endpoint(self) -> KvEndpoint | None:
        """What other nodes have to know to exchange KV blocks with it; None while they cannot."""
        ...

    @property
    def kv_tiers(self) -> KvTiers:
        """What its tiers of KV blocks came to."""
        ...

    def measure_load(self) -> ModelLoad:
        """How busy it is."""
        ...

    async def run(self) -> None:
        """Keeps it running, or keeps an eye on it, until cancelled."""
        ...


class HostedModel(Protocol):
    """A model that requests can name."""

    @property
    def core(self) -> ModelEngine:
        """What computes it."""
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

    def take_piece(self, piece: AdapterPiece) -> None:
        """Bytes of its adapter have come. Raises: `InvalidRequest` for those that were not asked
        for.
        """
        ...
