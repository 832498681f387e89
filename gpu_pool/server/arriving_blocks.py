"""The blocks of one request that come from another node, as its stream sees them.

Owns what of the gateway's words reaches the core, and when; must not know text.
Read next: `generation` (the user), `hand_over` (the other node's side).
"""

from collections.abc import Callable

import structlog

from contracts.kv_transfer import (
    KvGaveUp,
    KvImport,
    KvLanded,
    KvRelease,
    KvStop,
    KvTicket,
    TransferEvent,
)
from gpu_pool.engine.messages import KvArrival
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import SequenceId
from gpu_pool.server.engine_client import EngineClient

_MAX_EARLY = 256
"""Words that are kept until the sequence is there."""


class ArrivingBlocks:
    """A `TransferListener` of one sequence."""

    def __init__(self, ticket: KvTicket, emit: Callable[[TransferEvent], None]) -> None:
        """`emit` tells the gateway."""
        self._prefill_incarnation = ticket.prefill_incarnation
        self._emit = emit
        self._early: list[KvImport | KvStop] = []
        self._client: EngineClient | None = None
        self._sequence_id = SequenceId(0)
        self._is_over = False
        self.arrival = KvArrival(read_node_ms() + ticket.patience_ms)

    def begin(self, client: EngineClient, sequence_id: SequenceId) -> None:
        """The sequence has an id."""
        self._client, self._sequence_id = client, sequence_id
        early, self._early = self._early, []
        for message in early:
            self._pass_on(client, message)

    def decline(self) -> None:
        """Says that none are wanted."""
        self.on_transfer(KvGaveUp("declined"))

    def take(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """Passes on a word of the gateway; `ticket` names another prefill node, if there is one."""
        if ticket is not None:
            self._prefill_incarnation = ticket.prefill_incarnation
        if self._is_over or isinstance(message, KvRelease):
            return
        if (
            isinstance(message, KvImport)
            and message.exported.incarnation != self._prefill_incarnation
        ):
            structlog.get_logger().warning("blocks of a node without a ticket were not fetched")
            return
        if self._client is not None:
            self._pass_on(self._client, message)
        elif len(self._early) < _MAX_EARLY:
            self._early.append(message)

    def on_transfer(self, event: TransferEvent) -> None:
        """Tells the gateway, which hears nothing after the last word."""
        if self._is_over:
            return
        if isinstance(event, KvLanded | KvGaveUp):
            self.end()
        self._emit(event)

    def end(self) -> None:
        """Nothing follows."""
        self._is_over = True
        if self._client is not None:
            self._client.forget_blocks(self._sequence_id)

    def _pass_on(self, client: EngineClient, message: KvImport | KvStop) -> None:
        """Tells the core."""
        if isinstance(message, KvImport):
            client.import_blocks(self._sequence_id, message.exported)
        else:
            client.stop_import(self._sequence_id)
